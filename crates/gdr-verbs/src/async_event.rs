//! Asynchronous events.

use std::ffi::c_int;

use gdr_verbs_sys::{ibv_async_event, ibv_context};

use crate::context::Context;
use crate::event::Subject;
use crate::event_queue::ASYNC_EVENTS;
use crate::ret::{minus_one, plain};
use crate::slab::is_own;
use crate::system::{self, call_system, forward};

/// # Safety
/// `event` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    forward!(unless is_own(context), ibv_get_async_event(context, event));
    minus_one(|| {
        let context = Context::of(context)?;
        let returned = context.take_event(|taken| {
            let mut returned = ibv_async_event {
                event_type: taken.kind,
                ..Default::default()
            };
            match taken.subject {
                Subject::Port(port) => returned.element.port_num = c_int::from(port),
                Subject::Queue(cq, unacknowledged) => {
                    unacknowledged.add();
                    returned.element.cq = std::ptr::with_exposed_provenance_mut(cq);
                }
                Subject::Shared(srq, unacknowledged) => {
                    unacknowledged.add();
                    returned.element.srq = std::ptr::with_exposed_provenance_mut(srq);
                }
                Subject::Pair(qp, unacknowledged) => {
                    unacknowledged.add();
                    returned.element.qp = std::ptr::with_exposed_provenance_mut(qp);
                }
            }
            returned
        })?;
        // SAFETY: the contract of this function.
        unsafe { event.write(returned) };
        Ok(())
    })
}

/// # Safety
/// `event` is readable, and as it was returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    plain((), || {
        // SAFETY: the contract of this function.
        let read = unsafe { event.read() };
        // SAFETY: all members of the union are numbers or addresses. Objects' addresses are at the
        // same place, and a number is not in the table.
        let object = unsafe { read.element.qp };
        if let Ok(unacknowledged) = ASYNC_EVENTS.get(object) {
            unacknowledged.acknowledge(1);
        } else if system::has_devices() && !is_own(object) {
            let _unit = call_system!(ibv_ack_async_event(event));
        }
        Ok(())
    });
}
