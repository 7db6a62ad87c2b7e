//! Completion queues.

use crate::finding::StackId;

/// A completion queue, as far as rules ask.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    /// The number of completions that it holds.
    pub(crate) size: u32,
    /// Signaled requests of send queues whose completions are not polled.
    pub(crate) unpolled_sends: u32,
    /// Events that were taken and not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) last_event: StackId,
    /// Whether it is armed, and not polled since.
    pub(crate) arming: Arming,
    /// Whether the program has ever polled it.
    pub(crate) is_polled: bool,
}

/// What a program did since it asked for an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arming {
    /// It did not ask, or it polled since.
    Polled,
    /// It asked there while requests were outstanding, after it had polled, and did not poll again.
    Unpolled(StackId),
}
