//! GPU memory of another process, as the copy thread opens it.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use gdr_cuda::DeviceExport;
use gdr_process::ProcessBound;

use super::link::{Job, Link};

/// The state of another process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// The copy thread has not opened it yet.
    Pending,
    /// Copies can be queued.
    Ready,
    /// The memory cannot be opened, or a copy of it could not be queued.
    Refused,
}

/// A [`PeerState`] that the copy thread sets.
#[derive(Debug, Default)]
pub(super) struct PeerProgress(AtomicU8);

const PENDING: u8 = 0;
const READY: u8 = 1;
const REFUSED: u8 = 2;

impl PeerProgress {
    fn get(&self) -> PeerState {
        match self.0.load(Ordering::Acquire) {
            PENDING => PeerState::Pending,
            READY => PeerState::Ready,
            _ => PeerState::Refused,
        }
    }

    pub(super) fn set_ready(&self) {
        self.0.store(READY, Ordering::Release);
    }

    pub(super) fn refuse(&self) {
        self.0.store(REFUSED, Ordering::Release);
    }
}

/// Identifies memory of another process within this one; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct PeerId(u64);

impl PeerId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// GPU memory of another process, from [`CopyThread::import`](super::CopyThread::import). The copy thread closes it
/// after the last clone is dropped and the copies in flight are complete.
#[derive(Clone)]
pub(crate) struct PeerMemory(Arc<ProcessBound<Peer>>);

struct Peer {
    id: PeerId,
    export: DeviceExport,
    progress: Arc<PeerProgress>,
    link: Weak<Link>,
}

impl fmt::Debug for PeerMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeerMemory")
            .field("id", &self.0.id)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl PeerMemory {
    /// Asks the thread of `link` to open it.
    pub(super) fn open(
        link: &Arc<Link>,
        export: DeviceExport,
        descriptor: Option<OwnedFd>,
    ) -> Self {
        let (id, progress) = (PeerId::next(), Arc::new(PeerProgress::default()));
        link.push(Job::Open {
            id,
            export,
            descriptor,
            progress: Arc::clone(&progress),
        });
        Self(Arc::new(ProcessBound::new(Peer {
            id,
            export,
            progress,
            // The reference is weak, so that open memory does not keep the link of its thread alive.
            link: Arc::downgrade(link),
        })))
    }

    pub(super) fn id(&self) -> PeerId {
        self.0.id
    }

    /// Returns whether the memory is open yet.
    pub(crate) fn state(&self) -> PeerState {
        self.0.progress.get()
    }

    /// Returns the other process's export.
    #[cfg(test)]
    pub(crate) fn export(&self) -> &DeviceExport {
        &self.0.export
    }

    /// Returns whether the thread of `link` opens it.
    pub(super) fn is_of(&self, link: &Arc<Link>) -> bool {
        self.0.link.as_ptr() == Arc::as_ptr(link)
    }

    /// Returns the offset of `len` bytes at `address` of the other process; `None` if they are out of range.
    pub(super) fn offset_of(&self, address: u64, len: u64) -> Option<u64> {
        // The address comes from the other process, so its end may overflow.
        let offset = address.checked_sub(self.0.export.base().get())?;
        let end = offset.checked_add(len)?;
        (end <= self.0.export.len()).then_some(offset)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A thread that has ended has closed the memory.
        if let Some(link) = self.link.upgrade() {
            link.push(Job::Close { id: self.id });
        }
    }
}
