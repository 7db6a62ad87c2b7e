//! ibv_get_cq_event(3), ibv_create_comp_channel(3) and ibv_req_notify_cq(3).

use std::ptr;
use std::thread;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, Shared, errno};

/// Returns a side in INIT whose completion queue has a channel, and the channel.
fn with_channel(plain: &Side) -> (Side, *mut ibv_comp_channel) {
    // SAFETY: the context is open.
    unsafe {
        let channel = verbs::ibv_create_comp_channel(plain.context);
        assert!(!channel.is_null());
        let own = ptr::without_provenance_mut(7);
        let queue = verbs::ibv_create_cq(plain.context, 64, own, channel, 0);
        let mut init = ibv_qp_init_attr {
            send_cq: queue,
            recv_cq: queue,
            qp_type: plain.kind,
            ..Default::default()
        };
        init.cap.max_recv_wr = 8;
        let pair = verbs::ibv_create_qp(plain.domain, &mut init);
        let side = Side {
            pair,
            queue,
            ..*plain
        };
        side.to_init().unwrap();
        (side, channel)
    }
}

/// Completes a receive at once, because the queue pair is in ERR and flushes it.
fn complete(side: &Side) {
    side.receive(1, &mut []).unwrap();
}

/// Takes an event; returns the status and the event's queue.
fn take(channel: *mut ibv_comp_channel) -> (i32, *mut ibv_cq) {
    let (mut of, mut own) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the channel is alive.
    let status = unsafe { verbs::ibv_get_cq_event(channel, &mut of, &mut own) };
    assert!(status != 0 || own.addr() == 7);
    (status, of)
}

#[test]
fn each_request_for_notification_brings_one_event() {
    let plain = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (side, channel) = with_channel(&plain);
    side.to_error().unwrap();
    // SAFETY: the channel is alive.
    unsafe { verbs::nonblocking((*channel).fd) };
    complete(&side);
    assert_eq!(take(channel), (-1, ptr::null_mut()));
    assert_eq!(errno(), libc::EAGAIN);
    for _ in 0..3 {
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { verbs::req_notify_cq(side.queue, 0) }, 0);
        // A completion that was already in the queue generates no event.
        assert_eq!(take(channel).0, -1);
        complete(&side);
        complete(&side);
        wait_until(|| take(channel) == (0, side.queue));
        assert_eq!(take(channel).0, -1);
        // SAFETY: an event was taken.
        unsafe { verbs::ibv_ack_cq_events(side.queue, 1) };
    }
    // SAFETY: the queue exists. UCX's tests read the field.
    assert_eq!(unsafe { (*side.queue).comp_events_completed }, 3);
    // SAFETY: each object is destroyed before what it depends on.
    unsafe {
        assert_eq!(verbs::ibv_destroy_comp_channel(channel), libc::EBUSY);
        assert_eq!(verbs::ibv_destroy_qp(side.pair), 0);
        assert_eq!(verbs::ibv_destroy_cq(side.queue), 0);
        assert_eq!(verbs::ibv_destroy_comp_channel(channel), 0);
        assert_eq!(verbs::ibv_destroy_comp_channel(channel), libc::EINVAL);
    }
    assert_eq!(take(channel).0, -1);
    assert_eq!(errno(), libc::EINVAL);
    plain.close();
}

#[test]
fn the_destruction_of_a_queue_waits_until_all_events_are_acknowledged() {
    const EVENTS: u32 = 3;
    let plain = Side::new(ibv_qp_type::IBV_QPT_RC);
    let (side, channel) = with_channel(&plain);
    side.to_error().unwrap();
    for _ in 0..EVENTS {
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { verbs::req_notify_cq(side.queue, 0) }, 0);
        complete(&side);
        assert_eq!(take(channel), (0, side.queue));
    }
    // SAFETY: nothing uses the queue pair.
    assert_eq!(unsafe { verbs::ibv_destroy_qp(side.pair) }, 0);
    let queue = Shared(side.queue);
    thread::scope(|scope| {
        // SAFETY: nothing but this thread uses the queue.
        let destruction = scope.spawn(move || unsafe { verbs::ibv_destroy_cq(queue.get()) });
        wait_until(|| {
            // SAFETY: a handle, which the library checks.
            unsafe { verbs::ibv_resize_cq(queue.get(), 64) != 0 }
        });
        // SAFETY: the events above.
        unsafe { verbs::ibv_ack_cq_events(queue.get(), EVENTS - 1) };
        for _ in 0..100 {
            thread::yield_now();
            assert!(!destruction.is_finished());
        }
        // SAFETY: the last event.
        unsafe { verbs::ibv_ack_cq_events(queue.get(), 1) };
        assert_eq!(destruction.join().unwrap(), 0);
    });
    // SAFETY: nothing uses it any more.
    assert_eq!(unsafe { verbs::ibv_destroy_comp_channel(channel) }, 0);
    plain.close();
}

#[test]
fn events_go_to_the_channel_of_their_queue() {
    let plain = Side::new(ibv_qp_type::IBV_QPT_RC);
    let both = [with_channel(&plain), with_channel(&plain)];
    for (side, _) in &both {
        side.to_error().unwrap();
        // SAFETY: the queue is alive.
        assert_eq!(unsafe { verbs::req_notify_cq(side.queue, 0) }, 0);
    }
    for (side, channel) in both {
        complete(&side);
        assert_eq!(take(channel), (0, side.queue));
        // SAFETY: each object is destroyed before what it depends on.
        unsafe {
            verbs::ibv_ack_cq_events(side.queue, 1);
            assert_eq!(verbs::ibv_destroy_qp(side.pair), 0);
            assert_eq!(verbs::ibv_destroy_cq(side.queue), 0);
            assert_eq!(verbs::ibv_destroy_comp_channel(channel), 0);
        }
    }
    plain.close();
}

#[test]
fn functions_of_a_context_that_is_none_set_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: handles, which the library checks.
    unsafe {
        let made = verbs::ibv_create_comp_channel(side.domain.cast());
        assert!(made.is_null());
        assert_eq!(errno(), libc::EINVAL);
        let notify = (*side.context).ops.req_notify_cq.unwrap();
        assert_eq!(notify(side.pair.cast(), 0), libc::EINVAL);
    }
    side.close();
}
