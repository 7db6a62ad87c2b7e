//! Work queue elements of the send queue.

use smallvec::SmallVec;

use crate::MAX_MESSAGE;
use crate::attributes::Capabilities;
use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::error::PostError;
use crate::ids::{Qpn, WrId};
use crate::memory::{Access, AccessError, AtomicOp, Memory};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::request::{Data, Operation, SendFlags, SendRequest};
use crate::sge::{self, Segments};

/// The source of a SEND or WRITE, or the destination of a READ or atomic.
#[derive(Debug)]
pub(super) enum Payload {
    Segments(Segments),
    Inline(SmallVec<[u8; 64]>),
}

/// A request on the send queue.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub(super) id: WrId,
    pub(super) operation: Operation,
    pub(super) flags: SendFlags,
    pub(super) payload: Payload,
    /// Length of the message in bytes.
    pub(super) len: u32,
    /// Number of PSNs that the request takes; of a READ, that of its responses.
    pub(super) packets: u32,
    /// First PSN, from the first transmission on.
    pub(super) first: Option<Psn>,
    /// Number of response packets of a READ or atomic that are placed.
    pub(super) responses: u32,
    /// Set when the request cannot be sent; it fails when all requests before it are complete.
    pub(super) failed: Option<WcStatus>,
}

impl SendWqe {
    /// Checks a request and copies its inline data or segments.
    pub(super) fn new(
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<Self, PostError> {
        let expects_response = matches!(
            request.operation,
            Operation::Read { .. } | Operation::Atomic { .. }
        );
        let (payload, len) = match request.data {
            Data::Inline(_) if expects_response => return Err(PostError::InlineResponse),
            Data::Inline(bytes) if bytes.len() > caps.max_inline as usize => {
                return Err(PostError::InlineTooLong {
                    len: bytes.len(),
                    max: caps.max_inline,
                });
            }
            Data::Inline(bytes) => (
                Payload::Inline(SmallVec::from_slice(bytes)),
                bytes.len() as u64,
            ),
            Data::Segments(segments) => {
                (Payload::Segments(segments.into()), sge::total_len(segments))
            }
        };
        if len > u64::from(MAX_MESSAGE) {
            return Err(PostError::TooLong(len));
        }
        if matches!(request.operation, Operation::Atomic { .. }) && len != 8 {
            return Err(PostError::AtomicLength(len));
        }
        let len = len as u32;
        Ok(Self {
            id: request.id,
            operation: request.operation,
            flags: request.flags,
            payload,
            len,
            packets: mtu.packets(len),
            first: None,
            responses: 0,
            failed: None,
        })
    }

    /// Whether a response with data completes the request, rather than an acknowledgement.
    pub(super) const fn expects_response(&self) -> bool {
        matches!(
            self.operation,
            Operation::Read { .. } | Operation::Atomic { .. }
        )
    }

    /// Checks the local segments.
    pub(super) fn check(&self, memory: &dyn Memory) -> Result<(), AccessError> {
        let access = if self.expects_response() {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        match &self.payload {
            Payload::Segments(segments) => sge::check(memory, segments, access),
            Payload::Inline(_) => Ok(()),
        }
    }

    /// Copies the bytes of the message at `offset` to `out`.
    pub(super) fn fill(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        match &self.payload {
            Payload::Segments(segments) => sge::gather(memory, segments, offset, out),
            Payload::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                out.copy_from_slice(from.get(..out.len()).ok_or(AccessError::OutOfRange)?);
                Ok(())
            }
        }
    }

    /// Stores the payload of a response packet at `offset`.
    pub(super) fn place(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        match &self.payload {
            Payload::Segments(segments) => sge::scatter(memory, segments, offset, bytes),
            Payload::Inline(_) => Err(AccessError::Permission),
        }
    }

    pub(super) const fn completion(&self, status: WcStatus, qpn: Qpn) -> Completion {
        Completion {
            id: self.id,
            status,
            opcode: match self.operation {
                Operation::Send { .. } => WcOpcode::Send,
                Operation::Write { .. } => WcOpcode::Write,
                Operation::Read { .. } => WcOpcode::Read,
                Operation::Atomic {
                    op: AtomicOp::FetchAdd { .. },
                    ..
                } => WcOpcode::FetchAdd,
                Operation::Atomic {
                    op: AtomicOp::CompareSwap { .. },
                    ..
                } => WcOpcode::CompareSwap,
            },
            byte_len: if matches!(status, WcStatus::Success) {
                self.len
            } else {
                0
            },
            immediate: None,
            solicited: false,
            qpn,
        }
    }
}
