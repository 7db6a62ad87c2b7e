//! Operations between two contexts of one process.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use gdr_verbs_sys::*;

use crate::side::*;

const WORDS: usize = 1024;

fn pattern(seed: u64) -> Vec<u64> {
    (0..WORDS as u64)
        .map(|n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ seed)
        .collect()
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn writes_gather_segments_and_reads_bring_them_back() {
    let (a, b) = sides();
    let (mut near, mut far) = (pattern(1), vec![0; WORDS]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    let write = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 3);
    let mut list = [segment(source, 16, 5000), segment(source, 0, 5)];
    a.send(write, &mut list).unwrap();
    let done = a.completion();
    assert_eq!(
        (done.wr_id, done.status),
        (1, ibv_wc_status::IBV_WC_SUCCESS)
    );
    assert_eq!(done.opcode, ibv_wc_opcode::IBV_WC_RDMA_WRITE);
    let (sent, got) = (bytes(&pattern(1)), bytes(&far));
    assert_eq!(got[..3], [0; 3]);
    assert_eq!(got[3..5003], sent[16..5016]);
    assert_eq!(got[5003..5008], sent[..5]);
    let read = request(2, ibv_wr_opcode::IBV_WR_RDMA_READ, target, 3);
    a.send(read, &mut [segment(source, 6000, 100)]).unwrap();
    let done = a.completion();
    assert_eq!((done.wr_id, done.byte_len), (2, 100));
    assert_eq!(bytes(&near)[6000..6100], sent[16..116]);
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

/// `ibv_rereg_mr`.
type Reregister =
    unsafe extern "C" fn(*mut ibv_mr, c_int, *mut ibv_pd, *mut c_void, usize, c_int) -> c_int;
const CHANGE_TRANSLATION: c_int = 1;
const CHANGE_ACCESS: c_int = 4;

#[test]
fn a_region_that_is_registered_again_keeps_the_keys_that_the_peer_has() {
    // SAFETY: verbs.h declares the function with this type.
    let reregister =
        unsafe { std::mem::transmute::<*mut c_void, Reregister>(function(c"ibv_rereg_mr")) };
    let (a, b) = sides();
    let (mut near, mut far, mut new) = (vec![5], vec![0_u64], vec![0_u64]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    // SAFETY: the region is alive.
    let key = unsafe { target.as_ref() }.rkey;
    let again = |flags, address: &mut Vec<u64>, access: ibv_access_flags| {
        let (domain, access) = (std::ptr::null_mut(), access.0.cast_signed());
        let address = address.as_mut_ptr().cast();
        // SAFETY: the region and the words exist.
        unsafe { reregister(target.as_ptr(), flags, domain, address, 8, access) }
    };
    assert_eq!(again(CHANGE_TRANSLATION, &mut new, all_access()), 0);
    let write = |id| {
        let mut write = request(id, ibv_wr_opcode::IBV_WR_RDMA_WRITE, target, 0);
        write.wr.rdma.rkey = key;
        a.send(write, &mut [segment(source, 0, 8)]).unwrap();
        a.completion().status
    };
    assert_eq!(write(1), ibv_wc_status::IBV_WC_SUCCESS);
    assert_eq!((far[0], new[0]), (0, 5));
    let local = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE;
    assert_eq!(again(CHANGE_ACCESS, &mut new, local), 0);
    assert_eq!(write(2), ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

#[test]
fn messages_fill_receives_in_order_with_their_immediates() {
    let (a, b) = sides();
    let (mut near, mut far) = (pattern(2), vec![0; WORDS]);
    let (source, target) = (a.register(&mut near), b.register(&mut far));
    b.receive(10, &mut [segment(target, 0, 64), segment(target, 128, 64)])
        .unwrap();
    b.receive(11, &mut []).unwrap();
    let mut send = request(1, ibv_wr_opcode::IBV_WR_SEND_WITH_IMM, target, 0);
    send.__bindgen_anon_1.imm_data = 0xcafe_u32.to_be();
    a.send(send, &mut [segment(source, 0, 100)]).unwrap();
    let mut write = request(2, ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM, target, 4096);
    write.__bindgen_anon_1.imm_data = 0xbeef_u32.to_be();
    write.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    a.send(write, &mut [segment(source, 0, 8)]).unwrap();
    let received = [b.completion(), b.completion()].map(|wc| {
        // SAFETY: both completions have an immediate.
        let immediate = u32::from_be(unsafe { wc.__bindgen_anon_1.imm_data });
        let flags = ibv_wc_flags::IBV_WC_WITH_IMM | ibv_wc_flags::IBV_WC_GRH;
        assert_eq!(wc.wc_flags, flags.0);
        (wc.wr_id, wc.opcode, wc.byte_len, immediate)
    });
    let expected = [
        (10, ibv_wc_opcode::IBV_WC_RECV, 100, 0xcafe),
        (11, ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM, 8, 0xbeef),
    ];
    assert_eq!(received, expected);
    let (sent, got) = (bytes(&near), bytes(&far));
    assert_eq!(got[..64], sent[..64]);
    assert_eq!(got[128..164], sent[64..100]);
    assert_eq!(got[4096..4104], sent[..8]);
    deregister(source);
    deregister(target);
    a.close();
    b.close();
}

/// rxe and mlx5 behave like this: each packet has this header, whatever the service.
#[test]
fn received_messages_had_a_network_header_and_requests_that_were_sent_had_none() {
    for kind in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
        let (a, b) = sides_of(kind);
        let (mut near, mut far) = (pattern(3), vec![0; WORDS]);
        let (source, target) = (a.register(&mut near), b.register(&mut far));
        b.receive(1, &mut [segment(target, 0, 64)]).unwrap();
        let send = request(2, ibv_wr_opcode::IBV_WR_SEND, target, 0);
        a.send(send, &mut [segment(source, 0, 64)]).unwrap();
        let flags = [b.completion(), a.completion()].map(|wc| wc.wc_flags);
        assert_eq!(flags, [ibv_wc_flags::IBV_WC_GRH.0, 0], "{kind:?}");
        // A failed receive has no message, and therefore no header.
        b.receive(3, &mut []).unwrap();
        b.to_error().unwrap();
        let flushed = b.completion();
        assert_eq!(flushed.status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        assert_eq!(flushed.wc_flags, 0, "{kind:?}");
        deregister(source);
        deregister(target);
        a.close();
        b.close();
    }
}

#[test]
fn a_queue_pair_has_as_many_reads_outstanding_as_the_device_allows() {
    let (a, b) = sides();
    // The test requested 128.
    assert_eq!(a.attributes().max_rd_atomic, 16);
    a.close();
    b.close();
}

#[test]
fn atomics_return_the_previous_value() {
    let (a, b) = sides();
    let (mut near, mut far) = (vec![0; 2], vec![40_u64]);
    let (result, target) = (a.register(&mut near), b.register(&mut far));
    let (key, address) = {
        // SAFETY: the region is alive.
        let region = unsafe { target.as_ref() };
        (region.rkey, region.addr.addr() as u64)
    };
    let mut add = request(1, ibv_wr_opcode::IBV_WR_ATOMIC_FETCH_AND_ADD, target, 0);
    let mut swap = request(2, ibv_wr_opcode::IBV_WR_ATOMIC_CMP_AND_SWP, target, 0);
    for (wr, compare_add, swap) in [(&mut add, 2, 0), (&mut swap, 42, 7)] {
        wr.wr.atomic.remote_addr = address;
        wr.wr.atomic.compare_add = compare_add;
        wr.wr.atomic.swap = swap;
        wr.wr.atomic.rkey = key;
    }
    a.send(add, &mut [segment(result, 0, 8)]).unwrap();
    a.send(swap, &mut [segment(result, 8, 8)]).unwrap();
    let kinds = [a.completion(), a.completion()].map(|wc| wc.opcode);
    let expected = [
        ibv_wc_opcode::IBV_WC_FETCH_ADD,
        ibv_wc_opcode::IBV_WC_COMP_SWAP,
    ];
    assert_eq!(kinds, expected);
    deregister(result);
    deregister(target);
    assert_eq!((near, far), (vec![40, 42], vec![7]));
    a.close();
    b.close();
}

#[test]
fn a_completion_event_comes_once_for_each_request_of_one() {
    let (a, b) = sides();
    let verbs = library();
    // SAFETY: the objects are alive until they are destroyed below.
    unsafe {
        let channel = verbs.ibv_create_comp_channel(a.context).unwrap().as_ptr();
        let own = std::ptr::without_provenance_mut(7);
        let queue = verbs
            .ibv_create_cq(a.context, 4, own, channel, 0)
            .unwrap()
            .as_ptr();
        ibv_req_notify_cq(queue, Notify::Next).unwrap();
        let mut attr = ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            qp_type: ibv_qp_type::IBV_QPT_RC,
            ..Default::default()
        };
        attr.cap.max_recv_wr = 2;
        let pair = verbs.ibv_create_qp(a.domain, &mut attr).unwrap().as_ptr();
        let with_events = Side { pair, queue, ..a };
        with_events.to_init().unwrap();
        with_events.receive(1, &mut []).unwrap();
        with_events.receive(2, &mut []).unwrap();
        // Both receives are flushed, with one event.
        with_events.to_error().unwrap();
        let (mut of, mut context) = (std::ptr::null_mut(), std::ptr::null_mut());
        verbs
            .ibv_get_cq_event(channel, &mut of, &mut context)
            .unwrap();
        assert_eq!((of, context.addr()), (queue, 7));
        verbs.ibv_ack_cq_events(queue, 1);
        assert_eq!(with_events.poll().map(|wc| wc.wr_id), Some(1));
        assert_eq!(
            verbs.ibv_destroy_cq(queue).unwrap_err().errno(),
            Errno::EBUSY
        );
        verbs.ibv_destroy_qp(pair).unwrap();
        verbs.ibv_destroy_cq(queue).unwrap();
        verbs.ibv_destroy_comp_channel(channel).unwrap();
    }
    a.close();
    b.close();
}

/// Destroys an object in another thread, acknowledges its event once the destruction has begun, and returns how long
/// the destruction took.
fn destroyed_while_acknowledged(
    destroy: impl FnOnce() + Send,
    has_begun: impl Fn() -> bool,
    acknowledge: impl FnOnce(),
) -> Duration {
    let start = Instant::now();
    std::thread::scope(|scope| {
        let destruction = scope.spawn(destroy);
        while !has_begun() {
            assert!(start.elapsed() < LIMIT, "the destruction did not begin");
            std::thread::yield_now();
        }
        assert!(!destruction.is_finished(), "the event was not waited for");
        acknowledge();
        destruction.join().unwrap();
    });
    start.elapsed()
}

#[test]
fn an_event_of_an_object_may_be_acknowledged_while_it_is_destroyed() {
    // Shorter than the library waits for events that are never acknowledged.
    const SOON: Duration = Duration::from_secs(10);
    let (a, b) = sides();
    let verbs = library();
    let (mut near, mut far) = (pattern(1), pattern(2));
    let (source, region) = (a.register(&mut near), b.register(&mut far));
    let mut wr = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, region, 0);
    // SAFETY: the region is alive.
    wr.wr.rdma.rkey = unsafe { region.as_ref() }.rkey ^ 1;
    a.send(wr, &mut [segment(source, 0, 8)]).unwrap();
    assert_eq!(a.completion().status, ibv_wc_status::IBV_WC_REM_ACCESS_ERR);
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open.
    unsafe { verbs.ibv_get_async_event(b.context, &mut event) }.unwrap();
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_QP_ACCESS_ERR);

    let pair = b.pair.expose_provenance();
    let handle = || std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair);
    let took = destroyed_while_acknowledged(
        // SAFETY: a queue pair that nothing else uses.
        || unsafe { verbs.ibv_destroy_qp(handle()) }.unwrap(),
        || {
            let (mut attr, mut made) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
            // SAFETY: a handle, which the library checks, and structures.
            unsafe { verbs.ibv_query_qp(handle(), &mut attr, 0, &mut made) }.is_err()
        },
        // SAFETY: the event above.
        || unsafe { verbs.ibv_ack_async_event(&mut event) },
    );
    assert!(took < SOON, "{took:?}");

    deregister(source);
    deregister(region);
    // SAFETY: each object is destroyed before what it depends on.
    unsafe {
        verbs.ibv_destroy_cq(b.queue).unwrap();
        verbs.ibv_dealloc_pd(b.domain).unwrap();
        verbs.ibv_close_device(b.context).unwrap();
    }
    a.close();
}
