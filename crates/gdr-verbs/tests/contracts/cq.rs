//! ibv_create_cq(3), ibv_poll_cq(3) and ibv_resize_cq(3).

use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, Shared, errno};

fn make(side: &Side, entries: i32) -> *mut ibv_cq {
    let (own, channel) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the context is open.
    let queue = unsafe { verbs::ibv_create_cq(side.context, entries, own, channel, 0) };
    assert!(!queue.is_null());
    queue
}

#[test]
fn a_queue_has_at_least_the_size_that_was_asked_for() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let queue = make(&side, 7);
    // SAFETY: the queue is alive.
    unsafe {
        assert!((*queue).cqe >= 7);
        assert_eq!(verbs::ibv_resize_cq(queue, 100), 0);
        assert!((*queue).cqe >= 100);
        assert_eq!(verbs::ibv_resize_cq(queue, 0), libc::EINVAL);
        assert!((*queue).cqe >= 100);
        assert_eq!(verbs::ibv_destroy_cq(queue), 0);
        assert_eq!(verbs::ibv_destroy_cq(queue), libc::EINVAL);
        assert_eq!(verbs::ibv_resize_cq(queue, 1), libc::EINVAL);
        assert_eq!(verbs::ibv_destroy_cq(side.queue), libc::EBUSY);
    }
    side.close();
}

#[test]
fn a_creation_that_fails_returns_null_and_sets_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let nothing = ptr::null_mut();
    for (entries, channel, vector) in [
        (0, ptr::null_mut(), 0),
        (-1, ptr::null_mut(), 0),
        (i32::MAX, ptr::null_mut(), 0),
        (4, ptr::null_mut(), 1),
        (4, ptr::null_mut(), -1),
        (4, side.queue.cast(), 0),
    ] {
        // SAFETY: the context is open, and the library checks the handles.
        let queue =
            unsafe { verbs::ibv_create_cq(side.context, entries, nothing, channel, vector) };
        assert!(queue.is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}

#[test]
fn a_poll_returns_how_many_completions_it_took_or_a_negative_value() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    side.to_init().unwrap();
    (0..5).for_each(|id| side.receive(id, &mut []).unwrap());
    side.to_error().unwrap();
    let mut wc = [ibv_wc::default(); 8];
    let room = wc.as_mut_ptr();
    // SAFETY: there is room for the requested completions; the library checks a queue that was destroyed.
    unsafe {
        assert_eq!(verbs::poll_cq(side.queue, 0, room), 0);
        assert_eq!(verbs::poll_cq(side.queue, -1, room), 0);
        assert_eq!(verbs::poll_cq(side.queue, 3, room), 3);
        assert_eq!([0, 1, 2], [0, 1, 2].map(|n: usize| wc[n].wr_id));
        assert_eq!(verbs::poll_cq(side.queue, 8, room), 2);
        assert_eq!([3, 4], [0, 1].map(|n: usize| wc[n].wr_id));
        assert_eq!(verbs::poll_cq(side.queue, 8, room), 0);
        let other = make(&side, 4);
        let poll = (*side.context).ops.poll_cq.unwrap();
        assert_eq!(verbs::ibv_destroy_cq(other), 0);
        assert!(poll(other, 8, room) < 0);
    }
    side.close();
}

#[test]
fn two_threads_that_poll_get_each_completion_once() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    side.to_init().unwrap();
    (0..16).for_each(|id| side.receive(id, &mut []).unwrap());
    side.to_error().unwrap();
    let (queue, seen) = (Shared(side.queue), [(); 16].map(|()| AtomicU32::new(0)));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut wc = ibv_wc::default();
                // SAFETY: the queue exists, and there is room for one completion.
                while unsafe { verbs::poll_cq(queue.get(), 1, &mut wc) } == 1 {
                    seen[wc.wr_id as usize].fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
    side.close();
}

#[test]
fn queues_are_made_polled_and_destroyed_while_other_threads_poll_theirs() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (queues, is_over) = (
        [(); 2].map(|()| Shared(make(&side, 4))),
        AtomicBool::new(false),
    );
    thread::scope(|scope| {
        let pollers = queues.each_ref().map(|queue| {
            scope.spawn(|| {
                let (mut wc, mut polls) = (ibv_wc::default(), 0);
                while !is_over.load(Ordering::Relaxed) {
                    // SAFETY: the queue exists, and there is room for one completion.
                    assert_eq!(unsafe { verbs::poll_cq(queue.get(), 1, &mut wc) }, 0);
                    polls += 1;
                }
                polls
            })
        });
        for round in 0..500 {
            let queue = make(&side, 4);
            let mut wc = ibv_wc::default();
            // So many that lookups have become fast again before some of the changes.
            for _ in 0..round % 50 {
                // SAFETY: the queue exists, and there is room for one completion.
                assert_eq!(unsafe { verbs::poll_cq(queue, 1, &mut wc) }, 0);
            }
            // SAFETY: nothing else uses the queue.
            assert_eq!(unsafe { verbs::ibv_destroy_cq(queue) }, 0);
        }
        is_over.store(true, Ordering::Relaxed);
        for poller in pollers {
            assert!(poller.join().unwrap() > 0);
        }
    });
    for queue in queues {
        // SAFETY: nothing else uses the queue.
        assert_eq!(unsafe { verbs::ibv_destroy_cq(queue.get()) }, 0);
    }
    side.close();
}

/// Completes receives of a queue pair with these completion queues, more of them than the second queue holds.
fn overrun(side: &Side, sends: *mut ibv_cq, receives: *mut ibv_cq) {
    let mut init = ibv_qp_init_attr {
        send_cq: sends,
        recv_cq: receives,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..Default::default()
    };
    init.cap.max_recv_wr = 8;
    // SAFETY: the objects are alive.
    let pair = unsafe { verbs::ibv_create_qp(side.domain, &mut init) };
    let other = Side { pair, ..*side };
    other.to_init().unwrap();
    (0..8).for_each(|id| other.receive(id, &mut []).unwrap());
    other.to_error().unwrap();
    wait_until(|| {
        let mut wc = ibv_wc::default();
        // SAFETY: the queue is alive, and there is room for one.
        unsafe { verbs::poll_cq(receives, 1, &mut wc) < 0 }
    });
    // SAFETY: nothing else uses the queue pair.
    assert_eq!(unsafe { verbs::ibv_destroy_qp(pair) }, 0);
}

#[test]
fn the_event_of_an_overrun_names_the_queue_that_cannot_be_used_any_more() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // Queues of the same size; a queue that is resized to the size of the other; a queue that is resized from it.
    for (sends, receives, resized) in [(4, 4, None), (4, 9, Some(4)), (4, 4, Some(3))] {
        let (sends, receives) = (make(&side, sends), make(&side, receives));
        if let Some(entries) = resized {
            // SAFETY: the queue is alive.
            assert_eq!(unsafe { verbs::ibv_resize_cq(receives, entries) }, 0);
        }
        overrun(&side, sends, receives);
        let expected = [(ibv_event_type::IBV_EVENT_CQ_ERR, receives.addr())];
        assert_eq!(verbs::events(side.context), expected);
        let mut wc = ibv_wc::default();
        // SAFETY: the queues are alive, and there is room for one.
        unsafe {
            assert!(verbs::poll_cq(receives, 1, &mut wc) < 0);
            assert_eq!(verbs::poll_cq(sends, 1, &mut wc), 0);
            assert_eq!(verbs::ibv_destroy_cq(sends), 0);
            assert_eq!(verbs::ibv_destroy_cq(receives), 0);
        }
    }
    side.close();
}
