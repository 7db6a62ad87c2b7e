//! Events that are about no single request (`ibv_get_async_event`).

use gdr_roce::{Event, Qpn};

/// Something that happened to a device or a queue pair by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AsyncEvent {
    /// To a queue pair.
    QueuePair {
        /// Which.
        qpn: Qpn,
        /// What.
        event: Event,
    },
    /// A completion queue had no room for a completion (`IBV_EVENT_CQ_ERR`). The queue pair is in
    /// ERR.
    CompletionQueueOverrun {
        /// Whose completion it was.
        qpn: Qpn,
        /// How many the queue holds.
        capacity: usize,
    },
    /// The device works no more (`IBV_EVENT_DEVICE_FATAL`). All its queue pairs are in ERR.
    DeviceFatal,
    /// A completion queue of the kernel overran or failed (`IBV_EVENT_CQ_ERR`): its queue pairs
    /// are lost.
    CompletionQueueLost,
    /// A port came up (`IBV_EVENT_PORT_ACTIVE`).
    PortActive {
        /// Which, from 1.
        port: u8,
    },
    /// A port went down (`IBV_EVENT_PORT_ERR`). Queue pairs go on sending again until their
    /// retries are used up.
    PortDown {
        /// Which, from 1.
        port: u8,
    },
    /// Something else that the kernel tells (`enum ibv_event_type`).
    Other {
        /// Its number.
        number: u32,
    },
}
