//! Where a queue pair takes its receives from.

use std::collections::VecDeque;

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::error::PostError;
use crate::ids::{Qpn, WrId};
use crate::request::RecvRequest;
use crate::sge::{self, Segments};
use crate::shared_receive_queue::SharedReceiveQueue;

/// A request on a receive queue.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub(crate) id: WrId,
    pub(crate) segments: Segments,
    /// Length of the segments together.
    pub(crate) capacity: u64,
}

impl RecvWqe {
    pub(crate) fn new(request: &RecvRequest<'_>) -> Self {
        Self {
            id: request.id,
            segments: request.segments.into(),
            capacity: sge::total_len(request.segments),
        }
    }

    /// Its completion without success.
    pub(crate) const fn failed(&self, status: WcStatus, qpn: Qpn) -> Completion {
        Completion {
            id: self.id,
            status,
            opcode: WcOpcode::Recv,
            byte_len: 0,
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

/// The receive queue of a queue pair.
#[derive(Debug)]
pub(crate) enum ReceiveQueue {
    /// Only this queue pair takes from it.
    Own(VecDeque<RecvWqe>),
    /// Several queue pairs take from it. It outlives their errors.
    Shared(SharedReceiveQueue),
}

impl ReceiveQueue {
    /// The queue of a new queue pair: `shared`, or an empty one of its own.
    pub(crate) fn new(shared: Option<SharedReceiveQueue>) -> Self {
        shared.map_or_else(|| Self::Own(VecDeque::new()), Self::Shared)
    }

    pub(crate) const fn shared(&self) -> Option<&SharedReceiveQueue> {
        match self {
            Self::Own(_) => None,
            Self::Shared(queue) => Some(queue),
        }
    }

    /// Adds a request to a queue of this queue pair that has room for `max`, where `in_use` are
    /// taken and not complete.
    pub(crate) fn post(
        &mut self,
        request: &RecvRequest<'_>,
        in_use: usize,
        max: u32,
    ) -> Result<(), PostError> {
        match self {
            Self::Own(queue) if queue.len() + in_use >= max as usize => Err(PostError::Full(max)),
            Self::Own(queue) => {
                queue.push_back(RecvWqe::new(request));
                Ok(())
            }
            Self::Shared(_) => Err(PostError::SharedReceives),
        }
    }

    /// Takes the oldest request.
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(queue) => queue.take(),
        }
    }

    /// Puts a request that was taken, and not used, in front of the others.
    pub(crate) fn put_back(&mut self, receive: RecvWqe) {
        match self {
            Self::Own(queue) => queue.push_front(receive),
            Self::Shared(queue) => queue.put_back(receive),
        }
    }

    /// Takes all requests that end with this queue pair; a shared queue's do not.
    pub(crate) fn take_own(&mut self) -> VecDeque<RecvWqe> {
        match self {
            Self::Own(queue) => std::mem::take(queue),
            Self::Shared(_) => VecDeque::new(),
        }
    }
}
