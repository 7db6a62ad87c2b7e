//! Completion queues.

use std::sync::Arc;

use gdr_roce::Completion;

use crate::device::Device;
use crate::error::{Awaited, Error, Result};
use crate::provider::CompletionQueueOps;
use crate::types::CqNumber;
use gdr_nic::Deadline;

/// A queue of completions. A clone refers to the same queue.
///
/// Several threads may poll one queue; each completion goes to one of them. When a completion is
/// polled, the bytes that it reports are in memory.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Device,
    queue: Arc<dyn CompletionQueueOps>,
}

impl Device {
    /// Creates a completion queue with `capacity` entries (`ibv_create_cq`). It never overflows if it has
    /// an entry for every request of the queue pairs that use it.
    pub fn completion_queue(&self, capacity: usize) -> CompletionQueue {
        CompletionQueue {
            device: self.clone(),
            queue: self.ops().create_completion_queue(capacity),
        }
    }
}

impl CompletionQueue {
    /// Returns the device that the queue belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the queue's number, which its events carry.
    pub fn number(&self) -> CqNumber {
        self.queue.number()
    }

    /// Returns how many completions the queue can hold.
    pub fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    /// Returns the next completion, if there is one. If the queue is empty, this polls the device's
    /// engine once, so calling it in a loop gives the lowest latency.
    ///
    /// # Errors
    /// [`NicError::CompletionQueueOverrun`](crate::NicError::CompletionQueueOverrun), once the completions that were not lost have been taken;
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild); [`Error::Verbs`] if a kernel device failed. An error of
    /// [`VerbsError::Flush`](crate::VerbsError::Flush) takes no completion: the completion is
    /// returned once the bytes are in GPU memory, or their region has ended.
    pub fn poll(&self) -> Result<Option<Completion>> {
        self.queue.poll()
    }

    /// Appends up to `most` completions, the oldest first, and returns how many. If there is none yet, polls the
    /// device's engine once, as [`CompletionQueue::poll`] does. Several take less time together than one by one.
    ///
    /// # Errors
    /// Same as [`CompletionQueue::poll`]; those that were taken before are in `completions`.
    pub fn poll_into(&self, most: usize, completions: &mut Vec<Completion>) -> Result<usize> {
        self.queue.poll_into(most, completions)
    }

    /// Waits for the next completion: polls for the device's
    /// [`busy_poll`](crate::SoftOptions::busy_poll), then sleeps.
    ///
    /// # Errors
    /// [`Error::Deadline`]; the others as [`CompletionQueue::poll`].
    pub fn wait(&self, deadline: Deadline) -> Result<Completion> {
        let next = self.queue.wait(deadline)?;
        next.ok_or(Error::Deadline(Awaited::Completion))
    }

    pub(crate) fn ops(&self) -> &Arc<dyn CompletionQueueOps> {
        &self.queue
    }
}
