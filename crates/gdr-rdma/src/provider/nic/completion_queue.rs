//! Completion queues of the software NIC.

use gdr_nic::{CompletionQueue, Deadline};
use gdr_roce::Completion;

use crate::error::Result;
use crate::provider::CompletionQueueOps;
use crate::types::CqNumber;

impl CompletionQueueOps for CompletionQueue {
    fn number(&self) -> CqNumber {
        self.number()
    }

    fn capacity(&self) -> usize {
        self.capacity()
    }

    fn poll(&self) -> Result<Option<Completion>> {
        Ok(self.poll_one()?)
    }

    fn poll_into(&self, most: usize, completions: &mut Vec<Completion>) -> Result<usize> {
        Ok(self.poll_into(most, completions)?)
    }

    fn wait(&self, deadline: Deadline) -> Result<Option<Completion>> {
        Ok(self.wait(deadline)?)
    }
}
