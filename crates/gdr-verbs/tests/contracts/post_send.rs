//! ibv_post_send(3).

use std::collections::BTreeSet;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, Shared};

/// The number of requests that fit in the send queue of a [`Side`], and the segments of a request.
const ROOM: usize = 16;
const SEGMENTS: usize = 2;

/// Returns a side that is connected to itself.
fn looped(kind: ibv_qp_type) -> Side {
    let side = Side::new(kind);
    side.to_init().unwrap();
    side.to_rtr(side.number()).unwrap();
    side.to_rts().unwrap();
    side
}

/// Returns a list of zero-length WRITEs.
fn list(count: usize) -> Vec<ibv_send_wr> {
    let mut list: Vec<_> = (0..count as u64)
        .map(|id| ibv_send_wr {
            wr_id: id,
            opcode: ibv_wr_opcode::IBV_WR_RDMA_WRITE,
            send_flags: ibv_send_flags::IBV_SEND_SIGNALED.0,
            ..Default::default()
        })
        .collect();
    link(&mut list);
    list
}

fn link(list: &mut [ibv_send_wr]) {
    let first = list.as_mut_ptr();
    for n in 1..list.len() {
        // SAFETY: both are in the list.
        unsafe { (*first.add(n - 1)).next = first.add(n) };
    }
}

/// Posts a list; returns the status, and the index of `bad_wr` in the list.
fn post(side: &Side, list: &mut [ibv_send_wr]) -> (i32, Option<usize>) {
    let (first, mut bad) = (list.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the queue pair and the list exist.
    let status = unsafe { verbs::post_send(side.pair, first, &mut bad) };
    // SAFETY: `bad` points into the list.
    let at = (!bad.is_null()).then(|| unsafe { bad.offset_from(first) } as usize);
    (status, at)
}

#[test]
fn processing_stops_at_the_first_failure_and_what_is_before_is_posted() {
    let side = looped(ibv_qp_type::IBV_QPT_RC);
    type Fail = fn(&mut ibv_send_wr);
    let failures: [(Fail, i32); 4] = [
        (|wr| wr.opcode = ibv_wr_opcode(99), libc::EOPNOTSUPP),
        (|wr| wr.num_sge = SEGMENTS as i32 + 1, libc::EINVAL),
        (|wr| wr.num_sge = -1, libc::EINVAL),
        (
            |wr| {
                wr.opcode = ibv_wr_opcode::IBV_WR_RDMA_READ;
                wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            },
            libc::EINVAL,
        ),
    ];
    for (fail, errno) in failures {
        let mut list = list(5);
        fail(&mut list[2]);
        assert_eq!(post(&side, &mut list), (errno, Some(2)));
        for id in 0..2 {
            let done = side.completion();
            assert_eq!(
                (done.wr_id, done.status),
                (id, ibv_wc_status::IBV_WC_SUCCESS)
            );
        }
        assert!(side.poll().is_none());
    }
    assert_eq!(post(&side, &mut list(1)), (0, None));
    assert_eq!(side.completion().wr_id, 0);
    side.close();
}

#[test]
fn a_list_that_is_longer_than_the_queue_is_posted_as_far_as_there_is_room() {
    let side = looped(ibv_qp_type::IBV_QPT_RC);
    let posted = post(&side, &mut list(ROOM + 3));
    assert_eq!(posted, (libc::ENOMEM, Some(ROOM)));
    for id in 0..ROOM as u64 {
        assert_eq!(side.completion().wr_id, id);
    }
    side.close();
}

#[test]
fn a_list_without_an_end_is_posted_as_far_as_there_is_room() {
    for kind in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
        let side = looped(kind);
        let mut circle = list(5);
        circle[4].next = circle.as_mut_ptr();
        assert_eq!(post(&side, &mut circle), (libc::ENOMEM, Some(ROOM % 5)));
        for n in 0..ROOM {
            assert_eq!(side.completion().wr_id, n as u64 % 5);
        }
        // A queue in ERR completes each request at once, so it never fills up; the list is still cut at the size of the
        // queue.
        side.to_error().unwrap();
        assert_eq!(post(&side, &mut circle), (libc::ENOMEM, Some(ROOM % 5)));
        for _ in 0..ROOM {
            let status = side.completion().status;
            assert_eq!(status, ibv_wc_status::IBV_WC_WR_FLUSH_ERR);
        }
        assert!(side.poll().is_none());
        side.close();
    }
}

#[test]
fn a_handle_of_nothing_and_a_state_that_cannot_send_name_the_first_request() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    assert_eq!(post(&side, &mut list(2)), (libc::EINVAL, Some(0)));
    let (mut list, mut bad) = (list(2), ptr::null_mut());
    // SAFETY: the context is open; the handle is not a queue pair, which the library checks.
    let status = unsafe {
        let post = (*side.context).ops.post_send.unwrap();
        post(side.queue.cast(), list.as_mut_ptr(), &mut bad)
    };
    assert_eq!((status, bad), (libc::EINVAL, list.as_mut_ptr()));
    side.close();
}

#[test]
fn an_operation_that_the_service_has_not_is_refused() {
    use ibv_wr_opcode as Op;
    let refused = [
        (ibv_qp_type::IBV_QPT_UC, Op::IBV_WR_RDMA_READ),
        (ibv_qp_type::IBV_QPT_UC, Op::IBV_WR_ATOMIC_CMP_AND_SWP),
        (ibv_qp_type::IBV_QPT_UC, Op::IBV_WR_ATOMIC_FETCH_AND_ADD),
        (ibv_qp_type::IBV_QPT_UD, Op::IBV_WR_RDMA_WRITE),
        (ibv_qp_type::IBV_QPT_UD, Op::IBV_WR_RDMA_WRITE_WITH_IMM),
        (ibv_qp_type::IBV_QPT_UD, Op::IBV_WR_RDMA_READ),
        (ibv_qp_type::IBV_QPT_UD, Op::IBV_WR_ATOMIC_FETCH_AND_ADD),
    ];
    for (kind, opcode) in refused {
        let side = looped(kind);
        let mut words = [0; 1];
        let region = side.register(&mut words);
        let mut segments = [segment(region, 0, 8)];
        let wr = ibv_send_wr {
            opcode,
            ..Default::default()
        };
        let posted = side.send(wr, &mut segments);
        assert_eq!(posted, Err(Errno::EINVAL), "{kind} {opcode}");
        deregister(region);
        side.close();
    }
}

#[test]
fn more_segments_than_the_queue_pair_has_are_not_read() {
    let side = looped(ibv_qp_type::IBV_QPT_RC);
    let unmapped = ptr::without_provenance_mut(8);
    for count in [SEGMENTS as i32 + 1, 1 << 16, i32::MAX, -1, i32::MIN] {
        let mut wr = list(1);
        (wr[0].sg_list, wr[0].num_sge) = (unmapped, count);
        assert_eq!(post(&side, &mut wr), (libc::EINVAL, Some(0)), "{count}");
    }
    side.close();
}

#[test]
fn inline_bytes_are_copied_before_the_call_returns_and_need_no_key() {
    let side = looped(ibv_qp_type::IBV_QPT_RC);
    let mut target = vec![0_u64; 8];
    let region = side.register(&mut target);
    let mut bytes = *b"inline!!";
    let mut list = [ibv_sge {
        addr: bytes.as_ptr().expose_provenance() as u64,
        length: 8,
        lkey: 0xdead,
    }];
    let mut wr = request(1, ibv_wr_opcode::IBV_WR_RDMA_WRITE, region, 0);
    wr.send_flags |= ibv_send_flags::IBV_SEND_INLINE.0;
    // Nothing is sent before the bytes have changed.
    side.to_state(ibv_qp_state::IBV_QPS_SQD).unwrap();
    side.send(wr, &mut list).unwrap();
    bytes.fill(0);
    side.to_state(ibv_qp_state::IBV_QPS_RTS).unwrap();
    assert_eq!(side.completion().status, ibv_wc_status::IBV_WC_SUCCESS);
    deregister(region);
    assert_eq!((target[0].to_ne_bytes(), bytes), (*b"inline!!", [0; 8]));
    side.close();
}

#[test]
fn requests_of_two_threads_complete_once() {
    const EACH: u64 = 300;
    let side = looped(ibv_qp_type::IBV_QPT_RC);
    let (pair, queued) = (Shared(side.pair), AtomicU64::new(0));
    let (queued, mut seen) = (&queued, BTreeSet::new());
    thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for id in thread * EACH..(thread + 1) * EACH {
                    // Limits the outstanding requests to the room in the completion queue.
                    wait_until(|| queued.load(Ordering::Relaxed) < 32);
                    queued.fetch_add(1, Ordering::Relaxed);
                    let mut wr = list(1);
                    wr[0].wr_id = id;
                    // SAFETY: the queue pair is alive.
                    wait_until(|| unsafe {
                        verbs::post_send(pair.get(), wr.as_mut_ptr(), &mut ptr::null_mut()) == 0
                    });
                }
            });
        }
        for _ in 0..2 * EACH {
            assert!(seen.insert(side.completion().wr_id));
            queued.fetch_sub(1, Ordering::Relaxed);
        }
    });
    side.close();
}
