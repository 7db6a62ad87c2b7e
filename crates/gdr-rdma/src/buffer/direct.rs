//! GPU memory through the CPU's own window into it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gdr_copy::Mapping;
use gdr_cuda::{DeviceBuffer, Stream};

use super::LongReads;
use super::ahead::ReadAhead;
use crate::error::{Error, Result};
use gdr_roce::AtomicOp;

/// What is timed to learn from which length on the copy engine is faster: a packet's payload.
const SAMPLE: usize = 4096;
/// How often; the fastest counts.
const SAMPLES: usize = 5;
/// Below this the fixed cost of a copy is never made good, whatever was measured.
const SHORT: u64 = 512;
/// A copy of [`SAMPLE`] bytes takes some 10 us; a GPU that takes this long is lost.
const LIMIT: Duration = Duration::from_secs(10);

/// A mapping: what arrives is stored straight into GPU memory.
#[derive(Debug)]
pub(crate) struct Direct {
    mapping: Arc<Mapping>,
    /// For what is long to read.
    copies: Option<Copies>,
    /// Held for a read-modify-write, which is not one operation over PCIe.
    atomic: Mutex<()>,
}

/// The copy engine's way to the same memory.
#[derive(Debug)]
struct Copies {
    buffer: Arc<DeviceBuffer>,
    /// Where in it the mapping begins.
    skip: u64,
    /// Bytes from which on it is used.
    from: u64,
    engine: Mutex<Engine>,
}

#[derive(Debug)]
struct Engine {
    stream: Stream,
    ahead: ReadAhead,
}

impl Copies {
    fn new(mapping: &Mapping, buffer: Arc<DeviceBuffer>, from: LongReads) -> Result<Self> {
        let (mapped, allocated) = (mapping.device_ptr().get(), buffer.ptr().get());
        let elsewhere = Error::MappedElsewhere { mapped, allocated };
        let Some(skip) = mapped.checked_sub(allocated) else {
            return Err(elsewhere);
        };
        if super::check_range(skip, mapping.len(), buffer.len()).is_err() {
            return Err(elsewhere);
        }
        let stream = buffer.gpu().stream()?;
        let from = match from {
            LongReads::From(bytes) => bytes,
            LongReads::Measured => measure(mapping, &buffer, skip, &stream)?,
        };
        let ahead = ReadAhead::new(buffer.gpu())?;
        Ok(Self {
            buffer,
            skip,
            from,
            engine: Mutex::new(Engine { stream, ahead }),
        })
    }

    /// A panic in another holder leaves at worst windows that are dropped before they are used.
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From how many bytes on the copy engine is faster here.
fn measure(mapping: &Mapping, buffer: &DeviceBuffer, skip: u64, stream: &Stream) -> Result<u64> {
    let len = SAMPLE.min(usize::try_from(mapping.len()).unwrap_or(SAMPLE));
    let host = Arc::new(buffer.gpu().allocate_host(SAMPLE)?);
    let mut bytes = [0; SAMPLE];
    let (mut load, mut copy) = (Duration::MAX, Duration::MAX);
    for _ in 0..SAMPLES {
        let start = Instant::now();
        mapping.read_at(0, &mut bytes[..len])?;
        load = load.min(start.elapsed());
        let start = Instant::now();
        stream.queue_read(buffer, skip, &host, 0, len)?;
        stream.wait(LIMIT)?;
        copy = copy.min(start.elapsed());
    }
    // Loads take as long as they are; a copy of this length is all fixed cost.
    let from = copy.as_nanos() * len as u128 / load.as_nanos().max(1);
    let from = u64::try_from(from).unwrap_or(u64::MAX).max(SHORT);
    tracing::debug!(from, ?load, ?copy, len, "long reads go by the copy engine");
    Ok(from)
}

impl Direct {
    pub(super) fn new(mapping: Arc<Mapping>) -> Self {
        Self {
            mapping,
            copies: None,
            atomic: Mutex::new(()),
        }
    }

    pub(super) fn with_copies(
        mapping: Arc<Mapping>,
        buffer: Arc<DeviceBuffer>,
        from: LongReads,
    ) -> Result<Self> {
        let copies = Copies::new(&mapping, buffer, from)?;
        Ok(Self {
            copies: Some(copies),
            ..Self::new(mapping)
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.mapping.len()
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.device_ptr().get()
    }

    pub(super) fn long_reads_from(&self) -> Option<u64> {
        self.copies.as_ref().map(|copies| copies.from)
    }

    /// Stores without a fence: [`Direct::flush`] ends the batch.
    #[inline]
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at_unfenced(offset, bytes)?)
    }

    pub(super) fn flush(&self) {
        self.mapping.flush();
    }

    pub(super) fn begin_reads(&self) {
        self.mapping.begin_reads();
    }

    /// A request is about to read this range: what is loaded for it is no older than now.
    pub(super) fn expect_read(&self, offset: u64, len: u64) -> Result<()> {
        super::check_range(offset, len, self.len())?;
        let Some(copies) = &self.copies else {
            return Ok(());
        };
        let mut guard = copies.lock();
        let Engine { stream, ahead } = &mut *guard;
        let at = copies.skip + offset;
        if len < copies.from {
            ahead.forget(at, len);
            return Ok(());
        }
        // The stores so far reach the GPU before the call that starts the copy: PCIe keeps posted
        // writes in order.
        self.mapping.flush();
        ahead.expect(stream, &copies.buffer, at, len)
    }

    /// Loads without a fence: the values are no older than [`Direct::begin_reads`] or
    /// [`Direct::expect_read`].
    #[inline]
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        let mut done = 0;
        if let Some(copies) = &self.copies {
            let mut guard = copies.lock();
            let Engine { stream, ahead } = &mut *guard;
            while done < bytes.len() {
                let at = copies.skip + offset + done as u64;
                match ahead.serve(stream, &copies.buffer, at, &mut bytes[done..])? {
                    0 => break,
                    len => done += len,
                }
            }
        }
        if done == bytes.len() {
            return Ok(());
        }
        let at = offset + done as u64;
        Ok(self.mapping.read_at_unfenced(at, &mut bytes[done..])?)
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        Ok(self.mapping.write_at(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        match &self.copies {
            Some(copies) if bytes.len() as u64 >= copies.from => {
                self.mapping.flush();
                Ok(copies.buffer.read(copies.skip + offset, bytes)?)
            }
            _ => Ok(self.mapping.read_at(offset, bytes)?),
        }
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let _alone = self.atomic.lock().unwrap_or_else(PoisonError::into_inner);
        let mut word = [0; 8];
        self.read(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            self.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }
}
