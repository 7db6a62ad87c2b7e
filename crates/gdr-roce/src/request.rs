//! Work requests.

use crate::completion::WcOpcode;
use crate::ids::{Immediate, Lkey, Qkey, Qpn, Rkey, WrId};
use crate::memory::AtomicOp;
use crate::wire::Feth;

/// A range of local memory, as `struct ibv_sge`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Segment {
    /// The key of the memory region.
    pub lkey: Lkey,
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// An address in the memory of the peer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Remote {
    /// The remote key that the peer has published.
    pub rkey: Rkey,
    /// Address of the first byte, in the address space of the peer.
    pub addr: u64,
}

/// The operation of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Operation {
    /// Sends a message to the next receive of the peer.
    Send {
        /// Delivered in the completion of the receive.
        immediate: Option<Immediate>,
    },
    /// Writes to the memory of the peer. With immediate data it consumes a receive of the peer.
    Write {
        /// The destination.
        remote: Remote,
        /// Delivered in the completion of the receive.
        immediate: Option<Immediate>,
    },
    /// Reads from the memory of the peer into the segments.
    Read {
        /// The source.
        remote: Remote,
    },
    /// Executes an atomic operation on eight bytes in the memory of the peer, and stores the
    /// original value in the segments in host byte order.
    Atomic {
        /// The address, a multiple of eight.
        remote: Remote,
        /// The operation.
        op: AtomicOp,
    },
    /// Sends a message, and ends a memory window of type 2 of the peer.
    SendInvalidate {
        /// The key of the window.
        rkey: Rkey,
    },
    /// Writes eight bytes to the memory of the peer at once.
    AtomicWrite {
        /// The address, a multiple of eight.
        remote: Remote,
    },
    /// Makes what was written to the memory of the peer visible there. It has no data.
    Flush {
        /// The first byte.
        remote: Remote,
        /// How many bytes.
        len: u32,
        /// Where they are to be visible, and whether they are all of the region.
        what: Feth,
    },
    /// Begins a memory window of this side. It has no data, and begins when all requests before it are
    /// complete.
    Bind {
        /// The key of the window.
        rkey: Rkey,
    },
    /// Ends a memory window of type 2 of this side, in the same way.
    Invalidate {
        /// The key of the window.
        rkey: Rkey,
    },
}

impl Operation {
    /// The operation of its completion.
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
    /// Ranges of registered memory. Their contents must not change before the completion.
    Segments(&'a [Segment]),
    /// Bytes that are copied when the request is posted, for a SEND or WRITE of at most
    /// [`max_inline`](crate::Capabilities::max_inline) bytes.
    Inline(&'a [u8]),
}

bitflags::bitflags! {
    /// Flags of a request, as in `enum ibv_send_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct SendFlags: u8 {
        /// Generates a completion on success. A failure always does.
        const SIGNALLED = 1;
        /// Starts after all earlier READs and atomics of the queue pair are complete.
        const FENCE = 1 << 1;
        /// Marks the completion of the peer as solicited, which may wake a waiting thread.
        const SOLICITED = 1 << 2;
        /// `IBV_SEND_IP_CSUM`: the device fills in the checksums of IP, TCP and UDP. Only for a
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

/// A datagram for the send queue of a [`UdQueuePair`](crate::UdQueuePair). `A` is the type of its
/// addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UdSendRequest<'a, A> {
    /// Returned in the completion.
    pub id: WrId,
    /// Where to send it (the address handle).
    pub to: A,
    /// The queue pair that receives it.
    pub dest_qpn: Qpn,
    /// The queue key to send. If its highest bit is set, the queue pair's is sent (IBTA 10.2.5).
    pub qkey: Qkey,
    /// Delivered in the completion of the receive.
    pub immediate: Option<Immediate>,
    /// The message, at most the path MTU.
    pub data: Data<'a>,
    /// The flags; [`FENCE`](SendFlags::FENCE) means nothing here.
    pub flags: SendFlags,
}

/// A request for the receive queue: the buffer of the next message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecvRequest<'a> {
    /// Returned in the completion.
    pub id: WrId,
    /// Ranges of registered memory, filled in order.
    pub segments: &'a [Segment],
}
