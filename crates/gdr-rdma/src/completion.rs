//! Completion queues.

use std::sync::Arc;

use gdr_roce::Completion;

use crate::deadline::Deadline;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;

/// Where the ends of requests are told. A clone is the same queue.
///
/// Several threads may poll one queue; each completion goes to one of them. What a completion
/// tells of is in memory when it is polled.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Device,
    mailbox: Arc<Mailbox<Completion>>,
}

impl CompletionQueue {
    pub(crate) fn new(device: Device, capacity: usize) -> Self {
        let mailbox = Arc::new(Mailbox::new(capacity));
        Self { device, mailbox }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> usize {
        self.mailbox.capacity()
    }

    /// The next completion, if there is one. Where there is none yet this takes a turn of the
    /// device's engine, so a loop over it is the fastest way to wait.
    ///
    /// # Errors
    /// [`Error::CompletionQueueOverrun`], once those that were not lost have been taken.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mut next = self.mailbox.pop();
        if next.is_none() && self.device.progress() {
            next = self.mailbox.pop();
        }
        if next.is_none() {
            self.check()?;
        }
        Ok(next)
    }

    /// Waits for the next completion: awake for the device's
    /// [`busy_poll`](crate::SoftOptions::busy_poll), then asleep.
    ///
    /// # Errors
    /// [`Error::Deadline`]; [`Error::CompletionQueueOverrun`] as [`CompletionQueue::poll`].
    pub fn wait(&self, deadline: Deadline) -> Result<Completion> {
        let next = self.device.engine().wait(
            deadline,
            || self.mailbox.pop(),
            || self.mailbox.pop_asleep(deadline),
        );
        next.map_or_else(
            || {
                self.check()?;
                Err(Error::Deadline {
                    what: "a completion",
                    remedy: "look at the peer, or wait longer than its retries take",
                })
            },
            Ok,
        )
    }

    pub(crate) fn mailbox(&self) -> &Arc<Mailbox<Completion>> {
        &self.mailbox
    }

    fn check(&self) -> Result<()> {
        if self.mailbox.has_overrun() {
            let capacity = self.mailbox.capacity();
            return Err(Error::CompletionQueueOverrun { capacity });
        }
        Ok(())
    }
}
