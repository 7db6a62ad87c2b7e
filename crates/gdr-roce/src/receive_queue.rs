//! Where a queue pair takes its receives from.

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
    /// Each message names a shared queue of this domain.
    Named {
        domain: XrcDomain,
        /// The queue of the latest message.
        queue: Option<SharedReceiveQueue>,
    },
}

impl ReceiveQueue {
    /// The queue of a new queue pair: `shared`, or an empty one of its own.
    pub(crate) fn new(shared: Option<SharedReceiveQueue>) -> Self {
        shared.map_or_else(|| Self::Own(VecDeque::new()), Self::Shared)
    }

    /// The queues that the messages name.
    pub(crate) const fn named(domain: XrcDomain) -> Self {
        Self::Named {
            domain,
            queue: None,
        }
    }

    /// The same, as for a new queue pair.
    pub(crate) fn renewed(&self) -> Self {
        match self {
            Self::Own(_) => Self::new(None),
            Self::Shared(queue) => Self::Shared(queue.clone()),
            Self::Named { domain, .. } => Self::named(domain.clone()),
        }
    }

    /// Takes from the queue with this number from here on; returns whether there is one.
    pub(crate) fn select(&mut self, number: XrcSrqn) -> bool {
        let Self::Named { domain, queue } = self else {
            return false;
        };
        *queue = domain.get(number);
        queue.is_some()
    }

    /// Returns whether other queue pairs take from the same queue.
    pub(crate) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Returns whether messages name their queue.
    pub(crate) const fn is_named(&self) -> bool {
        matches!(self, Self::Named { .. })
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

    /// Puts a request that was taken, and not used, in front of the others.
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

    /// Takes all requests that end with this queue pair; a shared queue's do not.
    pub(crate) fn take_own(&mut self) -> VecDeque<RecvWqe> {
        match self {
            Self::Own(queue) => std::mem::take(queue),
            Self::Shared(_) | Self::Named { .. } => VecDeque::new(),
        }
    }
}
