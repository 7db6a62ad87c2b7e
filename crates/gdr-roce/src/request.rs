//! Work requests.

use crate::completion::WcOpcode;
use crate::ids::{Immediate, Lkey, Qkey, Qpn, Rkey, WrId};
use crate::memory::AtomicOp;
use crate::wire::Feth;

/// A range of local memory, like `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// The key of the memory region.
    pub lkey: Lkey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// An address in the peer's memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Remote {
    /// The remote key that the peer has advertised.
    pub rkey: Rkey,
    /// Address of the first byte, in the peer's address space.
    pub addr: u64,
}

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Sends a message to the peer's next receive.
    Send {
        /// Delivered in the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Writes to the peer's memory. With immediate data, it consumes a receive of the peer.
    Write {
        /// The destination.
        remote: Remote,
        /// Delivered in the receive's completion.
        immediate: Option<Immediate>,
    },
    /// Reads from the peer's memory into the segments.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Executes an atomic operation on eight bytes of the peer's memory, and stores the original value in the segments,
    /// in host byte order.
    Atomic {
        /// The address, a multiple of eight.
        remote: Remote,
        /// The operation.
        op: AtomicOp,
    },
    /// Sends a message, and invalidates a type 2 memory window of the peer.
    SendInvalidate {
        /// The window's key.
        rkey: Rkey,
    },
    /// Writes eight bytes to the peer's memory atomically.
    AtomicWrite {
        /// The address, a multiple of eight.
        remote: Remote,
    },
    /// Makes earlier writes to the peer's memory visible there. It carries no data.
    Flush {
        /// The first byte.
        remote: Remote,
        /// Length in bytes.
        len: u32,
        /// Placement type and selectivity level: to whom the bytes become visible, and whether the whole region is
        /// meant.
        what: Feth,
    },
    /// Binds a local memory window. It has no data, and takes effect once all earlier requests are complete.
    Bind {
        /// The window's key.
        rkey: Rkey,
    },
    /// Invalidates a local type 2 memory window, likewise.
    Invalidate {
        /// The window's key.
        rkey: Rkey,
    },
}

impl Operation {
    /// Returns the operation of its completion.
    pub const fn completed_as(&self) -> WcOpcode {
        match self {
            Self::Send { .. } | Self::SendInvalidate { .. } => WcOpcode::Send,
            Self::Write { .. } => WcOpcode::Write,
            Self::Read { .. } => WcOpcode::Read,
            Self::Atomic { op, .. } => match op {
                AtomicOp::FetchAdd { .. } => WcOpcode::FetchAdd,
                AtomicOp::CompareSwap { .. } => WcOpcode::CompareSwap,
            },
            Self::AtomicWrite { .. } => WcOpcode::AtomicWrite,
            Self::Flush { .. } => WcOpcode::Flush,
            Self::Bind { .. } => WcOpcode::BindWindow,
            Self::Invalidate { .. } => WcOpcode::Invalidate,
        }
    }
}

/// The local data of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Data<'a> {
    /// Ranges of registered memory, whose contents must not change before the completion.
    Segments(&'a [Segment]),
    /// Bytes copied when the request is posted, for a SEND or WRITE of at most
    /// [`max_inline`](crate::Capabilities::max_inline) bytes.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// Flags of a request, as in `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct SendFlags: u8 {
        /// Generates a completion on success. A failure always does.
        const SIGNALLED = 1;
        /// Starts once all earlier READs and atomics of the queue pair are complete.
        const FENCE = 1 << 1;
        /// Marks the peer's completion as solicited, which may wake a waiting thread.
        const SOLICITED = 1 << 2;
        /// `IBV_SEND_IP_CSUM`: the device fills in IP, TCP and UDP checksums. Only for a
        /// [`RawPacketQueuePair`](crate::RawPacketQueuePair).
        const IP_CHECKSUM = 1 << 3;
    }
}

/// A request for the send queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SendRequest<'a> {
    /// Returned in the completion.
    pub id: WrId,
    /// The operation.
    pub operation: Operation,
    /// The source of a SEND or WRITE, the destination of a READ or atomic.
    pub data: Data<'a>,
    /// The flags.
    pub flags: SendFlags,
}

/// A datagram for the send queue of a [`UdQueuePair`](crate::UdQueuePair). `A` is the address type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSendRequest<'a, A> {
    /// Returned in the completion.
    pub id: WrId,
    /// The destination (address handle).
    pub to: A,
    /// The destination queue pair.
    pub dest_qpn: Qpn,
    /// The queue key to send. If its highest bit is set, the queue pair's own key is sent (IBTA 10.2.5).
    pub qkey: Qkey,
    /// Delivered in the receive's completion.
    pub immediate: Option<Immediate>,
    /// The message, no longer than the path MTU.
    pub data: Data<'a>,
    /// The flags; [`FENCE`](SendFlags::FENCE) has no effect.
    pub flags: SendFlags,
}

/// A request for the receive queue: the buffer for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub id: WrId,
    /// Ranges of registered memory, filled in order.
    pub segments: &'a [Segment],
}
