//! Asynchronous events.

use std::ffi::c_int;
use std::sync::Arc;

use gdr_rdma::{AsyncEvent, Event as PairEvent};
use gdr_verbs_sys::{ibv_async_event, ibv_context, ibv_event_type};

use crate::completion_queue::QUEUES;
use crate::context::Context;
use crate::event_queue::{EventQueue, Unacknowledged};
use crate::queue_pair::PAIRS;
use crate::ret::{minus_one, plain};

/// What an event is about. Addresses are those of the structures of C.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Port(u8),
    Queue(usize, Arc<Unacknowledged>),
    Pair(usize, Arc<Unacknowledged>),
}

/// An event that the program has not taken.
#[derive(Debug)]
pub(crate) struct Event {
    kind: ibv_event_type,
    subject: Subject,
}

impl Event {
    /// Whether it is about the object at this address.
    pub(crate) fn is_about(&self, address: usize) -> bool {
        match self.subject {
            Subject::Port(_) => false,
            Subject::Queue(own, _) | Subject::Pair(own, _) => own == address,
        }
    }
}

/// The event of a queue pair, and its number.
pub(crate) fn of_pair(event: &AsyncEvent) -> Option<(u32, ibv_event_type)> {
    match event {
        AsyncEvent::QueuePair { qpn, event } => Some((
            qpn.get(),
            match event {
                PairEvent::CommunicationEstablished => ibv_event_type::IBV_EVENT_COMM_EST,
                PairEvent::InvalidRequest => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
                PairEvent::AccessViolation => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                _ => ibv_event_type::IBV_EVENT_QP_FATAL,
            },
        )),
        _ => None,
    }
}

/// The number of a queue pair whose completion was lost, and the size of the queue that lost it.
pub(crate) fn of_queue(event: &AsyncEvent) -> Option<(u32, usize)> {
    match event {
        AsyncEvent::CompletionQueueOverrun { qpn, capacity } => Some((qpn.get(), *capacity)),
        _ => None,
    }
}

/// The event of a whole device.
pub(crate) fn of_device(event: &AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::DeviceFatal => Some(ibv_event_type::IBV_EVENT_DEVICE_FATAL),
        _ => None,
    }
}

pub(crate) fn raise(events: &EventQueue<Event>, kind: ibv_event_type, subject: &Subject) {
    events.push(Event {
        kind,
        subject: subject.clone(),
    });
}

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
        let (cq, qp) = unsafe { (event.element.cq, event.element.qp) };
        if event.event_type == ibv_event_type::IBV_EVENT_CQ_ERR {
            QUEUES.get(cq)?.unacknowledged().acknowledge(1);
        } else if let Ok(pair) = PAIRS.get(qp) {
            pair.unacknowledged().acknowledge(1);
        }
        Ok(())
    });
}
