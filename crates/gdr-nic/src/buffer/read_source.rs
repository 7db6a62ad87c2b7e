//! GPU memory that the copy engine reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use gdr_copy::Allocations;
use gdr_cuda::DeviceBuffer;

use crate::error::Result;

/// Identifies a [`ReadSource`] or page-locked memory in this process; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SourceId(u64);

/// A source of reads.
#[derive(Debug)]
pub(super) struct ReadSource {
    id: SourceId,
    buffer: Arc<DeviceBuffer>,
    /// The allocation to compare with, for memory that its owner may free at any time.
    allocations: Option<Allocations>,
    /// Set once the memory was found freed: nothing is read from it any more.
    lost: AtomicBool,
    /// The number of calls of [`ReadSource::end_requests`].
    ended: AtomicU64,
}

impl SourceId {
    pub(super) fn next() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl ReadSource {
    /// Returns a source of memory that `buffer` keeps alive.
    pub(super) fn kept(buffer: Arc<DeviceBuffer>) -> Self {
        Self::of(buffer, None)
    }

    /// Returns a source of memory that the program may free at any time.
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

    /// Returns whether the memory was found freed, so that copies of it may contain bytes of another allocation.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Asks the driver whether the allocation is unchanged, and marks the memory as lost otherwise. Returns whether it
    /// is unchanged.
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

    /// Prevents copies that were requested earlier from starting.
    pub(super) fn end_requests(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that changes with each [`ReadSource::end_requests`].
    pub(super) fn generation(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }
}
