//! Shared receive queues of the soft provider.

use std::any::Any;
use std::sync::Arc;

use super::device::SoftDevice;
use super::srq_context::SrqContext;
use crate::error::{Error, Foreign, Result};
use crate::provider::SharedReceiveQueueOps;
use crate::types::{DomainId, SrqNumber};
use crate::work_request::RecvRequest;

/// A shared receive queue. Its queue pairs hold its state, too.
#[derive(Debug)]
pub(super) struct SoftSharedReceiveQueue {
    device: Arc<SoftDevice>,
    context: Arc<SrqContext>,
}

impl SoftSharedReceiveQueue {
    pub(super) fn new(device: Arc<SoftDevice>, domain: DomainId, max_wr: u32) -> Self {
        Self {
            device,
            context: Arc::new(SrqContext::new(domain, max_wr)),
        }
    }

    /// The state of a queue, or an error if it belongs to another provider or domain.
    pub(super) fn context_of(
        queue: &Arc<dyn SharedReceiveQueueOps>,
        domain: DomainId,
    ) -> Result<Arc<SrqContext>> {
        let queue: &dyn Any = &**queue;
        let context = queue.downcast_ref::<Self>().map(|queue| &queue.context);
        context
            .filter(|context| context.domain() == domain)
            .cloned()
            .ok_or(Error::Foreign(Foreign::SharedReceiveQueue))
    }
}

impl SharedReceiveQueueOps for SoftSharedReceiveQueue {
    fn number(&self) -> SrqNumber {
        self.context.number()
    }

    fn post_recv(&self, mut request: RecvRequest) -> Result<()> {
        self.device.check_process()?;
        Ok(self.context.post(&mut request)?)
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        self.device.check_process()?;
        self.device.arm_limit(&self.context, limit);
        Ok(())
    }

    fn limit(&self) -> u32 {
        match self.device.check_process() {
            Ok(()) => self.context.roce().limit(),
            Err(_) => 0,
        }
    }
}
