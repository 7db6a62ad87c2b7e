//! Completion queues that a front end polls.

use std::sync::Arc;

use gdr_roce::Completion;

use super::device::Device;
use crate::error::{Error, Result};
use crate::provider::soft::cq_entries::{CqEntries, OnCompletion};
use crate::types::CqNumber;

/// A completion queue. A clone is the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Device,
    entries: Arc<CqEntries>,
}

impl CompletionQueue {
    pub(super) fn new(
        device: Device,
        capacity: usize,
        on_completion: Option<OnCompletion>,
    ) -> Self {
        Self {
            entries: device
                .soft()
                .state()
                .completion_entries(capacity, on_completion),
            device,
        }
    }

    pub(super) fn entries(&self) -> &Arc<CqEntries> {
        &self.entries
    }

    /// The engine that fills it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its number, which its events carry.
    pub fn number(&self) -> CqNumber {
        self.entries.number()
    }

    /// How many completions it holds at most.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Changes how many completions it holds; returns whether it does: not if there are more now.
    pub fn resize(&self, capacity: usize) -> bool {
        self.entries.resize(capacity)
    }

    /// Passes up to `most` completions to `take`, the oldest first, and returns how many. If there is
    /// none, it drives the engine once. It neither waits nor allocates. `take` must not use the
    /// queue.
    ///
    /// # Errors
    /// [`Error::CompletionQueueOverrun`] when all stored completions were taken and others were lost;
    /// [`Error::ForkedChild`].
    pub fn poll(&self, most: usize, take: &mut dyn FnMut(Completion)) -> Result<usize> {
        self.device.check_process()?;
        let mut count = self.entries.pop_many(most, take);
        if count == 0 && self.device.soft().progress_for(&self.entries) {
            count = self.entries.pop_many(most, take);
        }
        if count == 0 {
            self.check_overrun()?;
        }
        Ok(count)
    }

    /// Fails if completions were lost.
    ///
    /// # Errors
    /// [`Error::CompletionQueueOverrun`].
    pub fn check_overrun(&self) -> Result<()> {
        match self.entries.lost() {
            0 => Ok(()),
            _ => Err(Error::CompletionQueueOverrun {
                capacity: self.capacity(),
            }),
        }
    }
}
