//! Shared receive queues of the software NIC.

use gdr_nic::SharedReceiveQueue;

use super::work_request::{keyed, take_recv};
use crate::error::Result;
use crate::provider::SharedReceiveQueueOps;
use crate::types::SrqNumber;
use crate::work_request::RecvRequest;

/// A shared receive queue.
#[derive(Debug)]
pub(super) struct NicSharedReceiveQueue(pub(super) SharedReceiveQueue);

impl SharedReceiveQueueOps for NicSharedReceiveQueue {
    fn number(&self) -> SrqNumber {
        self.0.number()
    }

    fn post_recv(&self, mut request: RecvRequest) -> Result<()> {
        let segments = keyed(&request.segments);
        let by_key = gdr_roce::RecvRequest {
            id: request.id,
            segments: &segments,
        };
        Ok(self
            .0
            .post_retaining(&by_key, || take_recv(&mut request))??)
    }

    fn arm_limit(&self, limit: u32) -> Result<()> {
        Ok(self.0.arm_limit(limit)?)
    }

    fn limit(&self) -> u32 {
        self.0.limit().unwrap_or(0)
    }
}
