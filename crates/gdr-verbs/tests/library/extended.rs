//! Extended queues, and `ibv_resize_cq`.

use gdr_verbs_sys::ibv_qp_create_send_ops_flags as Operations;
use gdr_verbs_sys::*;

use crate::side::*;

/// Returns a side with extended queues and a queue pair with these operations, and both in their extended form.
fn extended(kind: ibv_qp_type, operations: Operations) -> (Side, *mut ibv_cq_ex, *mut ibv_qp_ex) {
    let plain = Side::new(kind);
    // SAFETY: the context and its objects exist until the side is closed; the plain queues are not used any more.
    unsafe {
        library().ibv_destroy_qp(plain.pair).unwrap();
        library().ibv_destroy_cq(plain.queue).unwrap();
        let fields = ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN
            | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM
            | ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM;
        let mut wanted = ibv_cq_init_attr_ex {
            cqe: 16,
            wc_flags: u64::from(fields.0),
            ..Default::default()
        };
        let queue = ibv_create_cq_ex(plain.context, &mut wanted).unwrap();
        let cq = ibv_cq_ex_to_cq(queue).as_ptr();
        let mut init = ibv_qp_init_attr_ex {
            send_cq: cq,
            recv_cq: cq,
            qp_type: kind,
            pd: plain.domain,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            send_ops_flags: u64::from(operations.0),
            ..Default::default()
        };
        init.cap.max_send_wr = 4;
        init.cap.max_recv_wr = 4;
        init.cap.max_send_sge = 2;
        init.cap.max_recv_sge = 2;
        init.cap.max_inline_data = 64;
        let created = library().ibv_create_qp_ex(plain.context, &mut init);
        let pair = created.unwrap().as_ptr();
        let built = library().ibv_qp_to_qp_ex(pair).unwrap().as_ptr();
        let side = Side {
            pair,
            queue: cq,
            ..plain
        };
        (side, queue.as_ptr(), built)
    }
}

fn connect(a: &Side, b: &Side) {
    for side in [a, b] {
        side.to_init().unwrap();
    }
    a.to_rtr(b.number()).unwrap();
    b.to_rtr(a.number()).unwrap();
    a.to_rts().unwrap();
    b.to_rts().unwrap();
}

fn all_operations() -> Operations {
    Operations::IBV_QP_EX_WITH_RDMA_WRITE
        | Operations::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
        | Operations::IBV_QP_EX_WITH_SEND
        | Operations::IBV_QP_EX_WITH_SEND_WITH_IMM
        | Operations::IBV_QP_EX_WITH_RDMA_READ
        | Operations::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | Operations::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
}

/// Waits for the first completion of a queue and begins to poll it.
fn start(queue: *mut ibv_cq_ex) {
    wait_until(|| {
        // SAFETY: the queue is alive and not being polled.
        unsafe { ibv_start_poll(queue) }.unwrap() == Polled::Completion
    });
}

#[test]
fn a_batch_of_built_requests_completes_in_order_with_their_fields() {
    let (a, queue, pair) = extended(ibv_qp_type::IBV_QPT_RC, all_operations());
    let (b, _, _) = extended(ibv_qp_type::IBV_QPT_RC, all_operations());
    connect(&a, &b);
    let (mut near, mut far) = (vec![9_u64; 8], vec![1_u64; 8]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let (from, to) = (segment(source, 0, 16), segment(target, 8, 16));
    b.receive(5, &mut []).unwrap();
    // SAFETY: queue pair, regions and their memory are alive; each request is started, described and completed in
    // order.
    unsafe {
        ibv_wr_start(pair).unwrap();
        (*pair).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        (*pair).wr_id = 1;
        ibv_wr_rdma_write_imm(pair, to.lkey, to.addr, 7_u32.to_be()).unwrap();
        ibv_wr_set_sge_list(pair, 2, [from, segment(source, 32, 8)].as_ptr()).unwrap();
        (*pair).wr_id = 2;
        ibv_wr_atomic_fetch_add(pair, to.lkey, to.addr, 1).unwrap();
        ibv_wr_set_sge(pair, from.lkey, from.addr + 40, 8).unwrap();
        (*pair).wr_id = 3;
        ibv_wr_rdma_read(pair, to.lkey, to.addr).unwrap();
        ibv_wr_set_sge(pair, from.lkey, from.addr + 48, 8).unwrap();
        ibv_wr_complete(pair).unwrap();
    }
    start(queue);
    let mut seen = Vec::new();
    loop {
        // SAFETY: a completion is being read.
        unsafe {
            let len = ibv_wc_read_byte_len(queue).unwrap();
            assert_eq!(ibv_wc_read_qp_num(queue), Ok(a.number()));
            assert_eq!(ibv_wc_read_wc_flags(queue), Ok(0));
            seen.push((
                (*queue).wr_id,
                (*queue).status,
                ibv_wc_read_opcode(queue).unwrap(),
                len,
            ));
            if seen.len() == 3 {
                break;
            }
        }
        wait_until(|| {
            // SAFETY: the queue is being polled.
            unsafe { ibv_next_poll(queue) }.unwrap() == Polled::Completion
        });
    }
    // SAFETY: the queue is being polled.
    unsafe { ibv_end_poll(queue) }.unwrap();
    let ok = ibv_wc_status::IBV_WC_SUCCESS;
    let expected = [
        (1, ok, ibv_wc_opcode::IBV_WC_RDMA_WRITE, 24),
        (2, ok, ibv_wc_opcode::IBV_WC_FETCH_ADD, 8),
        (3, ok, ibv_wc_opcode::IBV_WC_RDMA_READ, 8),
    ];
    assert_eq!(seen, expected);
    let received = b.completion();
    // SAFETY: it has an immediate.
    let immediate = u32::from_be(unsafe { received.__bindgen_anon_1.imm_data });
    assert_eq!((received.wr_id, received.byte_len, immediate), (5, 24, 7));
    deregister(source);
    deregister(target);
    assert_eq!(far, [1, 10, 9, 9, 1, 1, 1, 1]);
    assert_eq!(near[5..7], [9, 10]);
    a.close();
    b.close();
}

#[test]
fn a_batch_with_an_error_or_that_is_aborted_posts_nothing() {
    let (a, queue, pair) = extended(
        ibv_qp_type::IBV_QPT_UC,
        Operations::IBV_QP_EX_WITH_RDMA_WRITE,
    );
    let (b, _, _) = extended(
        ibv_qp_type::IBV_QPT_UC,
        Operations::IBV_QP_EX_WITH_RDMA_WRITE,
    );
    connect(&a, &b);
    let mut words = vec![1_u64; 8];
    let target = b.register(&mut words);
    let to = segment(target, 0, 8);
    // SAFETY: as above; a list of three segments is longer than the queue pair supports.
    unsafe {
        (*pair).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_start(pair).unwrap();
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        ibv_wr_set_sge_list(pair, 3, [to; 3].as_ptr()).unwrap();
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        let refused = ibv_wr_complete(pair).unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
        ibv_wr_start(pair).unwrap();
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        ibv_wr_set_inline_data(pair, [7_u8; 65].as_mut_ptr().cast(), 65).unwrap();
        let refused = ibv_wr_complete(pair).unwrap_err();
        assert_eq!(refused.errno(), Errno::ENOMEM);
        ibv_wr_start(pair).unwrap();
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        ibv_wr_abort(pair).unwrap();
        assert_eq!(ibv_start_poll(queue), Ok(Polled::Empty));
        // The refused batch leaves nothing in the next one.
        ibv_wr_start(pair).unwrap();
        (*pair).wr_id = 4;
        ibv_wr_rdma_write(pair, to.lkey, to.addr).unwrap();
        ibv_wr_set_inline_data(pair, [7_u8; 8].as_mut_ptr().cast(), 8).unwrap();
        ibv_wr_complete(pair).unwrap();
    }
    start(queue);
    // SAFETY: the queue is being polled.
    unsafe {
        assert_eq!((*queue).wr_id, 4);
        ibv_end_poll(queue).unwrap();
        assert_eq!(ibv_start_poll(queue), Ok(Polled::Empty));
    }
    deregister(target);
    a.close();
    b.close();
}

#[test]
fn operations_that_the_service_has_not_are_refused_at_creation() {
    let read = Operations::IBV_QP_EX_WITH_RDMA_READ;
    let segments = Operations::IBV_QP_EX_WITH_TSO;
    let write = Operations::IBV_QP_EX_WITH_RDMA_WRITE;
    let refused = [
        (ibv_qp_type::IBV_QPT_UC, read),
        (ibv_qp_type::IBV_QPT_UD, write),
        (ibv_qp_type::IBV_QPT_RC, segments),
    ];
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    for (kind, operations) in refused {
        let mut init = ibv_qp_init_attr_ex {
            send_cq: side.queue,
            recv_cq: side.queue,
            qp_type: kind,
            pd: side.domain,
            comp_mask: (ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
                | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
                .0,
            send_ops_flags: u64::from(operations.0),
            ..Default::default()
        };
        // SAFETY: the objects are alive.
        let created = unsafe { library().ibv_create_qp_ex(side.context, &mut init) };
        assert_eq!(created.unwrap_err().errno(), Errno::EOPNOTSUPP, "{kind}");
    }
    // SAFETY: a queue pair that has no extended form.
    let plain = unsafe { library().ibv_qp_to_qp_ex(side.pair) };
    assert!(plain.is_err());
    side.close();
}

#[test]
fn a_resized_queue_keeps_its_completions_and_is_not_made_smaller_than_they_are() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    side.to_init().unwrap();
    for id in 0..10 {
        side.receive(id, &mut []).unwrap();
    }
    side.to_error().unwrap();
    let resize = |entries| {
        // SAFETY: the queue is alive.
        unsafe { library().ibv_resize_cq(side.queue, entries) }
    };
    // SAFETY: the queue is alive.
    let size = || unsafe { (*side.queue).cqe };
    for refused in [9, 0, -1, i32::MAX] {
        assert_eq!(
            resize(refused).unwrap_err().errno(),
            Errno::EINVAL,
            "{refused}"
        );
        assert_eq!(size(), 64);
    }
    for entries in [10, 200] {
        resize(entries).unwrap();
        assert_eq!(size(), entries);
    }
    for id in 10..16 {
        side.receive(id, &mut []).unwrap();
    }
    let ids: Vec<_> = (0..16).map(|_| side.completion().wr_id).collect();
    assert_eq!(ids, (0..16).collect::<Vec<_>>());
    side.close();
}

/// Returns the status and the operation of the next completion.
fn next(queue: *mut ibv_cq_ex) -> (ibv_wc_status, ibv_wc_opcode) {
    start(queue);
    // SAFETY: the queue is being polled.
    unsafe {
        let next = ((*queue).status, ibv_wc_read_opcode(queue).unwrap());
        ibv_end_poll(queue).unwrap();
        next
    }
}

#[test]
fn an_atomic_write_stores_a_word_and_a_flush_needs_its_right() {
    use ibv_access_flags as Flags;
    let operations = Operations::IBV_QP_EX_WITH_FLUSH | Operations::IBV_QP_EX_WITH_ATOMIC_WRITE;
    let flushed = Flags::IBV_ACCESS_FLUSH_GLOBAL;
    for (of_region, selectivity, placement, expected) in [
        (flushed, 0, 1, ibv_wc_status::IBV_WC_SUCCESS),
        (flushed, 1, 1, ibv_wc_status::IBV_WC_SUCCESS),
        (Flags(0), 0, 1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
        (Flags(0), 1, 1, ibv_wc_status::IBV_WC_REM_ACCESS_ERR),
        // The queue pair does not permit persistent FLUSH.
        (flushed, 0, 2, ibv_wc_status::IBV_WC_REM_INV_REQ_ERR),
    ] {
        let (a, queue, pair) = extended(ibv_qp_type::IBV_QPT_RC, operations);
        let (b, _, _) = extended(ibv_qp_type::IBV_QPT_RC, operations);
        for side in [&a, &b] {
            let (mut attr, mask) = side.change_to(ibv_qp_state::IBV_QPS_INIT, 0);
            attr.qp_access_flags = (all_access() | flushed).0;
            side.modify(&mut attr, mask).unwrap();
        }
        a.to_rtr(b.number()).unwrap();
        b.to_rtr(a.number()).unwrap();
        a.to_rts().unwrap();
        b.to_rts().unwrap();
        let mut far = [1_u64; 4];
        let address = far.as_mut_ptr().cast();
        // SAFETY: the words live until the region is deregistered.
        let target = unsafe { library().reg_mr(b.domain, address, 32, all_access() | of_region) };
        let target = target.unwrap();
        let to = segment(target, 8, 8);
        let word = 0x1122_3344_5566_7788_u64;
        // SAFETY: the queue pair is alive, and so is the word until the call returns.
        unsafe {
            ibv_wr_start(pair).unwrap();
            (*pair).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
            ((*pair).wr_atomic_write.unwrap())(pair, to.lkey, to.addr, (&raw const word).cast());
            ((*pair).wr_flush.unwrap())(pair, to.lkey, to.addr, 16, placement, selectivity);
            ibv_wr_complete(pair).unwrap();
        }
        let written = (
            ibv_wc_status::IBV_WC_SUCCESS,
            ibv_wc_opcode::IBV_WC_ATOMIC_WRITE,
        );
        assert_eq!(next(queue), written);
        assert_eq!(far, [1, word, 1, 1]);
        let (status, opcode) = next(queue);
        assert_eq!(status, expected, "{of_region:?} {selectivity} {placement}");
        if status == ibv_wc_status::IBV_WC_SUCCESS {
            assert_eq!(opcode, ibv_wc_opcode::IBV_WC_FLUSH);
        }
        deregister(target);
        a.close();
        b.close();
    }
}

#[test]
fn completions_have_the_time_at_which_they_came() {
    use ibv_create_cq_wc_flags as Fields;
    let (a, b) = sides();
    let fields = Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
        | Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
    let mut wanted = ibv_cq_init_attr_ex {
        cqe: 16,
        wc_flags: u64::from(fields.0),
        ..Default::default()
    };
    // SAFETY: the context is open; the first queue pair and its queue are not used any more.
    let (a, queue) = unsafe {
        a.close_pair();
        library().ibv_destroy_cq(a.queue).unwrap();
        let queue = ibv_create_cq_ex(a.context, &mut wanted).unwrap();
        let cq = ibv_cq_ex_to_cq(queue).as_ptr();
        let mut attr = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            qp_type: a.kind,
            ..Default::default()
        };
        attr.cap.max_send_wr = 4;
        let pair = library().ibv_create_qp(a.domain, &mut attr).unwrap();
        let queue_pair = pair.as_ptr();
        (
            Side {
                pair: queue_pair,
                queue: cq,
                ..a
            },
            queue.as_ptr(),
        )
    };
    b.to_state(ibv_qp_state::IBV_QPS_RESET).unwrap();
    connect(&a, &b);
    let clock = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.unwrap().as_nanos() as u64
    };
    let (begin, mut last) = (clock(), 0);
    for _ in 0..3 {
        let mut wr = ibv_send_wr {
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        };
        wr.wr.rdma.rkey = 1;
        a.send(wr, &mut []).unwrap();
        start(queue);
        // SAFETY: the queue is being polled.
        let (device, wall) = unsafe {
            let device = ibv_wc_read_completion_ts(queue).unwrap();
            let times = (device, ibv_wc_read_completion_wallclock_ns(queue).unwrap());
            ibv_end_poll(queue).unwrap();
            times
        };
        assert!(device > last);
        // The two clocks are read one after the other.
        let second = 1_000_000_000;
        assert!(
            (begin - second..clock() + second).contains(&wall),
            "{begin} {wall}"
        );
        last = device;
    }
    a.close();
    b.close();
}
