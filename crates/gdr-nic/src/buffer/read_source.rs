//! GPU memory that the copy engine reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gdr_copy::Allocations;
use gdr_cuda::DeviceBuffer;

use crate::error::Result;

/// Names a [`ReadSource`], or page-locked memory, in this process; no other one has it, also later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceId(u64);

/// Memory that is read.
#[derive(Debug)]
pub(super) struct ReadSource {
    id: SourceId,
    buffer: Arc<DeviceBuffer>,
    /// Of memory that its owner may free at any time.
    allocations: Option<Allocations>,
    /// Set when that was found to have happened: nothing of it is read any more.
    lost: AtomicBool,
    /// How many times the requests of this memory were ended.
    ended: AtomicU64,
}

impl SourceId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl ReadSource {
    /// Memory that `buffer` keeps.
    pub(super) fn kept(buffer: Arc<DeviceBuffer>) -> Self {
        Self::of(buffer, None)
    }

    /// Memory of a program, which may free it at any time.
    pub(super) fn foreign(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let allocations = Allocations::of(Arc::clone(&buffer))?;
        Ok(Self::of(buffer, Some(allocations)))
    }

    fn of(buffer: Arc<DeviceBuffer>, allocations: Option<Allocations>) -> Self {
        Self {
            id: SourceId::next(),
            buffer,
            allocations,
            lost: AtomicBool::new(false),
            ended: AtomicU64::new(0),
        }
    }

    pub(super) fn id(&self) -> SourceId {
        self.id
    }

    pub(super) fn buffer(&self) -> &Arc<DeviceBuffer> {
        &self.buffer
    }

    /// Whether the memory was freed: copies of it may have the bytes of others.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks the driver whether the memory still is what it was; if not, it is lost. Returns whether it is.
    pub(super) fn look(&self, offset: u64, len: usize) -> bool {
        let checked = self.allocations.as_ref().map_or(Ok(()), |allocations| {
            allocations.check(offset..offset + len as u64)
        });
        match checked {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "registered GPU memory is loaded by CPU from here on");
                self.lost.store(true, Ordering::Release);
                false
            }
        }
    }

    /// Copies that were asked for before are not begun any more.
    pub(super) fn end_requests(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Changes with each [`ReadSource::end_requests`].
    pub(super) fn generation(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }
}
