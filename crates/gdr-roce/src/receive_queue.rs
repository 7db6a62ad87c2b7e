//! The sources of a queue pair's receives.

use std::collections::VecDeque;

use crate::completion::{Completion, WcOpcode, WcStatus};
use crate::error::PostError;
use crate::ids::{Qpn, WrId, XrcSrqn};
use crate::request::RecvRequest;
use crate::sge::{self, Segments};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::xrc_domain::XrcDomain;

/// A request on a receive queue.
#[derive(Debug)]
pub(crate) struct RecvWqe {
    pub(crate) id: WrId,
    pub(crate) segments: Segments,
    /// Total length of the segments in bytes.
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

    /// Returns its unsuccessful completion.
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
    /// Private to this queue pair.
    Own(VecDeque<RecvWqe>),
    /// Shared by several queue pairs, and unaffected by their errors.
    Shared(SharedReceiveQueue),
    /// Each message names a shared queue of this domain (XRC).
    Named {
        domain: XrcDomain,
        /// The queue of the latest message.
        queue: Option<SharedReceiveQueue>,
    },
}

impl ReceiveQueue {
    /// Returns the queue of a new queue pair: `shared`, or an empty private one.
    pub(crate) fn new(shared: Option<SharedReceiveQueue>) -> Self {
        shared.map_or_else(|| Self::Own(VecDeque::new()), Self::Shared)
    }

    /// Returns the source of an XRC target, whose messages name their queue.
    pub(crate) const fn named(domain: XrcDomain) -> Self {
        Self::Named {
            domain,
            queue: None,
        }
    }

    /// Returns the same kind of queue as new, without its private requests.
    pub(crate) fn renewed(&self) -> Self {
        match self {
            Self::Own(_) => Self::new(None),
            Self::Shared(queue) => Self::Shared(queue.clone()),
            Self::Named { domain, .. } => Self::named(domain.clone()),
        }
    }

    /// Selects the queue to take from. Returns whether there is one with this number.
    pub(crate) fn select(&mut self, number: XrcSrqn) -> bool {
        let Self::Named { domain, queue } = self else {
            return false;
        };
        *queue = domain.get(number);
        queue.is_some()
    }

    /// Returns whether other queue pairs share the queue.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Returns whether messages name their queue.
    pub(crate) const fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
    }

    /// Adds a request to a private queue of capacity `max`, of whose entries `in_use` are taken and not complete.
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
            Self::Shared(_) | Self::Named { .. } => Err(PostError::SharedReceives),
        }
    }

    /// Takes the oldest request.
    pub(crate) fn take(&mut self) -> Option<RecvWqe> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(queue) => queue.take(),
            Self::Named { queue, .. } => queue.as_ref()?.take(),
        }
    }

    /// Puts a taken but unused request back at the head of the queue.
    pub(crate) fn put_back(&mut self, receive: RecvWqe) {
        match self {
            Self::Own(queue) => queue.push_front(receive),
            Self::Shared(queue) => queue.put_back(receive),
            Self::Named { queue, .. } => {
                if let Some(queue) = queue {
                    queue.put_back(receive);
                }
            }
        }
    }

    /// Takes all requests of a private queue; those on a shared queue outlive the queue pair.
    pub(crate) fn take_own(&mut self) -> VecDeque<RecvWqe> {
        match self {
            Self::Own(queue) => std::mem::take(queue),
            Self::Shared(_) | Self::Named { .. } => VecDeque::new(),
        }
    }
}
