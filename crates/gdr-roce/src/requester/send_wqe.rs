//! Send queue entries.

use crate::attributes::Capabilities;
use crate::completion::{Completion, WcStatus};
use crate::error::PostError;
use crate::ids::{Qpn, WrId, XrcSrqn};
use crate::memory::{Access, AccessError, Memory};
use crate::mtu::Mtu;
use crate::payload::Payload;
use crate::psn::Psn;
use crate::request::{Data, Operation, SendFlags, SendRequest};

/// A work request on the send queue.
#[derive(Debug)]
pub(super) struct SendWqe {
    pub(super) id: WrId,
    pub(super) operation: Operation,
    pub(super) flags: SendFlags,
    pub(super) payload: Payload,
    /// Message length in bytes.
    pub(super) len: u32,
    /// The peer's shared receive queue, on an extended connection.
    pub(super) receives: XrcSrqn,
    /// The number of PSNs used: one per packet; for a READ, one per response.
    pub(super) packets: u32,
    /// The first PSN, assigned at the first transmission.
    pub(super) first: Option<Psn>,
    /// Set when the request cannot be sent; it fails once all earlier requests are complete.
    pub(super) failed: Option<WcStatus>,
}

impl SendWqe {
    /// An entry to be [set](SendWqe::set).
    pub(super) const EMPTY: Self = Self {
        id: WrId(0),
        operation: Operation::Send { immediate: None },
        flags: SendFlags::empty(),
        payload: Payload::EMPTY,
        len: 0,
        receives: XrcSrqn::new(0),
        packets: 0,
        first: None,
        failed: None,
    };

    /// Validates a request, and copies its inline data or segment list.
    pub(super) fn new(
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<Self, PostError> {
        let mut wqe = Self::EMPTY;
        wqe.set(request, caps, mtu)?;
        Ok(wqe)
    }

    /// Sets an [empty](SendWqe::EMPTY) entry, as [`SendWqe::new`] makes it.
    // In place: a copy of what was just stored by fields waits until the CPU's store buffer has written it, behind
    // everything that went to a ring.
    #[inline(always)]
    pub(super) fn set(
        &mut self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        mtu: Mtu,
    ) -> Result<(), PostError> {
        // Inline data is copied when posted, so a response would have nowhere to go.
        if fills_memory(request.operation) && matches!(request.data, Data::Inline(_)) {
            return Err(PostError::InlineResponse);
        }
        let len = self.payload.set(request.data, caps)?;
        let is_word = matches!(
            request.operation,
            Operation::Atomic { .. } | Operation::AtomicWrite { .. }
        );
        // Atomics operate on 64 bits (IBTA 9.4.5).
        if is_word && len != 8 {
            return Err(PostError::AtomicLength(len.into()));
        }
        self.id = request.id;
        self.operation = request.operation;
        self.flags = request.flags;
        self.len = len;
        self.packets = mtu.packets(len);
        Ok(())
    }

    /// Returns whether the operation is an atomic.
    pub(super) const fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::Atomic { .. })
    }

    /// Returns whether a dedicated response, rather than an acknowledgement, completes the request.
    pub(super) const fn expects_response(&self) -> bool {
        fills_memory(self.operation)
            || matches!(
                self.operation,
                Operation::AtomicWrite { .. } | Operation::Flush { .. }
            )
    }

    /// Returns whether the request is executed locally, without a packet.
    pub(super) const fn is_local(&self) -> bool {
        matches!(
            self.operation,
            Operation::Bind { .. } | Operation::Invalidate { .. }
        )
    }

    /// Checks access to all local bytes that are sent, or that the response fills.
    pub(super) fn check(&self, memory: &dyn Memory) -> Result<(), AccessError> {
        let access = if fills_memory(self.operation) {
            Access::LOCAL_WRITE
        } else {
            // Sent bytes are only read, which every region permits.
            Access::empty()
        };
        self.payload.check(memory, self.len as usize, access)
    }

    pub(super) const fn completion(&self, status: WcStatus, qpn: Qpn) -> Completion {
        Completion {
            id: self.id,
            status,
            opcode: self.operation.completed_as(),
            byte_len: if matches!(status, WcStatus::Success) {
                self.len
            } else {
                0
            },
            immediate: None,
            invalidated: None,
            time: None,
            solicited: false,
            qpn,
            source_qpn: None,
            has_network_header: false,
            ip_checksum_ok: false,
        }
    }
}

/// Returns whether the response carries data for the segments.
const fn fills_memory(operation: Operation) -> bool {
    matches!(operation, Operation::Read { .. } | Operation::Atomic { .. })
}
