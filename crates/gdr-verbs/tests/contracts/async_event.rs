//! ibv_get_async_event(3).

use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use gdr_verbs_sys::ibv_qp_attr_mask as Mask;
use gdr_verbs_sys::ibv_qp_state as State;
use gdr_verbs_sys::*;

use crate::side::*;
use crate::srq::{limit, shared_queue};
use crate::verbs::{self, Shared, errno};

/// Raises `IBV_EVENT_SQ_DRAINED`.
fn raise(side: &Side) {
    let mut attr = ibv_qp_attr {
        qp_state: State::IBV_QPS_SQD,
        en_sqd_async_notify: 1,
        ..Default::default()
    };
    let mask = Mask::IBV_QP_STATE | Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY;
    side.modify(&mut attr, mask).unwrap();
    side.to_state(State::IBV_QPS_RTS).unwrap();
}

fn connected() -> Side {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    side.to_init().unwrap();
    side.to_rtr(side.number()).unwrap();
    side.to_rts().unwrap();
    side
}

#[test]
fn an_error_is_minus_one_and_errno() {
    let side = connected();
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open; the library checks the handle.
    unsafe {
        verbs::nonblocking((*side.context).async_fd);
        assert_eq!(verbs::ibv_get_async_event(side.context, &mut event), -1);
        assert_eq!(errno(), libc::EAGAIN);
        let other = side.queue.cast();
        assert_eq!(verbs::ibv_get_async_event(other, &mut event), -1);
        assert_eq!(errno(), libc::EINVAL);
        raise(&side);
        assert_eq!(verbs::ibv_get_async_event(side.context, &mut event), 0);
        verbs::ibv_ack_async_event(&mut event);
    }
    assert_eq!(event.event_type, ibv_event_type::IBV_EVENT_SQ_DRAINED);
    // SAFETY: the event is about a queue pair.
    assert_eq!(unsafe { event.element.qp }, side.pair);
    side.close();
}

#[test]
fn each_event_goes_to_one_of_the_threads_that_wait() {
    const EACH: u32 = 50;
    let side = connected();
    let (context, taken) = (Shared(side.context), AtomicU32::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..EACH {
                    let mut event = ibv_async_event::default();
                    // SAFETY: the context is open.
                    unsafe {
                        assert_eq!(verbs::ibv_get_async_event(context.get(), &mut event), 0);
                        verbs::ibv_ack_async_event(&mut event);
                    }
                    taken.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        (0..2 * EACH).for_each(|_| raise(&side));
    });
    assert_eq!(taken.into_inner(), 2 * EACH);
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { (*side.pair).events_completed }, 2 * EACH);
    assert_eq!(verbs::events(side.context), []);
    side.close();
}

#[test]
fn no_event_is_lost_however_many_wait() {
    const MANY: usize = 2500;
    let side = connected();
    (0..MANY).for_each(|_| raise(&side));
    assert_eq!(verbs::events(side.context).len(), MANY);
    raise(&side);
    let expected = (ibv_event_type::IBV_EVENT_SQ_DRAINED, side.pair.addr());
    assert_eq!(verbs::events(side.context), [expected]);
    side.close();
}

#[test]
fn an_event_of_an_object_is_not_taken_after_the_object_was_destroyed() {
    let side = connected();
    raise(&side);
    // SAFETY: nothing uses the queue pair any more.
    assert_eq!(unsafe { verbs::ibv_destroy_qp(side.pair) }, 0);
    assert_eq!(verbs::events(side.context), []);

    let (own, channel) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the context is open.
    let queue = unsafe { verbs::ibv_create_cq(side.context, 1, own, channel, 0) };
    let mut init = ibv_qp_init_attr {
        send_cq: queue,
        recv_cq: queue,
        qp_type: ibv_qp_type::IBV_QPT_RC,
        ..Default::default()
    };
    init.cap.max_recv_wr = 8;
    // SAFETY: the objects are alive.
    let pair = unsafe { verbs::ibv_create_qp(side.domain, &mut init) };
    let other = Side { pair, ..side };
    other.to_init().unwrap();
    (0..8).for_each(|id| other.receive(id, &mut []).unwrap());
    other.to_error().unwrap();
    let mut wc = ibv_wc::default();
    // SAFETY: the queue is alive; each object is destroyed before what it depends on.
    unsafe {
        wait_until(|| verbs::poll_cq(queue, 1, &mut wc) < 0);
        assert_eq!(verbs::ibv_destroy_qp(pair), 0);
        assert_eq!(verbs::ibv_destroy_cq(queue), 0);
    }
    assert_eq!(verbs::events(side.context), []);

    let shared = shared_queue(&side, 4, 1);
    let mut attr = limit(2);
    // SAFETY: the queue is alive, and has fewer requests than its limit.
    unsafe {
        assert_eq!(verbs::ibv_modify_srq(shared, &mut attr, 2), 0);
        assert_eq!(verbs::ibv_destroy_srq(shared), 0);
    }
    assert_eq!(verbs::events(side.context), []);
    // SAFETY: each object is destroyed before what it depends on.
    unsafe {
        assert_eq!(verbs::ibv_destroy_cq(side.queue), 0);
        assert_eq!(verbs::ibv_dealloc_pd(side.domain), 0);
        assert_eq!(verbs::ibv_close_device(side.context), 0);
    }
}
