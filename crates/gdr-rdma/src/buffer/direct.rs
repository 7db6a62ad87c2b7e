//! GPU memory through the CPU's own window into it.

use std::collections::VecDeque;
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
/// How many copies are queued at once to learn what each costs among others.
const TOGETHER: usize = 8;
/// Below this the fixed cost of a copy is never made good, whatever was measured.
const SHORT: u64 = 512;
/// Requests that are remembered until they are served.
const REQUESTS: usize = 64;
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
    from: Thresholds,
    engine: Mutex<Engine>,
}

/// Bytes from which on it is used.
#[derive(Clone, Copy, Debug)]
struct Thresholds {
    /// For one request, which waits for its copy.
    alone: u64,
    /// For one among others, whose copies overlap.
    among: u64,
}

#[derive(Debug)]
struct Engine {
    stream: Stream,
    ahead: ReadAhead,
    /// Where the requests end that are announced and not served yet, the oldest first.
    ends: VecDeque<u64>,
}

impl Engine {
    /// Remembers a request; whether there are others.
    fn announce(&mut self, end: u64) -> bool {
        let others = !self.ends.is_empty();
        if self.ends.len() == REQUESTS {
            self.ends.pop_front();
        }
        self.ends.push_back(end);
        others
    }

    /// Bytes up to `end` were served; what was announced before was, too, or never will be.
    fn served(&mut self, end: u64) {
        if let Some(last) = self.ends.iter().position(|known| *known == end) {
            self.ends.drain(..=last);
        }
    }
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
            LongReads::From(bytes) => Thresholds {
                alone: bytes,
                among: bytes,
            },
            LongReads::Measured => measure(mapping, &buffer, skip, &stream)?,
        };
        let ahead = ReadAhead::new(buffer.gpu())?;
        Ok(Self {
            buffer,
            skip,
            from,
            engine: Mutex::new(Engine {
                stream,
                ahead,
                ends: VecDeque::new(),
            }),
        })
    }

    /// Copies what was read ahead into the start of `bytes`; how many.
    fn serve(&self, at: u64, bytes: &mut [u8]) -> Result<usize> {
        let mut engine = self.lock();
        engine.served(at + bytes.len() as u64);
        let Engine { stream, ahead, .. } = &mut *engine;
        let mut done = 0;
        while done < bytes.len() {
            let rest = &mut bytes[done..];
            match ahead.serve(stream, &self.buffer, at + done as u64, rest)? {
                0 => break,
                len => done += len,
            }
        }
        Ok(done)
    }

    /// A panic in another holder leaves at worst windows that are dropped before they are used.
    fn lock(&self) -> MutexGuard<'_, Engine> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// From how many bytes on the copy engine is faster here.
fn measure(
    mapping: &Mapping,
    buffer: &DeviceBuffer,
    skip: u64,
    stream: &Stream,
) -> Result<Thresholds> {
    let len = SAMPLE.min(usize::try_from(mapping.len()).unwrap_or(SAMPLE));
    let host = Arc::new(buffer.gpu().allocate_host(SAMPLE)?);
    let mut bytes = [0; SAMPLE];
    let copies = |count: usize| -> Result<Duration> {
        let start = Instant::now();
        for _ in 0..count {
            stream.queue_read(buffer, skip, &host, 0, len)?;
        }
        stream.wait(LIMIT)?;
        Ok(start.elapsed())
    };
    let [mut load, mut alone, mut together] = [Duration::MAX; 3];
    for _ in 0..SAMPLES {
        let start = Instant::now();
        mapping.read_at(0, &mut bytes[..len])?;
        load = load.min(start.elapsed());
        alone = alone.min(copies(1)?);
        together = together.min(copies(TOGETHER)?);
    }
    // Loads take as long as they are many; a copy of this length is all fixed cost.
    let from = |copy: Duration| {
        let from = copy.as_nanos() * len as u128 / load.as_nanos().max(1);
        u64::try_from(from).unwrap_or(u64::MAX).max(SHORT)
    };
    let from = Thresholds {
        alone: from(alone),
        among: from(together / TOGETHER as u32),
    };
    tracing::debug!(
        ?from,
        ?load,
        ?alone,
        ?together,
        len,
        "long reads go by the copy engine"
    );
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

    pub(super) fn device_memory(&self) -> Option<(&Arc<DeviceBuffer>, u64)> {
        let copies = self.copies.as_ref()?;
        Some((&copies.buffer, copies.skip))
    }

    pub(super) fn address(&self) -> u64 {
        self.mapping.device_ptr().get()
    }

    pub(super) fn long_reads_from(&self) -> Option<u64> {
        self.copies.as_ref().map(|copies| copies.from.alone)
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
        let mut engine = copies.lock();
        let at = copies.skip + offset;
        let from = match engine.announce(at + len) {
            true => copies.from.among,
            false => copies.from.alone,
        };
        let Engine { stream, ahead, .. } = &mut *engine;
        if len < from {
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
        let done = match &self.copies {
            Some(copies) => copies.serve(copies.skip + offset, bytes)?,
            None => 0,
        };
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
            Some(copies) if bytes.len() as u64 >= copies.from.alone => {
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
