//! Copies of memory of another process into registered memory, by the copy thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::CopyThread;
use super::peer_memory::PeerId;
use crate::buffer::read_ahead::Ticket;
use crate::buffer::read_source::ReadSource;

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingState {
    InProgress,
    /// All bytes are in the memory.
    Complete,
    /// It was not made: nothing was written, unless the memory was freed or the context destroyed meanwhile.
    Failed,
}

const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const CANCELLED: u8 = 2;
const FAILED: u8 = 3;

/// What the engine and the copy thread know of a copy besides its word.
#[derive(Debug, Default)]
pub(super) struct Outcome(AtomicU8);

impl Outcome {
    fn leave_waiting(&self, to: u8) -> Result<u8, u8> {
        self.0
            .compare_exchange(WAITING, to, Ordering::AcqRel, Ordering::Acquire)
    }

    /// From here on it can only be waited for. Returns whether it is still wanted.
    pub(super) fn begin(&self) -> bool {
        self.leave_waiting(BEGUN).is_ok()
    }

    /// It is not begun any more. Returns false if it was before.
    pub(super) fn cancel(&self) -> bool {
        matches!(self.leave_waiting(CANCELLED), Ok(_) | Err(CANCELLED))
    }

    pub(super) fn fail(&self) {
        self.0.store(FAILED, Ordering::Release);
    }

    fn is_failed(&self) -> bool {
        matches!(self.0.load(Ordering::Acquire), CANCELLED | FAILED)
    }
}

/// A copy that was handed over to the copy thread, which goes on for as long as this value exists.
#[derive(Debug)]
pub(crate) struct IncomingCopy {
    pub(super) thread: CopyThread,
    pub(super) ticket: Ticket,
    pub(super) outcome: Arc<Outcome>,
}

impl IncomingCopy {
    /// Looks at a word in page-locked memory: no call of the driver, and no lock.
    pub(crate) fn state(&self) -> IncomingState {
        // In this order: a copy fails before its word is written.
        let has_ended = self.thread.0.link.is_complete(self.ticket);
        match self.outcome.is_failed() {
            true => IncomingState::Failed,
            false if has_ended => IncomingState::Complete,
            false => IncomingState::InProgress,
        }
    }

    /// Gives it up. Returns false if the copy was begun or has ended, and so can only be waited for.
    pub(crate) fn cancel(&self) -> bool {
        self.outcome.cancel()
    }
}

/// The work of an [`IncomingCopy`].
#[derive(Debug)]
pub(super) struct IncomingWork {
    pub(super) peer: PeerId,
    pub(super) from: u64,
    pub(super) into: Arc<ReadSource>,
    pub(super) at: u64,
    pub(super) len: usize,
    pub(super) ticket: Ticket,
    pub(super) outcome: Arc<Outcome>,
}
