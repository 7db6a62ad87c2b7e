use gdr_verbs_sys::*;

use crate::connection::*;

const WORDS: usize = 1024;

fn pattern(seed: u64) -> Vec<u64> {
    (0..WORDS as u64)
        .map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed)
        .collect()
}

#[test]
fn writes_and_reads_move_the_right_bytes() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let (mut near, mut far) = (pattern(1), vec![0; WORDS]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 3);
    a.send(
        write,
        &mut [segment(source, 16, 100), segment(source, 0, 5)],
    )
    .unwrap();
    let completion = a.completion();
    assert_eq!(
        (completion.wr_id, completion.status),
        (1, ibv_wc_status::IBV_WC_SUCCESS)
    );
    let bytes =
        |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|it| it.to_ne_bytes()).collect() };
    let (sent, got) = (bytes(&pattern(1)), bytes(&far));
    assert_eq!(got[..3], [0; 3]);
    assert_eq!(got[3..103], sent[16..116]);
    assert_eq!(got[103..108], sent[..5]);
    assert!(got[108..].iter().all(|byte| *byte == 0));

    let read = request(2, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 3);
    a.send(read, &mut [segment(source, 2000, 100)]).unwrap();
    let completion = a.completion();
    assert_eq!((completion.wr_id, completion.byte_len), (2, 100));
    assert_eq!(bytes(&near)[2000..2100], sent[16..116]);
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn messages_and_immediates_arrive_at_receives_in_order() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let (mut near, mut far) = (pattern(2), vec![0; WORDS]);
    let source = a.register(&mut near, all_access());
    let target = b.register(&mut far, all_access());
    b.receive(10, &mut [segment(target, 0, 64), segment(target, 128, 64)])
        .unwrap();
    b.receive(11, &mut []).unwrap();
    let mut send = request(1, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, target, 0);
    send.__bindgen_anon_1.imm_data = 0xcafe_u32.to_be();
    a.send(send, &mut [segment(source, 0, 100)]).unwrap();
    let mut write = request(2, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, target, 4096);
    write.__bindgen_anon_1.imm_data = 0xbeef_u32.to_be();
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();

    let first = b.completion();
    let imm = |wc: &ibv_wc| {
        // SAFETY: the flags of the completion include the immediate.
        u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data })
    };
    assert_eq!(
        (first.wr_id, first.byte_len, imm(&first)),
        (10, 100, 0xcafe)
    );
    assert_eq!(first.opcode, ibv_wc_opcode::IBV_WC_RECV);
    let second = b.completion();
    assert_eq!(
        (second.wr_id, second.byte_len, imm(&second)),
        (11, 8, 0xbeef)
    );
    assert_eq!(second.opcode, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    let sent = pattern(2);
    assert_eq!(far[..8], sent[..8]);
    assert_eq!(far[16..20], sent[8..12]);
    assert_eq!(far[512], sent[0]);
    assert_eq!((a.completion().wr_id, a.completion().wr_id), (1, 2));
    a.deregister(source);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_send_waits_for_its_receive_as_long_as_its_rnr_retries() {
    let fake = two_devices();
    let (a, b) = sides_that_retry(&fake, FOREVER);
    let mut near = pattern(3);
    let source = a.register(&mut near, all_access());
    let send = request(1, ibv_wr_opcode::IBV_WR_SEND, source, 0);
    a.send(send, &mut [segment(source, 0, 0)]).unwrap();
    assert!(a.poll().is_none());
    b.receive(9, &mut []).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(b.completion().wr_id, 9);
    a.deregister(source);
    a.close();
    b.close();

    let (a, b) = sides_that_retry(&fake, 1);
    let source = a.register(&mut near, all_access());
    let send = request(2, ibv_wr_opcode::IBV_WR_SEND, source, 0);
    a.send(send, &mut [segment(source, 0, 0)]).unwrap();
    assert_eq!(
        a.completion().status,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR
    );
    assert_eq!(a.state(), ibv_qp_state::IBV_QPS_ERR);
    a.deregister(source);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn atomics_return_the_old_value() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let (mut near, mut far) = (vec![0; 1], vec![40; 1]);
    let result = a.register(&mut near, all_access());
    let word = b.register(&mut far, all_access());
    let mut add = request(1, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, word, 0);
    let place = ibv_send_wr__bindgen_ty_2__bindgen_ty_2 {
        // SAFETY: set by `request`.
        remote_addr: unsafe { add.wr.rdma.remote_addr },
        compare_add: 2,
        swap: 0,
        // SAFETY: as above.
        rkey: unsafe { add.wr.rdma.rkey },
    };
    add.wr.atomic = place;
    a.send(add, &mut [segment(result, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!((near[0], far[0]), (40, 42));

    for (compare, before, after) in [(41, 42, 42), (42, 42, 7)] {
        let mut swap = add;
        swap.opcode = ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP;
        swap.wr.atomic.compare_add = compare;
        swap.wr.atomic.swap = 7;
        a.send(swap, &mut [segment(result, 0, 8)]).unwrap();
        assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
        assert_eq!((near[0], far[0]), (before, after));
    }
    a.deregister(result);
    b.deregister(word);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn inline_bytes_need_no_region_and_are_copied_when_posted() {
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let mut far = vec![0; 8];
    let target = b.register(&mut far, all_access());
    let mut word = 0x0123_4567_89ab_cdef_u64;
    let mut write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 8);
    write.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    let inline = ibv_sge {
        addr: (&raw mut word).expose_provenance() as u64,
        length: 8,
        lkey: 0,
    };
    a.send(write, &mut [inline]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!(far[1], 0x0123_4567_89ab_cdef);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}

#[test]
fn a_full_send_queue_has_room_after_completions_are_polled() {
    /// Long enough that no request is complete when all are posted.
    const LONG: u32 = 64 << 20;
    let fake = two_devices();
    let (a, b) = sides(&fake);
    let mut far: Vec<u64> = (0..u64::from(LONG) / 8).collect();
    let target = b.register(&mut far, all_access());
    let mut near = vec![0; far.len()];
    let result = a.register(&mut near, all_access());
    let mut read = request(0, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 0);
    read.send_flags = 0;
    for _ in 0..15 {
        a.send(read, &mut [segment(result, 0, LONG)]).unwrap();
    }
    read.send_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
    a.send(read, &mut [segment(result, 0, LONG)]).unwrap();
    assert_eq!(
        a.send(read, &mut [segment(result, 0, LONG)]),
        Err(Errno::ENOMEM)
    );
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    assert!(
        a.poll().is_none(),
        "what is not signalled does not complete"
    );
    a.send(read, &mut [segment(result, 0, LONG)]).unwrap();
    assert_eq!(near, far);
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    a.deregister(result);
    b.deregister(target);
    a.close();
    b.close();
    fake.assert_clean();
}
