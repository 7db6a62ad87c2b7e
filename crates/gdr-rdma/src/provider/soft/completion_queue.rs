//! Completion queues of the soft provider.

use std::sync::Arc;

use gdr_roce::Completion;

use super::cq_entries::CqEntries;
use super::device::SoftDevice;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::provider::CompletionQueueOps;
use crate::types::CqNumber;

/// A completion queue, which the engine fills.
#[derive(Debug)]
pub(super) struct SoftCompletionQueue {
    device: Arc<SoftDevice>,
    entries: Arc<CqEntries>,
}

impl SoftCompletionQueue {
    pub(super) fn new(device: Arc<SoftDevice>, capacity: usize) -> Self {
        Self {
            entries: device.state().completion_entries(capacity, None),
            device,
        }
    }

    pub(super) fn device(&self) -> &Arc<SoftDevice> {
        &self.device
    }

    pub(super) fn entries(&self) -> &Arc<CqEntries> {
        &self.entries
    }

    /// Fails if completions were lost.
    fn check_overrun(&self) -> Result<()> {
        if self.entries.lost() > 0 {
            let capacity = self.entries.capacity();
            return Err(Error::CompletionQueueOverrun { capacity });
        }
        Ok(())
    }
}

impl CompletionQueueOps for SoftCompletionQueue {
    fn number(&self) -> CqNumber {
        self.entries.number()
    }

    fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    fn poll(&self) -> Result<Option<Completion>> {
        self.device.check_process()?;
        let mut next = self.entries.pop();
        if next.is_none() && self.device.progress_for(&self.entries) {
            next = self.entries.pop();
        }
        if next.is_none() {
            self.check_overrun()?;
        }
        Ok(next)
    }

    fn wait(&self, deadline: Deadline) -> Result<Option<Completion>> {
        self.device.check_process()?;
        let next = self.device.wait(&self.entries, deadline);
        if next.is_none() {
            self.check_overrun()?;
        }
        Ok(next)
    }
}
