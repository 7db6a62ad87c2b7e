//! Asynchronous events (`ibv_get_async_event`).

use gdr_roce::{Event, Qpn};

use super::{CqNumber, SrqNumber};

/// An event of a device or a queue pair that does not belong to a single request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// An event of a queue pair.
    QueuePair {
        /// The number of the queue pair.
        qpn: Qpn,
        /// The event.
        event: Event,
    },
    /// A shared receive queue has fewer requests than its armed limit
    /// (`IBV_EVENT_SRQ_LIMIT_REACHED`).
    SharedReceiveQueueLimit {
        /// The number of the queue.
        srq: SrqNumber,
    },
    /// A completion queue had no room for a completion (`IBV_EVENT_CQ_ERR`). Every queue pair that
    /// loses a completion goes to ERR; the event is raised only for the first.
    CompletionQueueOverrun {
        /// The number of the queue.
        queue: CqNumber,
        /// The queue pair whose completion was the first that was lost.
        qpn: Qpn,
        /// The capacity of the queue.
        capacity: usize,
    },
    /// The device failed permanently (`IBV_EVENT_DEVICE_FATAL`). All its queue pairs are in ERR.
    DeviceFatal,
    /// A completion queue of a kernel device overflowed or failed (`IBV_EVENT_CQ_ERR`), and its queue pairs are
    /// lost.
    CompletionQueueLost,
    /// A port came up (`IBV_EVENT_PORT_ACTIVE`).
    PortActive {
        /// The number of the port, from 1.
        port: u8,
    },
    /// A port went down (`IBV_EVENT_PORT_ERR`). Queue pairs retransmit until their retries are exhausted.
    PortDown {
        /// The number of the port, from 1.
        port: u8,
    },
    /// Another event (`enum ibv_event_type`).
    Other {
        /// The number of its type.
        number: u32,
    },
}
