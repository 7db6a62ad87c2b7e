//! Completion queues of the software NIC.

use gdr_nic::{CompletionQueue, Deadline};
use gdr_roce::Completion;

use crate::error::Result;
use crate::provider::CompletionQueueOps;
use crate::types::CqNumber;

/// A completion queue.
#[derive(Debug)]
pub(super) struct NicCompletionQueue(pub(super) CompletionQueue);

impl CompletionQueueOps for NicCompletionQueue {
    fn number(&self) -> CqNumber {
        self.0.number()
    }

    fn capacity(&self) -> usize {
        self.0.capacity()
    }

    fn poll(&self) -> Result<Option<Completion>> {
        Ok(self.0.poll_one()?)
    }

    fn wait(&self, deadline: Deadline) -> Result<Option<Completion>> {
        Ok(self.0.wait(deadline)?)
    }
}
