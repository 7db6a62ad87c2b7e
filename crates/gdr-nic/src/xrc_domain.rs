//! XRC domains: the shared receive queues that peers of extended connections name.

use std::sync::Arc;

use gdr_roce::{Capabilities, XrcSrqn};

use crate::completion_queue::CompletionQueue;
use crate::connection::{Connection, config};
use crate::device::Device;
use crate::error::{Error, Foreign, Result};
use crate::queue_pair::{QueuePair, Queues};
use crate::shard::transport::Transport;
use crate::shard::xrc_context::{Registration, XrcContext};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::types::Domain;

/// The shared receive queues that requests on extended connections (XRC) may name. A clone refers to the same domain,
/// which belongs to one process, and lives as long as one of its queues or queue pairs.
#[derive(Clone, Debug)]
pub struct XrcDomain {
    device: Device,
    context: Arc<XrcContext>,
}

impl Device {
    /// Creates an XRC domain without queues.
    ///
    /// # Errors
    /// [`Error::ForkedChild`].
    pub fn xrc_domain(&self) -> Result<XrcDomain> {
        self.check_process()?;
        Ok(XrcDomain {
            device: self.clone(),
            context: Arc::default(),
        })
    }
}

impl XrcDomain {
    /// Creates a shared receive queue for at most `max_wr` requests, whose receives complete in `completions`. Peers refer
    /// to it by its [number](SharedReceiveQueue::xrc_number). Whichever queue they name, they can access the memory regions
    /// in every protection domain that has a queue in the XRC domain, including `domain`.
    ///
    /// # Errors
    /// [`Error::Foreign`] for a completion queue of another device, [`Error::TooManyQueuePairs`] when all
    /// numbers are taken, [`Error::ForkedChild`].
    pub fn receive_queue(
        &self,
        domain: Domain,
        max_wr: u32,
        completions: &CompletionQueue,
    ) -> Result<SharedReceiveQueue> {
        self.device.check_process()?;
        if !completions.device().is_same(&self.device) {
            return Err(Error::Foreign(Foreign::CompletionQueue));
        }
        let producers = self.device.shards().producers(completions.entries());
        let registration = Registration::new(&self.context, domain, max_wr, producers)?;
        Ok(SharedReceiveQueue::registered(&self.device, registration))
    }

    /// Creates the end of an extended connection that receives requests, in RESET. Receives cannot be posted to it.
    ///
    /// # Errors
    /// Same as [`Device::queue_pair`].
    pub fn target(&self) -> Result<QueuePair<Connection>> {
        let capabilities = Capabilities {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_inline: 0,
        };
        // Receives complete in the completion queue of the shared queue that a request names.
        let unused = self.device.completion_queue(1, None);
        let queues = Queues::completing_in(&unused);
        let mut parts = queues.parts(&self.device, Domain::new(), capabilities)?;
        parts.xrc = Some(Arc::clone(&self.context));
        let shard = self.device.shards().emptiest();
        let qpn = shard.create_qp(parts, |qpn, _, _| {
            let config = config(shard.receive_buffer());
            let target = gdr_roce::QueuePair::target(qpn, config, self.context.roce());
            Transport::Connection(target.with_packet_budget(shard.packet_budget()))
        })?;
        Ok(QueuePair::of(&self.device, qpn))
    }
}

impl SharedReceiveQueue {
    /// Returns the number by which peers refer to it; `None` if it is not in an [`XrcDomain`].
    pub fn xrc_number(&self) -> Option<XrcSrqn> {
        self.registration().map(Registration::number)
    }
}
