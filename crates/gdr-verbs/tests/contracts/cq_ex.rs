//! ibv_create_cq_ex(3).

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, Shared};

/// `IBV_CREATE_CQ_ATTR_SINGLE_THREADED`.
const SINGLE_THREADED: u32 = 1;

/// Returns a side with an extended completion queue, and that queue. The queue pair is connected to itself.
fn extended(flags: u32) -> (Side, *mut ibv_cq_ex) {
    let plain = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut wanted = ibv_cq_init_attr_ex {
        cqe: 3000,
        comp_mask: ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0,
        flags,
        ..Default::default()
    };
    // SAFETY: the objects exist, and the plain ones are not used any more.
    let (side, queue) = unsafe {
        library().ibv_destroy_qp(plain.pair).unwrap();
        library().ibv_destroy_cq(plain.queue).unwrap();
        let queue = ibv_create_cq_ex(plain.context, &mut wanted).unwrap();
        assert!((*queue.as_ptr()).cqe >= 3000);
        let cq = ibv_cq_ex_to_cq(queue).as_ptr();
        let mut init = ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            qp_type: plain.kind,
            ..Default::default()
        };
        init.cap.max_recv_wr = 2000;
        let pair = verbs::ibv_create_qp(plain.domain, &mut init);
        let side = Side {
            pair,
            queue: cq,
            ..plain
        };
        (side, queue.as_ptr())
    };
    side.to_init().unwrap();
    (side, queue)
}

/// Completes receives with these identifiers, by flushing them.
fn complete(side: &Side, ids: std::ops::Range<u64>) {
    for id in ids {
        side.receive(id, &mut []).unwrap();
    }
    side.to_error().unwrap();
}

#[test]
fn two_threads_that_poll_get_each_completion_once() {
    const COUNT: u64 = 2000;
    let (side, queue) = extended(0);
    let queue = Shared(queue);
    complete(&side, 0..COUNT);
    let seen: Vec<_> = (0..COUNT).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                // SAFETY: the queue is alive; its identifier is read while it is polled.
                unsafe {
                    while ibv_start_poll(queue.get()).unwrap() == Polled::Completion {
                        for _ in 0..3 {
                            let id = (*queue.get()).wr_id as usize;
                            thread::yield_now();
                            assert_eq!((*queue.get()).wr_id as usize, id);
                            seen[id].fetch_add(1, Ordering::Relaxed);
                            if ibv_next_poll(queue.get()).unwrap() == Polled::Empty {
                                ibv_end_poll(queue.get()).unwrap();
                                return;
                            }
                        }
                        let id = (*queue.get()).wr_id as usize;
                        seen[id].fetch_add(1, Ordering::Relaxed);
                        ibv_end_poll(queue.get()).unwrap();
                    }
                }
            });
        }
    });
    assert!(seen.iter().all(|seen| seen.load(Ordering::Relaxed) == 1));
    side.close();
}

#[test]
fn no_other_thread_polls_before_the_end_unless_the_program_has_a_single_one() {
    for flags in [0, SINGLE_THREADED] {
        let (side, queue) = extended(flags);
        let (queue, both) = (Shared(queue), Barrier::new(2));
        complete(&side, 0..2);
        let has_begun = AtomicBool::new(false);
        thread::scope(|scope| {
            // SAFETY: the queue is alive.
            let first = unsafe { ibv_start_poll(queue.get()) };
            assert_eq!(first, Ok(Polled::Completion));
            let other = scope.spawn(|| {
                both.wait();
                // SAFETY: the queue outlives this thread.
                let second = unsafe { ibv_start_poll(queue.get()) };
                has_begun.store(true, Ordering::SeqCst);
                assert_eq!(second, Ok(Polled::Completion));
                // SAFETY: this thread has begun to poll.
                unsafe { ibv_end_poll(queue.get()).unwrap() };
            });
            both.wait();
            if flags == SINGLE_THREADED {
                return other.join().unwrap();
            }
            for _ in 0..200 {
                thread::yield_now();
                assert!(!has_begun.load(Ordering::SeqCst));
            }
            // SAFETY: as above.
            unsafe {
                assert_eq!((*queue.get()).wr_id, 0);
                ibv_end_poll(queue.get()).unwrap();
            }
        });
        side.close();
    }
}

#[test]
fn a_start_without_a_completion_begins_nothing_and_a_next_without_one_ends_nothing() {
    let (side, queue) = extended(0);
    let queue = Shared(queue);
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the queue is alive.
    let (start, next, end) = unsafe {
        let cq = &*queue.get();
        (
            cq.start_poll.unwrap(),
            cq.next_poll.unwrap(),
            cq.end_poll.unwrap(),
        )
    };
    // SAFETY: as above; the structure is readable.
    unsafe {
        assert_eq!(start(queue.get(), &mut attr), libc::ENOENT);
        assert_eq!(next(queue.get()), libc::EINVAL, "not begun");
        end(queue.get());
    }
    thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            // SAFETY: the queue outlives this thread.
            unsafe { start(queue.get(), &mut attr) }
        });
        assert_eq!(other.join().unwrap(), libc::ENOENT);
    });
    complete(&side, 0..2);
    // SAFETY: as above.
    unsafe {
        assert_eq!(start(queue.get(), &mut attr), 0);
        assert_eq!(next(queue.get()), 0);
        assert_eq!((*queue.get()).wr_id, 1);
        assert_eq!(next(queue.get()), libc::ENOENT);
        assert_eq!(next(queue.get()), libc::ENOENT, "still begun");
        end(queue.get());
        assert_eq!(start(queue.get(), &mut attr), libc::ENOENT, "remains valid");
        let mut unknown = ibv_poll_cq_attr { comp_mask: 1 };
        assert_eq!(start(queue.get(), &mut unknown), libc::EINVAL);
    }
    side.close();
}

#[test]
fn a_thread_that_waits_to_poll_a_destroyed_queue_is_refused() {
    let (side, queue) = extended(0);
    let (queue, both) = (Shared(queue), Barrier::new(2));
    complete(&side, 0..2);
    thread::scope(|scope| {
        // SAFETY: the queue is alive.
        let (start, begun) = unsafe { ((*queue.get()).start_poll, ibv_start_poll(queue.get())) };
        assert_eq!(begun, Ok(Polled::Completion));
        let both = &both;
        let other = scope.spawn(move || {
            let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
            both.wait();
            // SAFETY: a handle, which the library checks.
            unsafe { start.unwrap()(queue.get(), &mut attr) }
        });
        both.wait();
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            library().ibv_destroy_qp(side.pair).unwrap();
            library().ibv_destroy_cq(side.queue).unwrap();
        }
        assert_eq!(other.join().unwrap(), libc::EINVAL);
    });
    // SAFETY: nothing uses the domain and the device any more.
    unsafe {
        library().ibv_dealloc_pd(side.domain).unwrap();
        library().ibv_close_device(side.context).unwrap();
    }
}

#[test]
fn a_creation_that_fails_returns_null_and_sets_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let wanted = || ibv_cq_init_attr_ex {
        cqe: 4,
        ..Default::default()
    };
    /// `IBV_WC_EX_WITH_FLOW_TAG`.
    const FLOW_TAG: u64 = 1 << 9;
    /// `IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN`.
    const IGNORE_OVERRUN: u32 = 2;
    let refused = [
        (ibv_cq_init_attr_ex { cqe: 0, ..wanted() }, Errno::EINVAL),
        (
            ibv_cq_init_attr_ex {
                cqe: u32::MAX,
                ..wanted()
            },
            Errno::EINVAL,
        ),
        (
            ibv_cq_init_attr_ex {
                comp_vector: 1,
                ..wanted()
            },
            Errno::EINVAL,
        ),
        (
            ibv_cq_init_attr_ex {
                wc_flags: FLOW_TAG,
                ..wanted()
            },
            Errno::EOPNOTSUPP,
        ),
        (
            ibv_cq_init_attr_ex {
                comp_mask: 1,
                flags: IGNORE_OVERRUN,
                ..wanted()
            },
            Errno::EOPNOTSUPP,
        ),
    ];
    for (mut wanted, errno) in refused {
        // SAFETY: the context is open.
        let made = unsafe { ibv_create_cq_ex(side.context, &mut wanted) };
        assert_eq!(made.unwrap_err().errno(), errno);
    }
    side.close();
}
