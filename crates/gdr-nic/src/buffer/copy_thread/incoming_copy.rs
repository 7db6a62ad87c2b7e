//! Copies of memory of another process into registered memory, by the copy thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_cuda::{GuardedCopy, GuardedState, HostBuffer};

use super::incoming_target::IncomingTarget;
use super::peer_memory::PeerId;
use super::{CopyThread, GUARDS};
use crate::buffer::read_source::SourceId;

/// How many copies can be handed over and not ended.
pub(super) const INCOMING: usize = 64;

/// How far a copy is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingState {
    InProgress,
    /// All bytes are in the memory.
    Complete,
    /// It was not made whole, and writes nothing any more, unless the memory was freed or the context destroyed
    /// meanwhile.
    Failed,
}

/// A copy that was handed over to the copy thread, which goes on for as long as this value exists.
#[derive(Debug)]
pub(crate) struct IncomingCopy {
    pub(super) progress: IncomingProgress,
    pub(super) thread: CopyThread,
}

impl IncomingCopy {
    /// Looks at words in page-locked memory: no call of the driver, and no lock.
    pub(crate) fn state(&self) -> IncomingState {
        self.progress.state()
    }

    /// Whether the copy thread and the GPU have come to it, also if it was given up before.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress.copy.has_ended()
    }

    /// How many copies of its thread have ended: where that grows, this one waits for its turn only.
    pub(crate) fn ended_of_thread(&self) -> u64 {
        self.thread.ended_incoming()
    }

    /// Gives it up, and returns how far it is: what has begun to write ends soon.
    pub(crate) fn cancel(&self) -> IncomingState {
        self.progress.copy.cancel();
        self.state()
    }
}

impl Drop for IncomingCopy {
    /// Cancels the copy, as its message has ended: nothing is written once a queue pair is destroyed.
    fn drop(&mut self) {
        self.progress.copy.cancel();
    }
}

/// What the engine and the copy thread know of a copy.
#[derive(Clone, Debug)]
pub(super) struct IncomingProgress {
    pub(super) copy: GuardedCopy,
    /// Set where the words of the copy do not say it.
    has_failed: Arc<AtomicBool>,
}

impl IncomingProgress {
    pub(super) fn state(&self) -> IncomingState {
        match self.copy.state() {
            // Check this first, because the words of such a copy may say forever that it is in progress.
            _ if self.has_failed.load(Ordering::Acquire) => IncomingState::Failed,
            GuardedState::InProgress => IncomingState::InProgress,
            GuardedState::Complete => IncomingState::Complete,
            GuardedState::Cancelled => IncomingState::Failed,
        }
    }

    pub(super) fn fail(&self) {
        self.has_failed.store(true, Ordering::Release);
    }
}

/// The work of an [`IncomingCopy`].
#[derive(Debug)]
pub(super) struct IncomingWork {
    pub(super) peer: PeerId,
    pub(super) from: u64,
    pub(super) into: IncomingTarget,
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) progress: IncomingProgress,
}

/// The copies that were handed over last: the engine's side.
#[derive(Debug)]
pub(super) struct IncomingCopies {
    count: u64,
    last: [Option<(SourceId, IncomingProgress)>; INCOMING],
}

/// The offset of the words of a copy.
pub(super) const fn guard_at(slot: usize) -> usize {
    GUARDS + slot * GuardedCopy::LEN
}

impl IncomingCopies {
    pub(super) fn new() -> Self {
        Self {
            count: 0,
            last: [const { None }; INCOMING],
        }
    }

    /// Begins a copy of `len` bytes, if another one can be made now.
    pub(super) fn begin(
        &mut self,
        memory: &Arc<HostBuffer>,
        into: SourceId,
        len: u64,
    ) -> Option<IncomingProgress> {
        let slot = (self.count % INCOMING as u64) as usize;
        let last = &mut self.last[slot];
        // Until the previous copy has ended, the words of the slot belong to it.
        if last.as_ref().is_some_and(|(_, it)| !it.copy.has_ended()) {
            return None;
        }
        let copy = GuardedCopy::new(memory, guard_at(slot), self.count / INCOMING as u64, len);
        let progress = IncomingProgress {
            copy: copy.ok()?,
            has_failed: Arc::default(),
        };
        self.count += 1;
        *last = Some((into, progress.clone()));
        Some(progress)
    }

    /// How many have ended.
    pub(super) fn ended(&self) -> u64 {
        let all = self.last.iter().flatten();
        self.count - all.filter(|(_, it)| !it.copy.has_ended()).count() as u64
    }

    /// Gives up the copies into `memory`; returns those that have begun to write.
    pub(super) fn end(&self, memory: SourceId) -> Vec<IncomingProgress> {
        let all = self.last.iter().flatten();
        let of_memory = all.filter(|(into, _)| *into == memory);
        let begun = of_memory.filter_map(|(_, progress)| {
            progress.copy.cancel();
            (progress.state() == IncomingState::InProgress).then(|| progress.clone())
        });
        begun.collect()
    }
}
