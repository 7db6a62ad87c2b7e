//! Copies by the GPU's copy engine.
//!
//! They run on streams of this library, which do not synchronize with the default stream: a copy
//! waits neither for kernels of the program nor for its other copies. Calls of the driver are made
//! with a relaxed capture mode, so that a stream capture elsewhere in the process stays valid.

use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdr_cuda::{
    AddressRange, BufferId, CaptureGuard, ConcreteDriver, Cuda, DeviceBuffer, DevicePtr,
    HostBuffer, Stream,
};

use super::cpu_pool::CpuPool;
use super::ring::{PageableCopy, Ring, RingCopy};
use crate::error::{Error, Result};
use crate::plan::CopyDirection;

/// How many rings and streams are kept for later copies.
const MOST_KEPT: usize = 8;

/// The copy engine for one buffer.
#[derive(Debug)]
pub(super) struct CopyEngine {
    buffer: Arc<DeviceBuffer>,
    /// The allocations of the buffer. If one changes, the memory at its address is another one.
    allocations: Vec<(AddressRange, BufferId)>,
    /// For the capture mode; `None` for the simulation, which has no captures.
    cuda: Option<Arc<Cuda>>,
    rings: Mutex<Vec<Ring>>,
    streams: Mutex<Vec<Stream>>,
}

impl CopyEngine {
    /// For copies to and from `buffer`.
    pub(super) fn new(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let driver = buffer.gpu().driver();
        let end = buffer.ptr().checked_add(buffer.len());
        let end = end.unwrap_or(DevicePtr::new(u64::MAX));
        let first = driver.pointer_info(buffer.ptr())?;
        let others = first.neighbours_up_to(end, |next| driver.pointer_info(next));
        let others = others.map_err(|gap| gdr_cuda::Error::UnknownPointer { ptr: gap })?;
        let allocations = [first].into_iter().chain(others);
        let range = |base, size| AddressRange { base, size };
        let cuda = match ConcreteDriver::of(driver) {
            ConcreteDriver::Cuda(cuda) => Some(cuda),
            ConcreteDriver::Simulated(_) => None,
        };
        Ok(Self {
            allocations: allocations
                .map(|info| (range(info.base, info.size), info.buffer))
                .collect(),
            buffer,
            cuda,
            rings: Mutex::default(),
            streams: Mutex::default(),
        })
    }

    fn relax_capture(&self) -> Option<CaptureGuard<'_>> {
        self.cuda.as_ref().map(|cuda| cuda.relax_stream_capture())
    }

    /// Fails if memory of this range was freed: its address may belong to another allocation now.
    fn check_allocations(&self, range: Range<u64>) -> Result<()> {
        let driver = self.buffer.gpu().driver();
        let at = |offset| self.buffer.ptr().get() + offset;
        for (allocation, id) in &self.allocations {
            let start = allocation.base.get();
            let overlaps = start < at(range.end) && at(range.start) < start + allocation.size;
            if !overlaps {
                continue;
            }
            let ptr = DevicePtr::new(start.max(at(range.start)));
            let freed = Error::Freed { ptr };
            match driver.pointer_info(ptr) {
                Ok(info) if info.buffer == *id => {}
                Ok(_) | Err(gdr_cuda::Error::UnknownPointer { .. }) => return Err(freed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Queues a copy between page-locked memory and the buffer; returns the stream on which it runs.
    pub(super) fn start(
        &self,
        direction: CopyDirection,
        offset: u64,
        host: &Arc<HostBuffer>,
        host_offset: usize,
        len: usize,
    ) -> Result<Stream> {
        let _relaxed = self.relax_capture();
        self.check_allocations(offset..offset + len as u64)?;
        let (stream, buffer) = (self.stream()?, &self.buffer);
        match direction {
            CopyDirection::ToGpu => stream.queue_write(host, host_offset, buffer, offset, len),
            CopyDirection::FromGpu => stream.queue_read(buffer, offset, host, host_offset, len),
        }?;
        Ok(stream)
    }

    /// Whether a copy that `start` returned is complete.
    pub(super) fn is_complete(&self, stream: &Stream) -> Result<bool> {
        let _relaxed = self.relax_capture();
        Ok(stream.is_idle()?)
    }

    /// Waits for a copy that `start` returned.
    pub(super) fn wait(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let _relaxed = self.relax_capture();
        Ok(stream.wait(limit)?)
    }

    /// Takes back the stream of a copy that is complete.
    pub(super) fn keep(&self, stream: Stream) {
        let mut streams = lock(&self.streams);
        if streams.len() < MOST_KEPT {
            streams.push(stream);
        }
    }

    fn stream(&self) -> Result<Stream> {
        let kept = lock(&self.streams).pop();
        match kept {
            Some(stream) => Ok(stream),
            None => Ok(self.buffer.gpu().stream()?),
        }
    }

    /// Makes the ring of a later copy.
    pub(super) fn prepare(&self) -> Result<()> {
        let _relaxed = self.relax_capture();
        let ring = self.ring()?;
        self.keep_ring(ring);
        Ok(())
    }

    fn ring(&self) -> Result<Ring> {
        let kept = lock(&self.rings).pop();
        kept.map_or_else(|| Ring::new(self.buffer.gpu()), Ok)
    }

    /// Only after a copy that succeeded: the streams of others may not be idle.
    fn keep_ring(&self, ring: Ring) {
        let mut rings = lock(&self.rings);
        if rings.len() < MOST_KEPT {
            rings.push(ring);
        }
    }

    /// Copies between pageable memory and the buffer, through a ring, by up to `threads` threads.
    /// Returns when all bytes have arrived; otherwise the number of first bytes that have, and why.
    ///
    /// # Safety
    /// As [`RingCopy::new`].
    pub(super) unsafe fn copy(
        &self,
        pageable: &PageableCopy<'_>,
        pool: &CpuPool,
        threads: NonZeroU16,
    ) -> Result<(), (u64, Error)> {
        let nothing = |error| (0, error);
        let relaxed = self.relax_capture();
        let PageableCopy { plan, offset, .. } = *pageable;
        self.check_allocations(offset..offset + plan.request().len)
            .map_err(nothing)?;
        let ring = self.ring().map_err(nothing)?;
        // SAFETY: the caller's promise.
        let copy = unsafe { RingCopy::new(&ring, &self.buffer, pageable) };
        copy.begin();
        // The capture mode is per thread.
        drop(relaxed);
        pool.run(threads, copy.len(), &|at| {
            let _relaxed = self.relax_capture();
            copy.copy_piece(at);
        });
        let _relaxed = self.relax_capture();
        copy.finish()?;
        self.keep_ring(ring);
        Ok(())
    }
}

/// The lists are valid after a panic in a thread that had one locked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
