//! ibv_post_recv(3) and ibv_post_srq_recv(3).

use std::ptr;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::srq::shared_queue;
use crate::verbs;

/// The number of requests that fit in each receive queue, and the segments of a request.
const ROOM: usize = 16;
const SEGMENTS: i32 = 2;

fn list(count: usize) -> Vec<ibv_recv_wr> {
    let mut list: Vec<_> = (0..count as u64)
        .map(|id| ibv_recv_wr {
            wr_id: id,
            ..Default::default()
        })
        .collect();
    let first = list.as_mut_ptr();
    for n in 1..count {
        // SAFETY: both are in the list.
        unsafe { (*first.add(n - 1)).next = first.add(n) };
    }
    list
}

/// The queue that receives are posted to.
#[derive(Clone, Copy)]
enum Queue {
    Own,
    Shared(*mut ibv_srq),
}

impl Queue {
    /// Posts a list; returns the status, and the index of `bad_wr` in the list.
    fn post(self, side: &Side, list: &mut [ibv_recv_wr]) -> (i32, Option<usize>) {
        let (first, mut bad) = (list.as_mut_ptr(), ptr::null_mut());
        // SAFETY: the queues and the list exist.
        let status = unsafe {
            match self {
                Self::Own => verbs::post_recv(side.pair, first, &mut bad),
                Self::Shared(srq) => verbs::post_srq_recv(side.context, srq, first, &mut bad),
            }
        };
        // SAFETY: `bad` points into the list.
        let at = (!bad.is_null()).then(|| unsafe { bad.offset_from(first) } as usize);
        (status, at)
    }
}

/// Runs a test on the receive queue of a queue pair in INIT, and on a shared receive queue.
fn on_each(test: impl Fn(&Side, Queue)) {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    side.to_init().unwrap();
    test(&side, Queue::Own);
    let shared = shared_queue(&side, ROOM as u32, SEGMENTS as u32);
    test(&side, Queue::Shared(shared));
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { verbs::ibv_destroy_srq(shared) }, 0);
    side.close();
}

#[test]
fn processing_stops_at_the_first_failure_and_what_is_before_is_posted() {
    on_each(|side, queue| {
        let mut some = list(5);
        some[3].num_sge = SEGMENTS + 1;
        assert_eq!(queue.post(side, &mut some), (libc::EINVAL, Some(3)));
        // Three requests are already in the queue.
        let posted = queue.post(side, &mut list(ROOM));
        assert_eq!(posted, (libc::ENOMEM, Some(ROOM - 3)));
    });
}

#[test]
fn a_list_without_an_end_is_posted_as_far_as_there_is_room() {
    on_each(|side, queue| {
        let mut circle = list(5);
        circle[4].next = circle.as_mut_ptr();
        assert_eq!(
            queue.post(side, &mut circle),
            (libc::ENOMEM, Some(ROOM % 5))
        );
        if let Queue::Own = queue {
            side.to_error().unwrap();
            for _ in 0..ROOM {
                side.completion();
            }
            assert_eq!(
                queue.post(side, &mut circle),
                (libc::ENOMEM, Some(ROOM % 5))
            );
            for _ in 0..ROOM {
                let status = side.completion().status;
                assert_eq!(status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
            }
            assert!(side.poll().is_none());
        }
    });
}

#[test]
fn more_segments_than_the_queue_has_are_not_read() {
    on_each(|side, queue| {
        let unmapped = ptr::without_provenance_mut(8);
        for count in [SEGMENTS + 1, 1 << 16, i32::MAX, -1, i32::MIN] {
            let mut wr = list(1);
            (wr[0].sg_list, wr[0].num_sge) = (unmapped, count);
            assert_eq!(
                queue.post(side, &mut wr),
                (libc::EINVAL, Some(0)),
                "{count}"
            );
        }
    });
}

#[test]
fn a_queue_pair_of_a_shared_queue_has_no_receive_queue_of_its_own() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let shared = shared_queue(&side, 4, 1);
    let mut init = ibv_qp_init_attr {
        send_cq: side.queue,
        recv_cq: side.queue,
        srq: shared,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..Default::default()
    };
    // SAFETY: the objects are alive; each is destroyed before what it depends on.
    unsafe {
        let pair = verbs::ibv_create_qp(side.domain, &mut init);
        let with_shared = Side { pair, ..side };
        with_shared.to_init().unwrap();
        let posted = Queue::Own.post(&with_shared, &mut list(1));
        assert_eq!(posted, (libc::EINVAL, Some(0)));
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        assert_eq!(verbs::ibv_destroy_srq(shared), 0);
    }
    side.close();
}

#[test]
fn the_data_of_a_datagram_begins_behind_forty_bytes_of_its_header() {
    let (a, b) = sides_of(ibv_qp_type::IBV_QPT_UD);
    let mut words = vec![u64::MAX; 8];
    let region = b.register(&mut words);
    b.receive(1, &mut [segment(region, 0, 64)]).unwrap();
    // SAFETY: the domain is alive.
    let ah = unsafe { verbs::ibv_create_ah(a.domain, &mut a.path()) };
    let mut bytes = *b"datagram";
    let mut wr = ibv_send_wr {
        opcode: ibv_wr_opcode::IBV_WR_SEND,
        send_flags: (ibv_send_flags::IBV_SEND_SIGNALED | ibv_send_flags::IBV_SEND_INLINE).0,
        ..Default::default()
    };
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = b.number();
    wr.wr.ud.remote_qkey = QKEY;
    let mut list = [ibv_sge {
        addr: bytes.as_mut_ptr().expose_provenance() as u64,
        length: 8,
        lkey: 0,
    }];
    a.send(wr, &mut list).unwrap();
    a.completion();
    let received = b.completion();
    assert_eq!((received.wr_id, received.byte_len), (1, 48));
    deregister(region);
    assert_eq!(words[5].to_ne_bytes(), *b"datagram");
    assert_eq!(words[6..], [u64::MAX; 2]);
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { verbs::ibv_destroy_ah(ah) }, 0);
    a.close();
    b.close();
}
