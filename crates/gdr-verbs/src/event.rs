//! Asynchronous events that wait to be taken.

use std::sync::Arc;

use gdr_nic::{AsyncEvent, Event as PairEvent};
use gdr_verbs_sys::ibv_event_type;

use crate::event_queue::{EventQueue, Unacknowledged};

/// What an event is about. Addresses name C structures.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    Port(u8),
    Queue(usize, Arc<Unacknowledged>),
    Pair(usize, Arc<Unacknowledged>),
    Shared(usize, Arc<Unacknowledged>),
}

/// An event that the program has not taken.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) kind: ibv_event_type,
    pub(crate) subject: Subject,
}

impl Event {
    /// Returns whether it is about the object at this address.
    pub(crate) fn is_about(&self, address: usize) -> bool {
        match self.subject {
            Subject::Port(_) => false,
            Subject::Queue(own, _) | Subject::Pair(own, _) | Subject::Shared(own, _) => {
                own == address
            }
        }
    }
}

/// The event of a queue pair, and its number.
pub(crate) fn of_pair(event: &AsyncEvent) -> Option<(u32, ibv_event_type)> {
    match event {
        AsyncEvent::QueuePair { qpn, event } => Some((
            qpn.get(),
            match event {
                PairEvent::SendQueueDrained => ibv_event_type::IBV_EVENT_SQ_DRAINED,
                PairEvent::CommunicationEstablished => ibv_event_type::IBV_EVENT_COMM_EST,
                PairEvent::InvalidRequest => ibv_event_type::IBV_EVENT_QP_REQ_ERR,
                PairEvent::LastWqeReached => ibv_event_type::IBV_EVENT_QP_LAST_WQE_REACHED,
                PairEvent::AccessViolation => ibv_event_type::IBV_EVENT_QP_ACCESS_ERR,
                _ => ibv_event_type::IBV_EVENT_QP_FATAL,
            },
        )),
        _ => None,
    }
}

/// The event of a whole device.
pub(crate) fn of_device(event: &AsyncEvent) -> Option<ibv_event_type> {
    match event {
        AsyncEvent::DeviceFatal => Some(ibv_event_type::IBV_EVENT_DEVICE_FATAL),
        AsyncEvent::PortDown { .. } => Some(ibv_event_type::IBV_EVENT_PORT_ERR),
        AsyncEvent::PortActive { .. } => Some(ibv_event_type::IBV_EVENT_PORT_ACTIVE),
        AsyncEvent::Other { number } => Some(ibv_event_type(*number)),
        _ => None,
    }
}

pub(crate) fn raise(events: &EventQueue<Event>, kind: ibv_event_type, subject: &Subject) {
    events.push(Event {
        kind,
        subject: subject.clone(),
    });
}
