//! Work requests.

use gdr_roce::{AtomicOp, Immediate, Operation, Remote, SendFlags, WrId};
use smallvec::SmallVec;

use crate::region::Segment;

/// The bytes of a request.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    Segments(SmallVec<[Segment; 2]>),
    Inline(SmallVec<[u8; 64]>),
}

/// A request for the send queue. It is signalled unless [`SendRequest::unsignalled`] says
/// otherwise, and names no bytes until [`SendRequest::segment`] or [`SendRequest::inline`] does.
#[derive(Clone, Debug)]
#[must_use]
pub struct SendRequest {
    pub(crate) id: WrId,
    pub(crate) operation: Operation,
    pub(crate) data: Data,
    pub(crate) flags: SendFlags,
}

impl SendRequest {
    fn new(id: WrId, operation: Operation) -> Self {
        Self {
            id,
            operation,
            data: Data::Segments(SmallVec::new()),
            flags: SendFlags::SIGNALLED,
        }
    }

    /// A message into the peer's next receive.
    pub fn send(id: WrId) -> Self {
        Self::new(id, Operation::Send { immediate: None })
    }

    /// Bytes into the peer's memory.
    pub fn write(id: WrId, remote: Remote) -> Self {
        let immediate = None;
        Self::new(id, Operation::Write { remote, immediate })
    }

    /// Bytes from the peer's memory into the segments.
    pub fn read(id: WrId, remote: Remote) -> Self {
        Self::new(id, Operation::Read { remote })
    }

    /// An atomic operation on 8 bytes of the peer at a multiple of 8; what was there before goes
    /// to the segments, 8 bytes in this host's byte order.
    ///
    /// It is atomic against all operations of the same device, and in host memory against the
    /// peer's CPU, too.
    pub fn atomic(id: WrId, remote: Remote, op: AtomicOp) -> Self {
        Self::new(id, Operation::Atomic { remote, op })
    }

    /// With an immediate, which completes one of the peer's receives. SEND and WRITE only: others
    /// have none, and stay as they are.
    pub fn immediate(mut self, value: Immediate) -> Self {
        match &mut self.operation {
            Operation::Send { immediate } | Operation::Write { immediate, .. } => {
                *immediate = Some(value);
            }
            Operation::Read { .. } | Operation::Atomic { .. } => {}
        }
        self
    }

    /// With these bytes, after those named already; inline bytes named before are forgotten.
    pub fn segment(mut self, segment: Segment) -> Self {
        match &mut self.data {
            Data::Segments(segments) => segments.push(segment),
            Data::Inline(_) => self.data = Data::Segments(SmallVec::from_iter([segment])),
        }
        self
    }

    /// With a copy of these bytes, taken now; they need be in no region. Segments named before are
    /// forgotten.
    pub fn inline(mut self, bytes: &[u8]) -> Self {
        self.data = Data::Inline(SmallVec::from_slice(bytes));
        self
    }

    /// Gives a completion only when it fails. What it holds stays held until a later request of
    /// its queue pair completes.
    pub fn unsignalled(mut self) -> Self {
        self.flags.remove(SendFlags::SIGNALLED);
        self
    }

    /// Waits until all earlier READs and atomics of the queue pair are complete.
    pub fn fenced(mut self) -> Self {
        self.flags.insert(SendFlags::FENCE);
        self
    }

    /// Marks the peer's completion as solicited.
    pub fn solicited(mut self) -> Self {
        self.flags.insert(SendFlags::SOLICITED);
        self
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        match &self.data {
            Data::Segments(segments) => segments,
            Data::Inline(_) => &[],
        }
    }
}

/// A request for the receive queue: where the next message goes. Without segments it takes empty
/// messages, and WRITEs with an immediate.
#[derive(Clone, Debug)]
#[must_use]
pub struct RecvRequest {
    pub(crate) id: WrId,
    pub(crate) segments: SmallVec<[Segment; 2]>,
}

impl RecvRequest {
    /// A receive without segments.
    pub fn new(id: WrId) -> Self {
        let segments = SmallVec::new();
        Self { id, segments }
    }

    /// With these bytes, filled after those named already.
    pub fn segment(mut self, segment: Segment) -> Self {
        self.segments.push(segment);
        self
    }
}
