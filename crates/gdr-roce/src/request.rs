//! What a program posts.

use crate::key::{Immediate, Lkey, Rkey, WrId};
use crate::memory::AtomicOp;

/// A piece of this side's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// The region's key.
    pub lkey: Lkey,
    /// Address of the first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u32,
}

/// A place in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Remote {
    /// The region's key, as the peer told it.
    pub rkey: Rkey,
    /// Address of the first byte, in the peer's terms.
    pub addr: u64,
}

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// A message into the peer's next receive.
    Send {
        /// Arrives in the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Bytes into the peer's memory. With an immediate it takes one of the peer's receives.
    Write {
        /// Where to.
        remote: Remote,
        /// Arrives in the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Bytes from the peer's memory into this side's segments.
    Read {
        /// Where from.
        remote: Remote,
    },
    /// An atomic operation on eight bytes of the peer; the value before goes to this side's
    /// segments, in this host's byte order.
    Atomic {
        /// Where, a multiple of eight.
        remote: Remote,
        /// What.
        op: AtomicOp,
    },
}

/// The bytes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// In registered memory, in this order. They must stay as they are until the completion.
    Segments(&'a [Segment]),
    /// Copied now, for SEND and WRITE of at most [`max_inline`](crate::Capabilities::max_inline)
    /// bytes.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// How a request is treated.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct SendFlags: u8 {
        /// Success gives a completion. Failure always does.
        const SIGNALLED = 1;
        /// Waits until all earlier READs and atomics of this queue pair are complete.
        const FENCE = 1 << 1;
        /// The peer's completion is marked solicited: it may wake a sleeping program.
        const SOLICITED = 1 << 2;
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// What to do.
    pub operation: Operation,
    /// With which bytes: the source of SEND and WRITE, the destination of READ and atomics.
    pub data: Data<'a>,
    /// How.
    pub flags: SendFlags,
}

/// A request for the receive queue: where the next message goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// Comes back in the completion.
    pub id: WrId,
    /// Filled in this order.
    pub segments: &'a [Segment],
}
