//! Completion queues.

use crate::finding::StackId;

/// A completion queue, as far as the rules need it.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    /// Capacity in completions.
    pub(crate) size: u32,
    /// Signaled send requests whose completions have not been polled.
    pub(crate) unpolled_sends: u32,
    /// Events taken but not acknowledged.
    pub(crate) unacknowledged: u32,
    pub(crate) last_event: StackId,
    /// Whether it has been armed and not polled since.
    pub(crate) arming: Arming,
    /// Whether the program has ever polled it.
    pub(crate) is_polled: bool,
}

/// What the program did since it requested an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arming {
    /// It did not request one, or has polled since.
    Polled,
    /// It requested one at this place while requests were outstanding, after having polled, and did not poll again.
    Unpolled(StackId),
}
