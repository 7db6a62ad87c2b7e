//! Work requests.

use std::mem;

use gdr_roce::{AtomicOp, Immediate, Operation, Remote, SendFlags, WrId};
use smallvec::SmallVec;

use crate::memory_region::Segment;
use crate::types::UdEndpoint;

/// The segments of a request.
///
/// One in place: a request is moved several times before it is posted, and up to 128 bytes are moved without a call.
pub(crate) type Segments = SmallVec<[Segment; 1]>;

/// The bytes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Segments(Segments),
    Inline(SmallVec<[u8; 32]>),
}

impl Data {
    /// Appends a segment, replacing inline bytes.
    // By value, and without a call for the first segment, so that a new request needs no copy in memory. Always
    // inlined: only the caller shows that the request is new.
    #[inline(always)]
    fn with(self, segment: Segment) -> Self {
        Self::Segments(match self {
            Self::Segments(empty) if empty.is_empty() && !empty.spilled() => {
                // It owns nothing, but dropping it would be a call.
                mem::forget(empty);
                Segments::from_buf([segment])
            }
            Self::Segments(mut segments) => {
                segments.push(segment);
                segments
            }
            Self::Inline(_) => Segments::from_buf([segment]),
        })
    }

    #[inline]
    fn segments(&self) -> &[Segment] {
        match self {
            Self::Segments(segments) => segments,
            Self::Inline(_) => &[],
        }
    }

    /// Returns whether both are one segment each, of the same region.
    #[inline]
    pub(crate) fn has_region_of(&self, other: &Self) -> bool {
        match (self.segments(), other.segments()) {
            ([own], [other]) => own.region().is_same(other.region()),
            _ => false,
        }
    }
}

/// Methods that requests of both services share.
macro_rules! send_methods {
    ($request:ty) => {
        impl $request {
            /// Appends a segment, and discards any inline bytes.
            #[inline(always)]
            pub fn segment(self, segment: Segment) -> Self {
                Self {
                    data: self.data.with(segment),
                    ..self
                }
            }

            /// Copies these bytes now, to be sent inline; they need not be registered. Discards any segments.
            pub fn inline(mut self, bytes: &[u8]) -> Self {
                self.data = Data::Inline(SmallVec::from_slice(bytes));
                self
            }

            /// Requests a completion only if the request fails. Its regions are released when a later request
            /// of its queue pair completes.
            #[inline]
            pub fn unsignalled(mut self) -> Self {
                self.flags.remove(SendFlags::SIGNALLED);
                self
            }

            #[inline]
            pub(crate) fn segments(&self) -> &[Segment] {
                self.data.segments()
            }
        }
    };
}

send_methods!(SendRequest);
send_methods!(UdSendRequest);

/// A request for the send queue. It is signalled unless [`SendRequest::unsignalled`] is called, and
/// carries no bytes until [`SendRequest::segment`] or [`SendRequest::inline`] is called.
#[derive(Clone, Debug)]
#[must_use]
pub struct SendRequest {
    pub(crate) id: WrId,
    pub(crate) operation: Operation,
    pub(crate) data: Data,
    pub(crate) flags: SendFlags,
}

impl SendRequest {
    #[inline]
    fn new(id: WrId, operation: Operation) -> Self {
        Self {
            id,
            operation,
            data: Data::Segments(SmallVec::new()),
            flags: SendFlags::SIGNALLED,
        }
    }

    /// Sends a message into the peer's next receive.
    #[inline]
    pub fn send(id: WrId) -> Self {
        Self::new(id, Operation::Send { immediate: None })
    }

    /// Writes bytes into the peer's memory.
    #[inline]
    pub fn write(id: WrId, remote: Remote) -> Self {
        let immediate = None;
        Self::new(id, Operation::Write { remote, immediate })
    }

    /// Reads bytes from the peer's memory into the segments.
    #[inline]
    pub fn read(id: WrId, remote: Remote) -> Self {
        Self::new(id, Operation::Read { remote })
    }

    /// Applies an atomic operation to 8 bytes in the peer's memory, aligned to 8. The previous value is
    /// written to the segments, as 8 bytes in this host's byte order.
    ///
    /// The operation is atomic with respect to all operations of the same device and, in host memory,
    /// with respect to the peer's CPU.
    #[inline]
    pub fn atomic(id: WrId, remote: Remote, op: AtomicOp) -> Self {
        Self::new(id, Operation::Atomic { remote, op })
    }

    /// Adds immediate data, which completes one of the peer's receives. Only SEND and WRITE can carry
    /// it; other requests are unchanged.
    pub fn immediate(mut self, value: Immediate) -> Self {
        match &mut self.operation {
            Operation::Send { immediate } | Operation::Write { immediate, .. } => {
                *immediate = Some(value);
            }
            _ => {}
        }
        self
    }

    /// Starts the request only when all earlier READs and atomics of the queue pair are complete.
    pub fn fenced(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Marks the peer's completion as solicited.
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }
}

/// A datagram for the send queue of a [`UdQueuePair`](crate::UdQueuePair). It is signalled unless
/// [`UdSendRequest::unsignalled`] is called, and carries no bytes until [`UdSendRequest::segment`] or
/// [`UdSendRequest::inline`] is called.
#[derive(Clone, Debug)]
#[must_use]
pub struct UdSendRequest {
    pub(crate) id: WrId,
    pub(crate) to: UdEndpoint,
    pub(crate) immediate: Option<Immediate>,
    pub(crate) data: Data,
    pub(crate) flags: SendFlags,
}

impl UdSendRequest {
    /// Sends a message into the next receive of a queue pair.
    pub fn new(id: WrId, to: UdEndpoint) -> Self {
        Self {
            id,
            to,
            immediate: None,
            data: Data::Segments(SmallVec::new()),
            flags: SendFlags::SIGNALLED,
        }
    }

    /// Adds immediate data for the completion of the receive.
    pub fn immediate(mut self, value: Immediate) -> Self {
        self.immediate = Some(value);
        self
    }

    /// Marks the receiver's completion as solicited.
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }
}

/// A request for the receive queue: memory for the next message. Without segments it receives empty
/// messages, and WRITEs with immediate data.
#[derive(Clone, Debug)]
#[must_use]
pub struct RecvRequest {
    pub(crate) id: WrId,
    pub(crate) segments: Segments,
}

impl RecvRequest {
    /// Creates a receive without segments.
    pub fn new(id: WrId) -> Self {
        let segments = SmallVec::new();
        Self { id, segments }
    }

    /// Appends a segment, which is filled after the previous ones.
    pub fn segment(mut self, segment: Segment) -> Self {
        self.segments.push(segment);
        self
    }
}
