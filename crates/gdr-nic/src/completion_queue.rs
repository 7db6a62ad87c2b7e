//! Completion queues that a front end polls.

use std::sync::Arc;

use gdr_roce::Completion;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::shard::cq_entries::{CqEntries, OnCompletion};
use crate::types::CqNumber;
use gdr_udp::Deadline;

/// A completion queue. A clone refers to the same queue.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Device,
    entries: Arc<CqEntries>,
}

impl CompletionQueue {
    pub(crate) fn new(
        device: Device,
        capacity: usize,
        on_completion: Option<OnCompletion>,
    ) -> Self {
        let state = device.shards().state();
        let capacity = match &state.chaos {
            None => capacity,
            Some(faults) => faults.chaos.completion_room(capacity),
        };
        Self {
            entries: state.completion_entries(capacity, on_completion),
            device,
        }
    }

    pub(crate) fn entries(&self) -> &Arc<CqEntries> {
        &self.entries
    }

    /// Returns the device that fills it.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the queue's number, which its events carry.
    pub fn number(&self) -> CqNumber {
        self.entries.number()
    }

    /// Sets the [`time`](Completion::time) of each completion from now on, from the system's monotonic clock.
    pub fn take_times(&self) {
        self.entries.take_times();
    }

    /// Returns how many completions the queue can hold.
    pub fn capacity(&self) -> usize {
        self.entries.capacity()
    }

    /// Changes how many completions the queue can hold, unless it contains more now. Returns whether it did.
    pub fn resize(&self, capacity: usize) -> bool {
        self.entries.resize(capacity)
    }

    /// Passes up to `most` completions to `take`, the oldest first, and returns how many. If there is none, drives
    /// the engine once. Neither waits nor allocates. `take` must not use the queue.
    ///
    /// # Errors
    /// [`Error::CompletionQueueOverrun`] when all stored completions were taken and others were lost;
    /// [`Error::ForkedChild`].
    pub fn poll(&self, most: usize, take: &mut dyn FnMut(Completion)) -> Result<usize> {
        self.poll_by(|entries| entries.pop_many(most, take))
    }

    /// Like [`CompletionQueue::poll`], but appends the completions to a list. Allocates if the list has no room for
    /// `most`, or for as many as the queue can hold.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`].
    pub fn poll_into(&self, most: usize, list: &mut Vec<Completion>) -> Result<usize> {
        // Before the entries are locked.
        list.reserve(most.min(self.capacity()));
        self.poll_by(|entries| entries.pop_into(most, list))
    }

    #[inline]
    fn poll_by(&self, mut pop: impl FnMut(&CqEntries) -> usize) -> Result<usize> {
        self.device.check_process()?;
        let mut count = pop(&self.entries);
        if count == 0 && self.device.shards().progress_for(&self.entries) {
            count = pop(&self.entries);
        }
        if count == 0 {
            self.check_overrun()?;
        }
        Ok(count)
    }

    /// Like [`CompletionQueue::poll`], for the oldest completion only.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`].
    pub fn poll_one(&self) -> Result<Option<Completion>> {
        self.device.check_process()?;
        let mut next = self.entries.pop();
        if next.is_none() && self.device.shards().progress_for(&self.entries) {
            next = self.entries.pop();
        }
        if next.is_none() {
            self.check_overrun()?;
        }
        Ok(next)
    }

    /// Waits for the next completion: polls for the device's
    /// [`busy_poll`](crate::SoftOptions::busy_poll), then sleeps. Returns `None` after the deadline.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`].
    pub fn wait(&self, deadline: Deadline) -> Result<Option<Completion>> {
        self.device.check_process()?;
        let next = self.device.shards().wait(&self.entries, deadline);
        if next.is_none() {
            self.check_overrun()?;
        }
        Ok(next)
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
