//! The queues of a queue pair.

use gdr_roce::Capabilities;

use crate::completion_queue::CompletionQueue;
use crate::error::{Foreign, NicError, Result};
use crate::protection_domain::ProtectionDomain;
use crate::provider::QueuesInit;
use crate::shared_receive_queue::SharedReceiveQueue;

/// Queues of a queue pair, and the sizes of its own queues. They outlive the queue pair.
#[derive(Clone, Debug)]
pub(crate) struct PairQueues {
    pub(crate) send: CompletionQueue,
    pub(crate) recv: CompletionQueue,
    pub(crate) shared: Option<SharedReceiveQueue>,
    pub(crate) capabilities: Capabilities,
}

impl PairQueues {
    /// Returns the defaults: all completions in one queue, 128 requests in each direction, and 256 inline bytes.
    pub(crate) fn new(queue: &CompletionQueue) -> Self {
        Self {
            send: queue.clone(),
            recv: queue.clone(),
            shared: None,
            capabilities: Capabilities {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_inline: 256,
            },
        }
    }

    /// Returns the queues for a new queue pair of this domain. They must belong to the domain or to its device.
    pub(crate) fn of(&self, domain: &ProtectionDomain) -> Result<QueuesInit<'_>> {
        let device = domain.device();
        if ![&self.send, &self.recv]
            .iter()
            .all(|queue| queue.device().is_same(device))
        {
            return Err(NicError::Foreign(Foreign::CompletionQueue).into());
        }
        let shared = self.shared.as_ref();
        if shared.is_some_and(|queue| queue.domain().id() != domain.id()) {
            return Err(NicError::Foreign(Foreign::SharedReceiveQueue).into());
        }
        Ok(QueuesInit {
            send_queue: self.send.ops(),
            recv_queue: self.recv.ops(),
            shared_receives: shared.map(SharedReceiveQueue::nic),
            capabilities: self.capabilities,
        })
    }
}
