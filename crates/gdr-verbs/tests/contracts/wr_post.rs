//! ibv_wr_post(3).

use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, mpsc};
use std::thread;

use gdr_verbs_sys::ibv_qp_create_send_ops_flags as Operations;
use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, Shared};

/// The number of requests that fit in the send queue.
const ROOM: u64 = 4;

/// Returns a side whose queue pair has the extended interface, and that interface. Every request generates a
/// completion.
fn extended(kind: ibv_qp_type, room: u32) -> (Side, *mut ibv_qp_ex) {
    let plain = Side::new(kind);
    let send = Operations::IBV_QP_EX_WITH_SEND;
    let operations = match kind {
        ibv_qp_type::IBV_QPT_UD => send,
        _ => send | Operations::IBV_QP_EX_WITH_RDMA_WRITE,
    };
    let mask = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD
        | ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    let mut init = ibv_qp_init_attr_ex {
        send_cq: plain.queue,
        recv_cq: plain.queue,
        qp_type: kind,
        sq_sig_all: 1,
        pd: plain.domain,
        comp_mask: mask.0,
        send_ops_flags: u64::from(operations.0),
        ..Default::default()
    };
    init.cap.max_send_wr = room;
    init.cap.max_recv_wr = 4;
    init.cap.max_inline_data = 64;
    // SAFETY: the objects exist, and the plain queue pair is not used any more.
    unsafe {
        library().ibv_destroy_qp(plain.pair).unwrap();
        let made = library().ibv_create_qp_ex(plain.context, &mut init);
        let pair = made.unwrap().as_ptr();
        let side = Side { pair, ..plain };
        (side, verbs::ibv_qp_to_qp_ex(pair))
    }
}

/// Returns a side that is connected to itself.
fn looped(kind: ibv_qp_type, room: u32) -> (Side, *mut ibv_qp_ex) {
    let (side, extended) = extended(kind, room);
    side.to_init().unwrap();
    side.to_rtr(side.number()).unwrap();
    side.to_rts().unwrap();
    (side, extended)
}

/// Adds a zero-length request.
///
/// # Safety
/// The queue pair exists, and its section has begun.
unsafe fn add(qp: *mut ibv_qp_ex, id: u64) {
    // SAFETY: the contract of this function.
    unsafe {
        (*qp).wr_id = id;
        (*qp).wr_flags = ibv_send_flags::IBV_SEND_SIGNALED.0;
        ibv_wr_rdma_write(qp, 0, 0).unwrap();
    }
}

/// Sets the destination of the last request.
///
/// # Safety
/// The queue pair exists, and its section has begun.
unsafe fn set_address(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32) {
    // SAFETY: the contract of this function.
    unsafe { (*qp).wr_set_ud_addr.unwrap()(qp, ah, number, QKEY) };
}

/// Posts a whole batch.
///
/// # Safety
/// The queue pair exists.
unsafe fn batch(qp: *mut ibv_qp_ex, ids: impl IntoIterator<Item = u64>) -> Result<(), Errno> {
    // SAFETY: the contract of this function.
    unsafe {
        ibv_wr_start(qp).unwrap();
        ids.into_iter().for_each(|id| add(qp, id));
        ibv_wr_complete(qp).map_err(|error| error.errno())
    }
}

#[test]
fn batches_of_two_threads_are_whole_and_complete_once() {
    const BATCHES: u64 = 100;
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, 16);
    let (qp, queued) = (Shared(qp), AtomicU64::new(0));
    let (queued, mut seen) = (&queued, Vec::new());
    thread::scope(|scope| {
        for thread in 0..2 {
            scope.spawn(move || {
                for first in (0..BATCHES).map(|n| (thread * BATCHES + n) * 4) {
                    wait_until(|| queued.load(Ordering::Relaxed) < 8);
                    queued.fetch_add(4, Ordering::Relaxed);
                    // The queue frees the slot of a request shortly before or after its completion.
                    // SAFETY: the queue pair is alive.
                    wait_until(|| unsafe { batch(qp.get(), first..first + 4) }.is_ok());
                }
            });
        }
        for _ in 0..2 * BATCHES * 4 {
            let done = side.completion();
            assert_eq!(done.status, ibv_wc_status::IBV_WC_SUCCESS);
            seen.push(done.wr_id);
            queued.fetch_sub(1, Ordering::Relaxed);
        }
    });
    // The requests of one batch are not interleaved with another batch.
    for whole in seen.chunks(4) {
        let first = whole[0];
        assert_eq!(first % 4, 0);
        assert_eq!(whole, [first, first + 1, first + 2, first + 3]);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..2 * BATCHES * 4).collect::<Vec<_>>());
    side.close();
}

#[test]
fn no_other_thread_enters_before_complete_or_abort() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, 16);
    let qp = Shared(qp);
    for aborts in [true, false] {
        let (has_entered, both) = (AtomicBool::new(false), Barrier::new(2));
        // SAFETY: the queue pair is alive.
        unsafe { ibv_wr_start(qp.get()).unwrap() };
        thread::scope(|scope| {
            scope.spawn(|| {
                both.wait();
                // SAFETY: the queue pair outlives this thread.
                unsafe { ibv_wr_start(qp.get()).unwrap() };
                has_entered.store(true, Ordering::SeqCst);
                // SAFETY: this thread's section has begun.
                unsafe {
                    add(qp.get(), 2);
                    ibv_wr_complete(qp.get()).unwrap();
                }
            });
            both.wait();
            for _ in 0..200 {
                thread::yield_now();
                assert!(!has_entered.load(Ordering::SeqCst));
            }
            // SAFETY: this thread's section has begun.
            unsafe {
                add(qp.get(), 1);
                assert!(!has_entered.load(Ordering::SeqCst));
                match aborts {
                    true => ibv_wr_abort(qp.get()).unwrap(),
                    false => ibv_wr_complete(qp.get()).unwrap(),
                }
            }
        });
        if !aborts {
            assert_eq!(side.completion().wr_id, 1);
        }
        assert_eq!(side.completion().wr_id, 2);
    }
    side.close();
}

#[test]
fn nothing_is_executed_before_complete_returns_success() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, 4);
    // SAFETY: the queue pair is alive.
    unsafe {
        ibv_wr_start(qp).unwrap();
        add(qp, 1);
        assert!(side.poll().is_none());
        ibv_wr_abort(qp).unwrap();
        batch(qp, [2]).unwrap();
    }
    assert_eq!(side.completion().wr_id, 2);
    assert!(side.poll().is_none());
    side.close();
}

/// A function that adds requests which cannot all be posted, and the errno of the batch.
type Refused = (unsafe fn(*mut ibv_qp_ex), Errno);

/// # Safety
/// Same as [`add`].
unsafe fn add_too_many(qp: *mut ibv_qp_ex) {
    for id in 0..=ROOM {
        // SAFETY: the contract of this function.
        unsafe { add(qp, id) };
    }
}

/// # Safety
/// Same as [`add`].
unsafe fn add_too_long(qp: *mut ibv_qp_ex) {
    let mut bytes = [0_u8; 65];
    // SAFETY: the contract of this function; the bytes are readable.
    unsafe {
        add(qp, 0);
        ibv_wr_set_inline_data(qp, bytes.as_mut_ptr().cast(), bytes.len()).unwrap();
        add(qp, 1);
    }
}

/// # Safety
/// Same as [`add`].
unsafe fn add_too_scattered(qp: *mut ibv_qp_ex) {
    let list = [ibv_sge::default(); 33];
    // SAFETY: the contract of this function; the list has this length.
    unsafe {
        add(qp, 0);
        add(qp, 1);
        ibv_wr_set_sge_list(qp, list.len(), list.as_ptr()).unwrap();
    }
}

#[test]
fn a_batch_with_a_failure_is_aborted_as_a_whole() {
    let refused: [Refused; 3] = [
        (add_too_many, Errno::ENOMEM),
        (add_too_long, Errno::ENOMEM),
        (add_too_scattered, Errno::EINVAL),
    ];
    for kind in [ibv_qp_type::IBV_QPT_RC, ibv_qp_type::IBV_QPT_UC] {
        let (side, qp) = looped(kind, ROOM as u32);
        for (build, errno) in refused {
            // SAFETY: the queue pair is alive, and the section has begun.
            unsafe {
                ibv_wr_start(qp).unwrap();
                build(qp);
                assert_eq!(
                    ibv_wr_complete(qp).map_err(|error| error.errno()),
                    Err(errno)
                );
                // The queue has as much room as before, and the connection still works.
                batch(qp, 10..10 + ROOM).unwrap();
            }
            for id in 10..10 + ROOM {
                let done = side.completion();
                assert_eq!(
                    (done.wr_id, done.status),
                    (id, ibv_wc_status::IBV_WC_SUCCESS)
                );
            }
        }
        // The same holds for a queue that flushes every request at once.
        side.to_error().unwrap();
        // SAFETY: the queue pair is alive.
        let posted = unsafe { batch(qp, 0..=ROOM) };
        assert_eq!(posted, Err(Errno::ENOMEM));
        assert!(side.poll().is_none());
        side.close();
    }
}

#[test]
fn a_batch_that_does_not_fit_beside_what_is_queued_is_aborted_as_a_whole() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, ROOM as u32);
    // In SQD, posted requests stay in the queue.
    side.to_state(ibv_qp_state::IBV_QPS_SQD).unwrap();
    // SAFETY: the queue pair is alive.
    unsafe {
        batch(qp, [1, 2]).unwrap();
        assert_eq!(batch(qp, [3, 4, 5]), Err(Errno::ENOMEM));
        batch(qp, [6, 7]).unwrap();
        assert_eq!(batch(qp, [8]), Err(Errno::ENOMEM));
    }
    side.to_state(ibv_qp_state::IBV_QPS_RTS).unwrap();
    let ids = [(); 4].map(|()| side.completion().wr_id);
    assert_eq!(ids, [1, 2, 6, 7]);
    assert!(side.poll().is_none());
    side.close();
}

#[test]
fn a_datagram_without_an_address_aborts_the_whole_batch() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_UD, ROOM as u32);
    // SAFETY: the queue pair and the domain are alive.
    unsafe {
        let ah = verbs::ibv_create_ah(side.domain, &mut side.path());
        ibv_wr_start(qp).unwrap();
        (*qp).wr_id = 1;
        ibv_wr_send(qp).unwrap();
        set_address(qp, ah, side.number());
        (*qp).wr_id = 2;
        ibv_wr_send(qp).unwrap();
        let refused = ibv_wr_complete(qp).unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
        assert!(side.poll().is_none());
        ibv_wr_start(qp).unwrap();
        for id in 3..3 + ROOM {
            (*qp).wr_id = id;
            ibv_wr_send(qp).unwrap();
            set_address(qp, ah, side.number());
        }
        ibv_wr_complete(qp).unwrap();
        for id in 3..3 + ROOM {
            assert_eq!(side.completion().wr_id, id);
        }
        assert_eq!(verbs::ibv_destroy_ah(ah), 0);
    }
    side.close();
}

#[test]
fn complete_without_start_posts_nothing_and_start_twice_begins_again() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, ROOM as u32);
    // SAFETY: the queue pair is alive.
    unsafe {
        add(qp, 1);
        let refused = ibv_wr_complete(qp).unwrap_err();
        assert_eq!(refused.errno(), Errno::EINVAL);
        ibv_wr_abort(qp).unwrap();
        ibv_wr_start(qp).unwrap();
        add(qp, 2);
        batch(qp, [3]).unwrap();
    }
    assert_eq!(side.completion().wr_id, 3);
    assert!(side.poll().is_none());
    side.close();
}

#[test]
fn a_section_may_be_completed_by_another_thread_and_ends_with_its_thread() {
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, ROOM as u32);
    let qp = Shared(qp);
    // SAFETY: the queue pair is alive.
    unsafe {
        ibv_wr_start(qp.get()).unwrap();
        add(qp.get(), 1);
    }
    thread::scope(|scope| {
        // SAFETY: the queue pair outlives the thread, and its section has begun.
        let other = scope.spawn(move || unsafe { ibv_wr_complete(qp.get()) }.unwrap());
        other.join().unwrap();
        assert_eq!(side.completion().wr_id, 1);
        // SAFETY: the queue pair outlives the thread, which begins the section.
        let other = scope.spawn(move || unsafe {
            ibv_wr_start(qp.get()).unwrap();
            add(qp.get(), 2);
        });
        other.join().unwrap();
    });
    // SAFETY: the queue pair is alive.
    unsafe { batch(qp.get(), [3]) }.unwrap();
    assert_eq!(side.completion().wr_id, 3);
    side.close();
}

/// Returns how often a thread of this process has gone to sleep. A thread that waits for a section sleeps repeatedly,
/// because it polls.
fn sleeps(thread: libc::pid_t) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.unwrap().trim().parse().unwrap()
}

/// Waits until a thread that has sent its number has slept a few times.
fn wait_for_waiter(said: &mpsc::Receiver<libc::pid_t>) {
    let thread = said.recv_timeout(LIMIT).unwrap();
    let before = sleeps(thread);
    wait_until(|| sleeps(thread) >= before + 4);
}

fn say_number(to: &mpsc::Sender<libc::pid_t>) {
    // SAFETY: `gettid` only returns a number.
    to.send(unsafe { libc::gettid() }).unwrap();
}

#[test]
fn a_queue_pair_may_be_destroyed_within_a_section_for_which_a_thread_waits() {
    let (kept, kept_qp) = looped(ibv_qp_type::IBV_QPT_RC, ROOM as u32);
    let (side, qp) = looped(ibv_qp_type::IBV_QPT_RC, ROOM as u32);
    let (kept_qp, qp) = (Shared(kept_qp), Shared(qp));
    let (say, said) = mpsc::channel();
    // SAFETY: the queue pairs exist until they are destroyed; their structures stay readable.
    unsafe {
        ibv_wr_start(kept_qp.get()).unwrap();
        ibv_wr_start(qp.get()).unwrap();
    }
    thread::scope(|scope| {
        let earlier_say = say.clone();
        let earlier = scope.spawn(move || {
            say_number(&earlier_say);
            // SAFETY: the queue pair outlives this thread.
            unsafe { ibv_wr_start(kept_qp.get()).unwrap() };
        });
        wait_for_waiter(&said);
        let complete = scope.spawn(move || {
            // SAFETY: as above.
            let (start, complete) = unsafe { ((*qp.get()).wr_start, (*qp.get()).wr_complete) };
            say_number(&say);
            // SAFETY: a handle, which the library checks.
            unsafe {
                start.unwrap()(qp.get());
                complete.unwrap()(qp.get())
            }
        });
        wait_for_waiter(&said);
        // SAFETY: only the thread above uses the queue pair.
        assert_eq!(unsafe { verbs::ibv_destroy_qp(side.pair) }, 0);
        assert_eq!(complete.join().unwrap(), libc::EINVAL);
        // If that thread had ended because of a time-out, this earlier one would have timed out before it.
        assert!(!earlier.is_finished());
        // SAFETY: the queue pair is alive, and this thread is in its section.
        unsafe { ibv_wr_abort(kept_qp.get()).unwrap() };
    });
    kept.close();
    side.close_rest();
}
