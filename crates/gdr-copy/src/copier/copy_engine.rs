//! Copies by the GPU's copy engine.
//!
//! The copies run on streams of this library, which do not synchronize with the default stream: a copy waits neither
//! for kernels of the program nor for its other copies. The driver is called with a relaxed capture mode, so that a
//! stream capture elsewhere in the process stays valid.

use std::num::NonZeroU16;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_cuda::{CaptureGuard, ConcreteDriver, Cuda, DeviceBuffer, HostBuffer, Stream};

use super::allocations::Allocations;
use super::cpu_pool::CpuPool;
use super::lock;
use super::ring::{PageableCopy, Ring, RingCopy};
use super::rings::Rings;
use crate::error::{Error, Result};
use crate::plan::CopyDirection;

/// The number of streams that are kept for later copies.
const MOST_KEPT: usize = 8;

/// The copy engine for one buffer.
#[derive(Debug)]
pub(super) struct CopyEngine {
    allocations: Arc<Allocations>,
    /// Sets the capture mode; `None` for the simulation, which has no captures.
    cuda: Option<Arc<Cuda>>,
    rings: Arc<Rings>,
    streams: Mutex<Vec<Stream>>,
}

impl CopyEngine {
    /// Creates the copy engine of a buffer.
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

    /// Queues a copy between page-locked memory and the buffer; returns the stream that it runs on. A kept stream whose
    /// context was destroyed is replaced.
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
        let buffer = self.buffer();
        let queue = |stream: &Stream| match direction {
            CopyDirection::ToGpu => stream.queue_write(host, host_offset, buffer, offset, len),
            CopyDirection::FromGpu => stream.queue_read(buffer, offset, host, host_offset, len),
        };
        // Unlocked before the driver is called, because the call may wait.
        let kept = lock(&self.streams).pop();
        if let Some(stream) = kept {
            match queue(&stream) {
                Ok(()) => return Ok(stream),
                // Kept streams end with their context (`cudaDeviceReset`), so the other ones have ended, too.
                Err(gdr_cuda::Error::Call { .. }) => lock(&self.streams).clear(),
                Err(error) => return Err(error.into()),
            }
        }
        let stream = buffer.gpu().stream()?;
        queue(&stream)?;
        Ok(stream)
    }

    /// Returns whether a copy that `start` returned is complete.
    pub(super) fn is_complete(&self, stream: &Stream) -> Result<bool> {
        let _relaxed = self.relax_capture();
        Ok(stream.is_idle()?)
    }

    /// Waits for a copy that `start` returned.
    pub(super) fn wait(&self, stream: &Stream, limit: Duration) -> Result<()> {
        let _relaxed = self.relax_capture();
        Ok(stream.wait(limit)?)
    }

    /// Keeps the stream of a completed copy for later ones.
    pub(super) fn keep(&self, stream: Stream) {
        let mut streams = lock(&self.streams);
        if streams.len() < MOST_KEPT {
            streams.push(stream);
        }
    }

    /// Allocates the ring of a later copy, unless another buffer of the GPU has an idle one.
    pub(super) fn prepare(&self) -> Result<()> {
        let _relaxed = self.relax_capture();
        let ring = match self.rings.take() {
            Some(ring) => ring,
            None => Ring::new(self.buffer().gpu())?,
        };
        self.rings.keep(ring);
        Ok(())
    }

    /// Copies between pageable memory and the buffer, through a ring, by up to `threads` threads. Returns when all
    /// bytes have arrived; on an error, returns the number of first bytes that have arrived.
    ///
    /// # Safety
    /// Same as [`RingCopy::new`].
    pub(super) unsafe fn copy(
        &self,
        pageable: &PageableCopy<'_>,
        pool: &CpuPool,
        threads: NonZeroU16,
    ) -> Result<(), (u64, Error)> {
        let kept = self.rings.take();
        let was_kept = kept.is_some();
        // SAFETY: the caller's promise.
        let copied = unsafe { self.copy_through(kept, pageable, pool, threads) };
        match copied {
            Err((_, Error::Gpu(gdr_cuda::Error::Call { .. }))) if was_kept => {
                // Kept rings end with their context (`cudaDeviceReset`), and there may be another context.
                // SAFETY: the caller's promise.
                unsafe { self.copy_through(None, pageable, pool, threads) }.or(copied)
            }
            _ => copied,
        }
    }

    /// Like [`CopyEngine::copy`], through this ring, or a new one.
    ///
    /// # Safety
    /// Same as [`CopyEngine::copy`].
    unsafe fn copy_through(
        &self,
        kept: Option<Ring>,
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
        let ring = kept.map_or_else(|| Ring::new(self.buffer().gpu()), Ok);
        let ring = ring.map_err(nothing)?;
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
                // The error may have made all rings unusable, as the end of the context does. The next copies would
                // then fail one after the other.
                self.rings.clear();
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;
    use crate::context::Context;
    use crate::copier::Copier;
    use crate::plan::{Calibration, CopyPath, Machine, PathLimits, Planner};

    const LEN: usize = 1 << 20;

    fn copier(gpu: &Gpu) -> Copier {
        let buffer = gpu.allocate(MemoryKind::Plain, LEN as u64).unwrap();
        let context = Context::open_for(gpu).unwrap();
        let mapping = context.pin(buffer.ptr(), buffer.len()).unwrap().map();
        let calibration = Calibration::built_in(Machine::Simulated);
        let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
        Copier::new(mapping.unwrap(), buffer, planner).unwrap()
    }

    #[test]
    fn rings_that_died_with_their_context_are_replaced_and_no_copy_fails() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let (old, new) = (copier(&gpu), copier(&gpu));
        let rings = Rings::of(&gpu);
        for mut bytes in [vec![0x5A; LEN], vec![0xA5; LEN]] {
            let two = [(); 2].map(|()| Ring::new(&gpu).unwrap());
            two.into_iter().for_each(|ring| rings.keep(ring));
            driver.reset_context();
            for copier in [&new, &old] {
                let expected = bytes.clone();
                let path = CopyPath::CopyEngine;
                copier.write_at_by(path, 0, &bytes).unwrap();
                bytes.fill(0);
                copier.read_at_by(path, 0, &mut bytes).unwrap();
                assert!(bytes == expected);
            }
        }
    }

    #[test]
    fn a_copy_that_fails_ends_every_kept_ring() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let (copier, rings) = (copier(&gpu), Rings::of(&gpu));
        let three = [(); 3].map(|()| Ring::new(&gpu).unwrap());
        three.into_iter().for_each(|ring| rings.keep(ring));
        driver.destroy_context_after(0);
        let (path, bytes) = (CopyPath::CopyEngine, vec![1; LEN]);
        assert!(copier.write_at_by(path, 0, &bytes).is_err());
        assert!(rings.take().is_none(), "the two others are as dead");
    }

    #[test]
    fn kept_streams_that_died_with_their_context_are_replaced() {
        let driver = SimDriver::new(1);
        let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
        let copier = copier(&gpu);
        let host = Arc::new(gpu.allocate_host(LEN).unwrap());
        for _ in 0..3 {
            let path = CopyPath::CopyEngine;
            for direction in CopyDirection::ALL {
                let mut transfer = copier.start_by(path, direction, 0, &host, 0, LEN).unwrap();
                transfer.wait(Duration::from_secs(60)).unwrap();
            }
            driver.reset_context();
        }
    }
}
