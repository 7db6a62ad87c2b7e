//! Asynchronous events.

use std::ffi::c_int;
use std::sync::Arc;

use gdr_verbs_sys::{ibv_async_event, ibv_context};

use crate::completion_queue::QUEUES;
use crate::context::Context;
use crate::event::Subject;
use crate::queue_pair::PAIRS;
use crate::ret::{minus_one, plain};
use crate::shared_receive_queue::SHARED_QUEUES;

/// # Safety
/// `event` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    minus_one(|| {
        let events = Arc::clone(Context::of(context)?.events());
        let taken = events.take()?;
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
        let event = unsafe { event.read() };
        // SAFETY: all members of the union are numbers or addresses; those of another type are not
        // in the tables below.
        let (cq, qp, srq) = unsafe { (event.element.cq, event.element.qp, event.element.srq) };
        if let Ok(queue) = QUEUES.get(cq) {
            queue.unacknowledged().acknowledge(1);
        } else if let Ok(queue) = SHARED_QUEUES.get(srq) {
            queue.unacknowledged().acknowledge(1);
        } else if let Ok(pair) = PAIRS.get(qp) {
            pair.unacknowledged().acknowledge(1);
        }
        Ok(())
    });
}
