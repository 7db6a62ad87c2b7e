//! Completion queues and their events. They are checked, but not counted.

use std::ffi::{c_int, c_uint, c_void};

use gdr_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::check;
use crate::context::Context;
use crate::library::{self, missing};
use crate::nesting::{Nesting, keep_quiet};

/// # Safety
/// As for `ibv_create_cq`.
pub(crate) unsafe extern "C" fn create_cq<const L: usize>(
    context: *mut ibv_context,
    size: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    let nesting = Nesting::enter();
    // SAFETY: the caller's arguments.
    let cq = unsafe { library::ibv_create_cq(L)(context, size, user, channel, vector) };
    if nesting.is_outermost() && !cq.is_null() {
        // SAFETY: a new queue.
        keep_quiet(|| unsafe { check::queue_changed(cq) });
    }
    cq
}

/// # Safety
/// As for `ibv_resize_cq`.
pub(crate) unsafe extern "C" fn resize_cq<const L: usize>(cq: *mut ibv_cq, size: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let result = unsafe { library::ibv_resize_cq(L)(cq, size) };
    if result == 0 {
        // SAFETY: the library has resized the queue, so it is valid.
        keep_quiet(|| unsafe { check::queue_changed(cq) });
    }
    result
}

/// # Safety
/// As for `ibv_destroy_cq`.
pub(crate) unsafe extern "C" fn destroy_cq<const L: usize>(cq: *mut ibv_cq) -> c_int {
    let nesting = Nesting::enter();
    if nesting.is_outermost() {
        // Before the call, which may block forever.
        keep_quiet(|| check::queue_destroying(cq));
    }
    // SAFETY: the caller's argument.
    let result = unsafe { library::ibv_destroy_cq(L)(cq) };
    if nesting.is_outermost() && result == 0 {
        keep_quiet(|| check::queue_destroyed(cq));
    }
    result
}

/// # Safety
/// As for `ibv_get_cq_event`.
pub(crate) unsafe extern "C" fn get_cq_event<const L: usize>(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    user: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's channel.
    keep_quiet(|| unsafe { check::waiting(channel) });
    // SAFETY: the caller's arguments.
    let result = unsafe { library::ibv_get_cq_event(L)(channel, cq, user) };
    if result == 0 {
        // SAFETY: the library has written the queue's address.
        keep_quiet(|| check::event_taken(unsafe { cq.read() }));
    }
    result
}

/// # Safety
/// As for `ibv_ack_cq_events`.
pub(crate) unsafe extern "C" fn ack_cq_events<const L: usize>(cq: *mut ibv_cq, count: c_uint) {
    keep_quiet(|| check::events_acknowledged(cq, count));
    // SAFETY: the caller's arguments.
    unsafe { library::ibv_ack_cq_events(L)(cq, count) };
}

/// # Safety
/// As for `ibv_req_notify_cq`.
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's queue.
    let context = Context::behind(unsafe { (*cq).context });
    let Some(real) = context.and_then(|it| it.real.basic.req_notify_cq) else {
        return missing::error_number();
    };
    keep_quiet(|| check::armed(cq));
    // SAFETY: the caller's arguments.
    unsafe { real(cq, solicited_only) }
}
