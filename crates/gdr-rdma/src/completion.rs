//! Completion queues.

use std::sync::Arc;

use gdr_roce::Completion;

use crate::deadline::Deadline;
use crate::device::{Device, Engine};
use crate::error::{Error, Result};
use crate::mailbox::Mailbox;
use crate::verbs::Queue;

/// Where the ends of requests are told. A clone is the same queue.
///
/// Several threads may poll one queue; each completion goes to one of them. What a completion
/// tells of is in memory when it is polled.
#[derive(Clone, Debug)]
pub struct CompletionQueue {
    device: Device,
    entries: Entries,
}

/// Where completions are kept.
#[derive(Clone, Debug)]
pub(crate) enum Entries {
    /// By the engine of this process.
    Soft(Arc<Mailbox<Completion>>),
    /// By a device of the kernel.
    Verbs(Arc<Queue>),
}

impl CompletionQueue {
    pub(crate) fn soft(device: Device, capacity: usize) -> Self {
        let entries = Entries::Soft(Arc::new(Mailbox::new(capacity)));
        Self { device, entries }
    }

    pub(crate) fn verbs(device: Device, queue: Arc<Queue>) -> Self {
        let entries = Entries::Verbs(queue);
        Self { device, entries }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// How many completions it holds.
    pub fn capacity(&self) -> usize {
        match &self.entries {
            Entries::Soft(mailbox) => mailbox.capacity(),
            Entries::Verbs(queue) => queue.capacity(),
        }
    }

    /// The next completion, if there is one. Where there is none yet this takes a turn of the
    /// device's engine, so a loop over it is the fastest way to wait.
    ///
    /// # Errors
    /// [`Error::CompletionQueueOverrun`], once those that were not lost have been taken;
    /// [`Error::Verbs`] where a device of the kernel failed.
    pub fn poll(&self) -> Result<Option<Completion>> {
        let mailbox = match &self.entries {
            Entries::Soft(mailbox) => mailbox,
            Entries::Verbs(queue) => return Ok(queue.poll()?),
        };
        let mut next = mailbox.pop();
        if next.is_none() && self.device.progress() {
            next = mailbox.pop();
        }
        if next.is_none() {
            check(mailbox)?;
        }
        Ok(next)
    }

    /// Waits for the next completion: awake for the device's
    /// [`busy_poll`](crate::SoftOptions::busy_poll), then asleep.
    ///
    /// # Errors
    /// [`Error::Deadline`]; the others as [`CompletionQueue::poll`].
    pub fn wait(&self, deadline: Deadline) -> Result<Completion> {
        let next = match (&self.entries, self.device.engine()) {
            (Entries::Soft(mailbox), Engine::Soft(soft)) => {
                let next = soft.wait(deadline, || mailbox.pop(), || mailbox.pop_asleep(deadline));
                if next.is_none() {
                    check(mailbox)?;
                }
                next
            }
            (Entries::Verbs(queue), _) => queue.wait(deadline)?,
            // A queue is made by its device alone.
            (Entries::Soft(mailbox), Engine::Verbs(_)) => mailbox.pop_asleep(deadline),
        };
        next.ok_or(Error::Deadline {
            what: "a completion",
            remedy: "look at the peer, or wait longer than its retries take",
        })
    }

    pub(crate) fn entries(&self) -> &Entries {
        &self.entries
    }
}

fn check(mailbox: &Mailbox<Completion>) -> Result<()> {
    if mailbox.has_overrun() {
        let capacity = mailbox.capacity();
        return Err(Error::CompletionQueueOverrun { capacity });
    }
    Ok(())
}
