//! Copies of memory of another process into registered memory, by the copy thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_cuda::{GuardedCopy, GuardedState, HostBuffer};

use super::incoming_target::IncomingTarget;
use super::peer_memory::PeerId;
use super::{CopyThread, GUARDS};
use crate::buffer::read_source::SourceId;

/// The maximum number of copies in flight.
pub(super) const INCOMING: usize = 64;

/// The state of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncomingState {
    InProgress,
    /// All bytes are in the memory.
    Complete,
    /// The copy is incomplete, and writes nothing more, unless the memory was freed or the context destroyed meanwhile.
    Failed,
}

/// A copy handed over to the copy thread; dropping it cancels the copy.
#[derive(Debug)]
pub(crate) struct IncomingCopy {
    pub(super) progress: IncomingProgress,
    pub(super) thread: CopyThread,
}

impl IncomingCopy {
    /// Returns the state of the copy, from words in page-locked memory: no driver call and no lock.
    pub(crate) fn state(&self) -> IncomingState {
        self.progress.state()
    }

    /// Returns whether the copy thread and the GPU are done with it, also if it was cancelled before.
    pub(crate) fn has_ended(&self) -> bool {
        self.progress.copy.has_ended()
    }

    /// Returns how many copies of its thread have ended. While that number grows, this copy only waits for its turn.
    pub(crate) fn ended_of_thread(&self) -> u64 {
        self.thread.ended_incoming()
    }

    /// Cancels the copy and returns its state: a copy that has begun to write ends soon.
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

/// The state of a copy that the engine and the copy thread share.
#[derive(Clone, Debug)]
pub(super) struct IncomingProgress {
    pub(super) copy: GuardedCopy,
    /// Set for a failure that the words of the copy do not show.
    has_failed: Arc<AtomicBool>,
}

impl IncomingProgress {
    pub(super) fn state(&self) -> IncomingState {
        match self.copy.state() {
            // Check this first: the words of such a copy may show it in progress forever.
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

/// The engine's side of the copies that were handed over last.
#[derive(Debug)]
pub(super) struct IncomingCopies {
    count: u64,
    last: [Option<(SourceId, IncomingProgress)>; INCOMING],
}

/// Returns the offset of a slot's words.
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

    /// Begins a copy of `len` bytes, if a slot is free.
    pub(super) fn begin(
        &mut self,
        memory: &Arc<HostBuffer>,
        into: SourceId,
        len: u64,
    ) -> Option<IncomingProgress> {
        let slot = (self.count % INCOMING as u64) as usize;
        let last = &mut self.last[slot];
        // The words of a slot belong to its previous copy until that has ended.
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

    /// Returns how many copies have ended.
    pub(super) fn ended(&self) -> u64 {
        let all = self.last.iter().flatten();
        self.count - all.filter(|(_, it)| !it.copy.has_ended()).count() as u64
    }

    /// Cancels the copies into `memory`; returns those that have begun to write.
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
