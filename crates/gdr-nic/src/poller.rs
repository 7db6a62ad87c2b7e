//! The two kinds of threads that poll an engine.

use crate::cache_line::CacheLine;

/// A kind of thread that polls an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Poller {
    /// A thread of the program.
    Program,
    /// The progress thread.
    ProgressThread,
}

/// One value for the program's threads and one for the progress thread, each in its own cache line. Both poll at the
/// same time and write in each poll, so a shared line would bounce between their processors.
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
