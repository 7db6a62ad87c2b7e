//! RoCEv2 reliable connections in user space, sans-IO.
#![forbid(unsafe_code)]

mod completion;
mod error;
mod heap;
mod key;
mod link;
mod memory;
mod mtu;
mod psn;
mod queue_pair;
mod request;
mod requester;
mod responder;
mod scatter;
mod timer;
pub mod wire;

pub use completion::{Completion, Event, WcOpcode, WcStatus};
pub use error::{PostError, StateError};
pub use heap::HeapMemory;
pub use key::{Immediate, Key, Lkey, PartitionKey, Qpn, Rkey, WrId};
pub use memory::{Access, AccessError, AtomicOp, Extent, Memory};
pub use mtu::Mtu;
pub use psn::{Msn, PSN_WINDOW, Psn};
pub use queue_pair::{Capabilities, Pace, QueuePair, RtrAttributes, RtsAttributes, State};
pub use request::{Data, Operation, RecvRequest, Remote, Segment, SendFlags, SendRequest};
pub use timer::{AckTimeout, RetryCount, RnrRetry, RnrTimer, Time};

/// The longest message, in bytes. The specification allows twice as much, which at the smallest
/// MTU is more packets than a PSN can tell apart.
pub const MAX_MESSAGE: u32 = 1 << 30;
