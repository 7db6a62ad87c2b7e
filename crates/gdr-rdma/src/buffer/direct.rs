//! GPU memory through a CPU mapping.

use std::collections::VecDeque;
use std::num::NonZeroU16;
#[cfg(test)]
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use gdr_copy::plan::{CopyDirection, HostMemory, PathLimits, Planner};
use gdr_copy::{Mapping, built_in_calibration, calibration_for};
use gdr_cuda::DeviceBuffer;

use super::CopyEngineThreshold;
use super::read_ahead::ReadAhead;
use crate::error::{Error, Result};
use crate::lock::lock;
use gdr_roce::AtomicOp;

/// The threshold of memory that the copy engine reads at no length.
const NEVER: u64 = u64::MAX;
/// How many announced requests are remembered until they are served.
const REQUESTS: usize = 64;

/// A mapping: received bytes are stored straight into GPU memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mapping: Arc<Mapping>,
    /// For long reads.
    copies: Option<EngineReads>,
    /// Locked for a read-modify-write, which takes two operations over PCIe.
    atomic: Mutex<()>,
    /// How many times [`Direct::begin_reads`] was called.
    #[cfg(test)]
    fences: AtomicU32,
}

/// Reads of the same memory by the copy engine.
#[derive(Debug)]
struct EngineReads {
    buffer: Arc<DeviceBuffer>,
    /// The offset of the mapping in it.
    start: u64,
    thresholds: Thresholds,
    state: Mutex<EngineState>,
}

/// The lengths in bytes from which on the copy engine is used.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// For a single request, which waits for its copy.
    alone: u64,
    /// For one of several requests, whose copies overlap.
    among: u64,
}

#[derive(Debug)]
struct EngineState {
    ahead: ReadAhead,
    /// The end offsets of requests that are announced and not yet served, the oldest first.
    ends: VecDeque<u64>,
}

impl EngineState {
    /// Remembers a request; returns whether there are others.
    fn announce(&mut self, end: u64) -> bool {
        let others = !self.ends.is_empty();
        if self.ends.len() == REQUESTS {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
        others
    }

    /// Records that bytes up to `end` were served; requests announced before it were served too, or
    /// never will be.
    fn served(&mut self, end: u64) {
        if let Some(last) = self.ends.iter().position(|known| *known == end) {
            self.ends.drain(..=last);
        }
    }
}

impl EngineReads {
    fn new(
        mapping: &Mapping,
        buffer: Arc<DeviceBuffer>,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let (mapped, allocated) = (mapping.device_ptr().get(), buffer.ptr().get());
        let elsewhere = Error::MappedElsewhere { mapped, allocated };
        let Some(start) = mapped.checked_sub(allocated) else {
            return Err(elsewhere);
        };
        if super::check_range(start, mapping.len(), buffer.len()).is_err() {
            return Err(elsewhere);
        }
        let thresholds = match from {
            CopyEngineThreshold::From(bytes) => Thresholds {
                alone: bytes,
                among: bytes,
            },
            CopyEngineThreshold::Planned => planned(mapping, &buffer),
        };
        let ahead = ReadAhead::new(buffer.gpu())?;
        Ok(Self {
            buffer,
            start,
            thresholds,
            state: Mutex::new(EngineState {
                ahead,
                ends: VecDeque::new(),
            }),
        })
    }

    /// Copies bytes that were read ahead into the start of `bytes`; returns how many.
    fn serve(&self, at: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut state = self.lock();
        state.served(at + bytes.len() as u64);
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            match state.ahead.serve(&self.buffer, at + done as u64, rest)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    fn lock(&self) -> MutexGuard<'_, EngineState> {
        lock(&self.state)
    }
}

/// The lengths that the planner of copies chooses, for loads by one thread. A profile that cannot be
/// read counts as none.
fn planned(mapping: &Mapping, buffer: &DeviceBuffer) -> Thresholds {
    let (calibration, source) = calibration_for(buffer.gpu(), mapping).unwrap_or_else(|error| {
        tracing::warn!(%error, "built-in costs are used");
        built_in_calibration(mapping)
    });
    let planner = Planner::new(&calibration, PathLimits::all(NonZeroU16::MIN));
    let alone = planner.copy_engine_from(CopyDirection::FromGpu, HostMemory::PageLocked);
    let alone = alone.unwrap_or(NEVER);
    let thresholds = Thresholds {
        alone,
        among: planner.queued_reads_from().unwrap_or(alone),
    };
    tracing::debug!(?thresholds, %source, "long reads use the copy engine");
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
        }
    }

    pub(super) fn with_copies(
        mapping: Arc<Mapping>,
        buffer: Arc<DeviceBuffer>,
        from: CopyEngineThreshold,
    ) -> Result<Self> {
        let copies = EngineReads::new(&mapping, buffer, from)?;
        Ok(Self {
            copies: Some(copies),
            ..Self::new(mapping)
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }

    pub(super) fn device_memory(&self) -> Option<(&Arc<DeviceBuffer>, u64)> {
        let copies = self.copies.as_ref()?;
        Some((&copies.buffer, copies.start))
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.device_ptr().get()
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

    /// Announces that a request will read this range: the bytes loaded for it are no older than this
    /// call.
    pub(super) fn expect_read(&self, offset: u64, len: u64) -> Result<()> {
        super::check_range(offset, len, self.len())?;
        let Some(copies) = &self.copies else {
            return Ok(());
        };
        let mut state = copies.lock();
        let at = copies.start + offset;
        let from = match state.announce(at + len) {
            true => copies.thresholds.among,
            false => copies.thresholds.alone,
        };
        if len < from {
            state.ahead.forget(at, len);
            return Ok(());
        }
        // The stores so far reach the GPU before the call that starts the copy: PCIe keeps posted
        // writes in order.
        self.mapping.flush();
        state.ahead.expect(&copies.buffer, at, len)
    }

    /// Copies what was read ahead into the start of `bytes`, and returns how many bytes. They are no
    /// older than [`Direct::expect_read`].
    #[inline]
    pub(super) fn load_ahead(&self, offset: u64, bytes: &mut [u8]) -> Result<usize> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        match &self.copies {
            Some(copies) => copies.serve(copies.start + offset, bytes),
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
            Some(copies) if bytes.len() as u64 >= copies.thresholds.alone => {
                self.mapping.flush();
                Ok(copies.buffer.read(copies.start + offset, bytes)?)
            }
            _ => Ok(self.mapping.read_at(offset, bytes)?),
        }
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let _guard = lock(&self.atomic);
        super::check_range(offset, 8, self.len())?;
        let mut word = [0; 8];
        // Not by the default stream: a copy there may wait for kernels.
        self.mapping.read_at(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            self.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }
}
