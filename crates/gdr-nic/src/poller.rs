//! Who polls an engine.

use crate::cache_line::CacheLine;

/// Who polls an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poller {
    /// A thread of the program.
    Program,
    /// The progress thread.
    ProgressThread,
}

/// A value for threads of the program, and one for the progress thread, which poll at the same time and write it in each
/// poll: a cache line that both wrote would move between their processors all the time.
#[derive(Debug, Default)]
pub(crate) struct PerPoller<T>([CacheLine<T>; 2]);

impl<T> PerPoller<T> {
    pub(crate) fn of(&self, poller: Poller) -> &T {
        &self.0[poller as usize].0
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|CacheLine(value)| value)
    }
}
