//! Copies by the GPU's copy engine.
//!
//! They run on streams of this library, which do not synchronize with the default stream: a copy
//! waits neither for kernels of the program nor for its other copies. Calls of the driver are made
//! with a relaxed capture mode, so that a stream capture elsewhere in the process stays valid.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_cuda::{CaptureGuard, ConcreteDriver, Cuda, DeviceBuffer, HostBuffer, Stream};

use super::allocations::Allocations;
use super::cpu_pool::CpuPool;
use super::lock;
use super::ring::{PageableCopy, RingCopy};
use super::rings::Rings;
use crate::error::{Error, Result};
use crate::plan::CopyDirection;

/// How many streams are kept for later copies.
const MOST_KEPT: usize = 8;

/// The copy engine for one buffer.
#[derive(Debug)]
pub(super) struct CopyEngine {
    allocations: Arc<Allocations>,
    /// For the capture mode; `None` for the simulation, which has no captures.
    cuda: Option<Arc<Cuda>>,
    rings: Arc<Rings>,
    streams: Mutex<Vec<Stream>>,
}

impl CopyEngine {
    /// For copies to and from a buffer.
    pub(super) fn new(allocations: Arc<Allocations>) -> Self {
        let cuda = match ConcreteDriver::of(allocations.buffer().gpu().driver()) {
            ConcreteDriver::Cuda(cuda) => Some(cuda),
            ConcreteDriver::Simulated(_) => None,
        };
        Self {
            rings: Rings::of(allocations.buffer().gpu()),
            allocations,
            cuda,
            streams: Mutex::default(),
        }
    }

    fn buffer(&self) -> &DeviceBuffer {
        self.allocations.buffer()
    }

    fn relax_capture(&self) -> Option<CaptureGuard<'_>> {
        self.cuda.as_ref().map(|cuda| cuda.relax_stream_capture())
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
        self.allocations.check(offset..offset + len as u64)?;
        let (stream, buffer) = (self.stream()?, self.buffer());
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
            None => Ok(self.buffer().gpu().stream()?),
        }
    }

    /// Makes the ring of a later copy, unless another buffer of the GPU has one that is not in use.
    pub(super) fn prepare(&self) -> Result<()> {
        let _relaxed = self.relax_capture();
        let ring = self.rings.take(self.buffer().gpu())?;
        self.rings.keep(ring);
        Ok(())
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
        self.allocations
            .check(offset..offset + plan.request().len)
            .map_err(nothing)?;
        let ring = self.rings.take(self.buffer().gpu()).map_err(nothing)?;
        // SAFETY: the caller's promise.
        let copy = unsafe { RingCopy::new(&ring, self.buffer(), pageable) };
        copy.begin();
        // The capture mode is per thread.
        drop(relaxed);
        pool.run(threads, copy.len(), &|at| {
            let _relaxed = self.relax_capture();
            copy.copy_piece(at);
        });
        let _relaxed = self.relax_capture();
        match copy.finish() {
            Ok(()) => {
                self.rings.keep(ring);
                Ok(())
            }
            Err(error) => {
                // What failed may have ended all of them, as the end of the context does.
                self.rings.clear();
                Err(error)
            }
        }
    }
}
