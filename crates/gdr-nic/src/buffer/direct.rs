//! GPU memory through a CPU mapping.

use std::num::NonZeroU16;
use std::ops::Range;
#[cfg(test)]
use std::sync::atomic::AtomicU32;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gdr_copy::plan::{CopyDirection, HostMemory, PathLimits, Planner};
use gdr_copy::{Mapping, built_in_calibration, calibration_for};
use gdr_cuda::{DeviceBuffer, ExportedMemory, Gpu};
use gdr_process::lock::lock;

use super::copy_stream::Streams;
use super::copy_thread::{CopyThread, IncomingCopy, IncomingTarget, PeerMemory};
use super::read_ahead::{Copies, ReadAhead};
use super::read_source::ReadSource;
use super::{CopyEngineThreshold, Queued};
use crate::error::{Error, Result};
use gdr_roce::AtomicOp;

/// The threshold at which the copy engine is never used.
const NEVER: u64 = u64::MAX;
/// The additional cost in nanoseconds of a copy by the copy thread, compared to one by the waiting thread: the thread
/// is woken, which may take the scheduler some time.
const HAND_OVER_NS: f64 = 50_000.0;
/// The same while other copies are in progress: the thread is awake, and checks the allocation twice.
const NEXT_HAND_OVER_NS: f64 = 15_000.0;
/// How long the end of a registration waits for copies in progress, which take some microseconds unless they are queued
/// behind the program's own work.
pub(super) const END_LIMIT: Duration = Duration::from_millis(200);

/// A mapping: received bytes are stored straight into GPU memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mapping: Arc<Mapping>,
    /// The copies for long reads, if the copy engine is used.
    copies: Option<EngineReads>,
    /// Locked for a read-modify-write, which takes two operations over PCIe.
    atomic: Mutex<()>,
    /// How many times [`Direct::begin_reads`] was called.
    #[cfg(test)]
    fences: AtomicU32,
    /// How many times [`Direct::flush`] was called.
    #[cfg(test)]
    flushes: AtomicU32,
}

/// Reads of the same memory by the copy engine.
#[derive(Debug)]
struct EngineReads {
    source: Arc<ReadSource>,
    /// The part of the source's buffer that is also mapped.
    range: Range<u64>,
    thresholds: Thresholds,
    /// Set by the first long read or copy into the memory.
    is_used: AtomicBool,
    ahead: Arc<Mutex<ReadAhead<dyn Copies>>>,
    caller: Caller,
    /// Copies memory of other processes.
    thread: CopyThread,
    /// The exported allocation, if the thread copies memory of other processes.
    export: Option<Arc<ExportedMemory>>,
}

/// The thread that calls the driver.
#[derive(Debug)]
enum Caller {
    /// The reading thread.
    Reader,
    /// The copy thread.
    Thread,
}

/// The minimum lengths in bytes of reads by the copy engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Thresholds {
    /// For a single request, which waits for its copy.
    alone: u64,
    /// For one of several requests, whose copies overlap.
    among: u64,
}

impl EngineReads {
    fn by_reader(
        mapping: &Mapping,
        buffer: Arc<DeviceBuffer>,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let start = offset_in(mapping, &buffer)?;
        if super::check_range(start, mapping.len(), buffer.len()).is_err() {
            return Err(elsewhere(mapping, &buffer));
        }
        let thresholds = match from {
            CopyEngineThreshold::From(bytes) => Thresholds {
                alone: bytes,
                among: bytes,
            },
            CopyEngineThreshold::Planned => planned(mapping, buffer.gpu(), &Caller::Reader),
        };
        let ahead = ReadAhead::new(Streams::new(buffer.gpu())?);
        let thread = CopyThread::shared(buffer.gpu());
        let export = thread.export(&buffer);
        Ok(Self {
            range: start..start + mapping.len(),
            source: Arc::new(ReadSource::kept(buffer)),
            thresholds,
            is_used: AtomicBool::new(false),
            ahead: Arc::new(Mutex::new(ahead)),
            caller: Caller::Reader,
            export,
            thread,
        })
    }

    fn by_thread(
        mapping: &Mapping,
        buffer: Arc<DeviceBuffer>,
        thread: &CopyThread,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let start = offset_in(mapping, &buffer)?;
        let (own, of_thread) = (buffer.gpu(), thread.gpu());
        let [buffer_on, stream] = [own, of_thread].map(|gpu| gpu.info().ordinal);
        if buffer_on != stream || !Arc::ptr_eq(own.driver(), of_thread.driver()) {
            let buffer = buffer_on;
            return Err(gdr_cuda::Error::ForeignBuffer { buffer, stream }.into());
        }
        let caller = Caller::Thread;
        let thresholds = match from {
            CopyEngineThreshold::From(bytes) => Thresholds {
                alone: bytes,
                among: bytes,
            },
            CopyEngineThreshold::Planned => {
                thread.thresholds(|| planned(mapping, buffer.gpu(), &caller))
            }
        };
        // The CPU handles what is mapped beyond the allocation.
        let end = buffer.len().min(start.saturating_add(mapping.len()));
        let export = thread.export(&buffer);
        Ok(Self {
            range: start..end,
            source: Arc::new(ReadSource::foreign(buffer)?),
            thresholds,
            is_used: AtomicBool::new(false),
            ahead: thread.ahead(),
            caller,
            thread: thread.clone(),
            export,
        })
    }

    /// Translates a range of the mapping to an offset in the buffer, and the number of its bytes that are in the
    /// buffer.
    fn part(&self, offset: u64, len: u64) -> (u64, u64) {
        let at = self.range.start + offset;
        (at, len.min(self.range.end.saturating_sub(at)))
    }

    /// Announces a request.
    fn expect(&self, offset: u64, len: u64, queued: Queued) -> Result<()> {
        let (at, len) = self.part(offset, len);
        if len == 0 {
            return Ok(());
        }
        let from = match queued {
            Queued::Alone => self.thresholds.alone,
            Queued::AmongOthers => self.thresholds.among,
        };
        if len < from {
            self.forget(offset, len);
            return Ok(());
        }
        // Load first: a store for each request would take the cache line from other threads.
        if !self.is_used.load(Ordering::SeqCst) {
            self.is_used.store(true, Ordering::SeqCst);
        }
        lock(&self.ahead).expect(&self.source, at, len)
    }

    /// Drops bytes of a range that were read ahead.
    fn forget(&self, offset: u64, len: u64) {
        // Without a long read there is nothing to forget, and no lock to share with other memory.
        if self.is_used.load(Ordering::SeqCst) {
            let (at, len) = self.part(offset, len);
            lock(&self.ahead).forget(self.source.id(), at, len);
        }
    }

    /// Copies bytes that were read ahead into the start of `bytes`; returns how many.
    fn serve(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        let (at, len) = self.part(offset, bytes.len() as u64);
        if len == 0 || !self.is_used.load(Ordering::SeqCst) {
            return Ok(0);
        }
        let bytes = &mut bytes[..len as usize];
        let mut ahead = lock(&self.ahead);
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            match ahead.serve(&self.source, at + done as u64, rest)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    /// Hands over a copy of another process's memory.
    fn begin_copy_from(
        &self,
        offset: u64,
        peer: &PeerMemory,
        from_addr: u64,
        len: u64,
    ) -> Option<IncomingCopy> {
        let (at, part) = self.part(offset, len);
        // Copy all of it or nothing, because the GPU can only access the allocation.
        if part < len {
            return None;
        }
        // Set this before handing the copy over, so that the end of the registration waits for it.
        self.is_used.store(true, Ordering::SeqCst);
        let into = IncomingTarget::Device(Arc::clone(&self.source));
        self.thread.begin_incoming(peer, from_addr, into, at, len)
    }

    fn end(&self, limit: Duration) {
        if self.is_used.load(Ordering::SeqCst) {
            self.thread.end_reads(&self.source, limit);
        }
    }
}

impl Drop for EngineReads {
    fn drop(&mut self) {
        // The ring is shared with other memory. A registration that has ended has already waited.
        self.end(Duration::ZERO);
    }
}

/// Returns the offset of a mapping in a buffer.
fn offset_in(mapping: &Mapping, buffer: &DeviceBuffer) -> Result<u64> {
    let start = mapping.device_ptr().offset_from(buffer.ptr());
    let start = start.filter(|start| *start < buffer.len());
    start.ok_or_else(|| elsewhere(mapping, buffer))
}

fn elsewhere(mapping: &Mapping, buffer: &DeviceBuffer) -> Error {
    let (mapped, allocated) = (mapping.device_ptr().get(), buffer.ptr().get());
    Error::MappedElsewhere { mapped, allocated }
}

/// Returns the thresholds that the copy planner chooses over loads by one thread. An unreadable profile counts as none.
fn planned(mapping: &Mapping, gpu: &Gpu, caller: &Caller) -> Thresholds {
    let (calibration, source) = calibration_for(gpu, mapping).unwrap_or_else(|error| {
        tracing::warn!(%error, "built-in costs are used");
        built_in_calibration(mapping)
    });
    let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
    let [alone, among] = match caller {
        Caller::Reader => {
            let alone = planner.copy_engine_from(CopyDirection::FromGpu, HostMemory::PageLocked);
            [alone, planner.queued_reads_from().or(alone)]
        }
        Caller::Thread => {
            [HAND_OVER_NS, NEXT_HAND_OVER_NS].map(|ns| planner.delayed_reads_from(ns))
        }
    };
    let thresholds = Thresholds {
        alone: alone.unwrap_or(NEVER),
        among: among.unwrap_or(NEVER),
    };
    tracing::debug!(?thresholds, %source, ?caller, "long reads use the copy engine");
    thresholds
}

impl Direct {
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        Self {
            mapping,
            copies: None,
            atomic: Mutex::new(()),
            #[cfg(test)]
            fences: AtomicU32::new(0),
            #[cfg(test)]
            flushes: AtomicU32::new(0),
        }
    }

    pub(super) fn with_copies(
        mapping: Arc<Mapping>,
        buffer: Arc<DeviceBuffer>,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let copies = EngineReads::by_reader(&mapping, buffer, from)?;
        Ok(Self {
            copies: Some(copies),
            ..Self::new(mapping)
        })
    }

    pub(super) fn with_copy_thread(
        mapping: Arc<Mapping>,
        buffer: Arc<DeviceBuffer>,
        thread: &CopyThread,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let copies = EngineReads::by_thread(&mapping, buffer, thread, from)?;
        Ok(Self {
            copies: Some(copies),
            ..Self::new(mapping)
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }

    pub(super) fn device_memory(&self) -> Option<(&Arc<DeviceBuffer>, u64)> {
        match self.copies.as_ref()? {
            // The buffer may end before the mapping, and its owner may free it.
            EngineReads {
                caller: Caller::Thread,
                ..
            } => None,
            copies => Some((copies.source.buffer(), copies.range.start)),
        }
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.device_ptr().get()
    }

    pub(super) fn copy_thread(&self) -> Option<&CopyThread> {
        let thread = &self.copies.as_ref()?.thread;
        thread.copies_peers().then_some(thread)
    }

    pub(super) fn export(&self) -> Option<&Arc<ExportedMemory>> {
        self.copies.as_ref()?.export.as_ref()
    }

    pub(super) fn begin_copy_from(
        &self,
        offset: u64,
        peer: &PeerMemory,
        from_addr: u64,
        len: u64,
    ) -> Option<IncomingCopy> {
        super::check_range(offset, len, self.len()).ok()?;
        let copies = self.copies.as_ref()?;
        copies.begin_copy_from(offset, peer, from_addr, len)
    }

    /// Returns whether long reads use the copy engine.
    pub(super) fn has_copies(&self) -> bool {
        self.copies.is_some()
    }

    pub(super) fn long_reads_from(&self) -> Option<u64> {
        let alone = self.copies.as_ref()?.thresholds.alone;
        (alone != NEVER).then_some(alone)
    }

    /// Stores without a fence; [`Direct::flush`] ends the batch.
    #[inline]
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at_unfenced(offset, bytes)?)
    }

    pub(super) fn flush(&self) {
        #[cfg(test)]
        self.flushes.fetch_add(1, Ordering::Relaxed);
        self.mapping.flush();
    }

    pub(super) fn begin_reads(&self) {
        #[cfg(test)]
        self.fences.fetch_add(1, Ordering::Relaxed);
        self.mapping.begin_reads();
    }

    #[cfg(test)]
    pub(super) fn fences(&self) -> u32 {
        self.fences.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub(super) fn flushes(&self) -> u32 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Announces that a request will read this range. The bytes loaded for it are no older than this call, and include
    /// what this thread stored before the last [`Direct::flush`].
    pub(super) fn expect_read(&self, offset: u64, len: u64, queued: Queued) -> Result<()> {
        super::check_range(offset, len, self.len())?;
        match &self.copies {
            Some(copies) => copies.expect(offset, len, queued),
            None => Ok(()),
        }
    }

    /// Drops bytes of a range that were read ahead, so that later loads are no older than this call.
    pub(super) fn forget_reads(&self, offset: u64, len: u64) {
        if let Some(copies) = &self.copies {
            copies.forget(offset, len);
        }
    }

    /// Ends the reads of requests that were not served. When this returns, no copy reads the memory any more, unless
    /// the program blocks the driver.
    pub(super) fn end_reads(&self) {
        if let Some(copies) = &self.copies {
            copies.end(END_LIMIT);
        }
    }

    /// Copies bytes that were read ahead into the start of `bytes`; returns how many. They are no older than
    /// [`Direct::expect_read`].
    #[inline]
    pub(super) fn load_ahead(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        match &self.copies {
            Some(copies) => copies.serve(offset, bytes),
            None => Ok(0),
        }
    }

    /// Loads without a fence: the values are no older than [`Direct::begin_reads`].
    #[inline]
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.read_at_unfenced(offset, bytes)?)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        match &self.copies {
            Some(EngineReads {
                source,
                range,
                thresholds,
                caller: Caller::Reader,
                ..
            }) if bytes.len() as u64 >= thresholds.alone => {
                // Flush earlier stores before the driver's copy begins.
                self.mapping.flush();
                Ok(source.buffer().read(range.start + offset, bytes)?)
            }
            _ => Ok(self.mapping.read_at(offset, bytes)?),
        }
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let _guard = lock(&self.atomic);
        super::check_range(offset, 8, self.len())?;
        let mut word = [0; 8];
        // Do not use the default stream, on which a copy may wait for kernels.
        self.mapping.read_at(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        // Skip the store if nothing changes, so that a concurrent store by another writer is kept.
        if after != before {
            self.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }
}

#[cfg(test)]
mod tests {
    use gdr_copy::Context;
    use gdr_cuda::{MemoryKind, Ordinal, SimDriver};

    use super::*;

    #[test]
    fn only_the_allocated_part_of_a_mapping_is_copied_by_a_thread() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let memory = Arc::new(gpu.allocate(MemoryKind::Plain, 10_000).unwrap());
        let mapping = Context::open_for(&gpu).unwrap().pin_buffer(&memory);
        let mapping = mapping.unwrap().map().unwrap();
        // SAFETY: `memory` outlives it.
        let first = unsafe { DeviceBuffer::borrowed(&gpu, memory.ptr(), 6000) }.unwrap();
        let (thread, from) = (CopyThread::new(&gpu), CopyEngineThreshold::From(1));
        let reads = EngineReads::by_thread(&mapping, Arc::new(first), &thread, from).unwrap();
        for (offset, len, inside) in [
            (0, 100, 100),
            (0, 10_000, 6000),
            (5990, 20, 10),
            (6000, 1, 0),
            (9000, 1000, 0),
        ] {
            assert_eq!(reads.part(offset, len), (offset, inside), "{offset} {len}");
        }
    }
}
