//! A request on the send queue.

use smallvec::SmallVec;

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::key::{Qpn, WrId};
use crate::memory::{Access, AccessError, AtomicOp, Memory};
use crate::psn::Psn;
use crate::request::{Operation, SendFlags};
use crate::scatter::{self, Segments};

/// The bytes of a request.
#[derive(Debug)]
pub(super) enum Payload {
    Segments(Segments),
    Inline(SmallVec<[u8; 64]>),
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: WrId,
    pub(super) operation: Operation,
    pub(super) flags: SendFlags,
    pub(super) payload: Payload,
    /// Bytes of the message.
    pub(super) len: u32,
    /// PSNs that it takes; of a READ, those of its answers.
    pub(super) packets: u32,
    /// The first of them, once its first packet was sent.
    pub(super) first: Option<Psn>,
    /// Packets of the answer that were placed, of a READ or atomic.
    pub(super) answered: u32,
    /// It cannot be sent; it fails when all before it are done.
    pub(super) failed: Option<WcStatus>,
}

impl Entry {
    /// Whether an answer with content is needed: an acknowledgement alone does not complete it.
    pub(super) const fn needs_answer(&self) -> bool {
        matches!(
            self.operation,
            Operation::Read { .. } | Operation::Atomic { .. }
        )
    }

    /// Checks this side's memory for the whole message.
    pub(super) fn check(&self, memory: &dyn Memory) -> Result<(), AccessError> {
        let access = if self.needs_answer() {
            Access::LOCAL_WRITE
        } else {
            Access::empty()
        };
        match &self.payload {
            Payload::Segments(segments) => scatter::check(memory, segments, access),
            Payload::Inline(_) => Ok(()),
        }
    }

    /// Fills a packet's payload from `offset` on.
    pub(super) fn fill(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        out: &mut [u8],
    ) -> Result<(), AccessError> {
        match &self.payload {
            Payload::Segments(segments) => scatter::gather(memory, segments, offset, out),
            Payload::Inline(bytes) => {
                let from = bytes.get(offset as usize..).unwrap_or_default();
                out.copy_from_slice(from.get(..out.len()).ok_or(AccessError::OutOfRange)?);
                Ok(())
            }
        }
    }

    /// Places a packet of the answer at `offset`.
    pub(super) fn place(
        &self,
        memory: &mut dyn Memory,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), AccessError> {
        match &self.payload {
            Payload::Segments(segments) => scatter::scatter(memory, segments, offset, bytes),
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
