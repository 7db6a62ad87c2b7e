//! GPU memory through page-locked host memory and the GPU's copy engine.
//!
//! Received bytes are gathered in slots of page-locked memory. Each slot is copied to the GPU when it
//! is full or when the engine flushes; the copies run on a separate stream while the next slot
//! fills. Bytes to send are read ahead on other streams.

use std::sync::{Arc, Mutex, MutexGuard};

use gdr_cuda::{DeviceBuffer, PooledHostBuffer};
use gdr_process::lock::lock;

use super::copy_stream::{CHUNK, CopyStream, STAGING, Streams};
use super::read_ahead::ReadAhead;
use super::read_source::ReadSource;
use crate::error::Result;
use gdr_roce::AtomicOp;

/// The number of slots of [`CHUNK`] bytes.
const SLOTS: usize = STAGING / CHUNK;
/// The length of an atomic operation in bytes.
const WORD: usize = 8;

/// A device buffer that is accessed through page-locked memory.
#[derive(Debug)]
pub(crate) struct Staged {
    source: Arc<ReadSource>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: CopyStream,
    slots: PooledHostBuffer,
    /// The slot being filled.
    slot: usize,
    /// The bytes gathered in the slot.
    gathered: Gathered,
    ahead: ReadAhead<Streams>,
}

/// Consecutive bytes not yet copied to the device.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    offset: u64,
    len: usize,
}

impl Staged {
    pub(super) fn new(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let gpu = buffer.gpu();
        let state = State {
            stream: CopyStream::new(gpu)?,
            slots: PooledHostBuffer::new(gpu, STAGING)?,
            slot: 0,
            gathered: Gathered::default(),
            ahead: ReadAhead::new(Streams::new(gpu)?),
        };
        Ok(Self {
            source: Arc::new(ReadSource::kept(buffer)),
            state: Mutex::new(state),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.source.buffer().len()
    }

    pub(super) fn device_buffer(&self) -> &Arc<DeviceBuffer> {
        self.source.buffer()
    }

    pub(super) fn address(&self) -> u64 {
        self.source.buffer().ptr().get()
    }

    /// Stores bytes; they are in GPU memory after [`Staged::flush`].
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        let mut state = self.lock();
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let follows = at == state.gathered.offset + state.gathered.len as u64;
            // A slot is moved by a single copy, so its bytes must be contiguous.
            if state.gathered.len == CHUNK || (state.gathered.len > 0 && !follows) {
                state.submit(self.source.buffer())?;
            }
            if state.gathered.len == 0 {
                state.gathered.offset = at;
            }
            let (piece, later) = rest.split_at(rest.len().min(CHUNK - state.gathered.len));
            let to = state.slot * CHUNK + state.gathered.len;
            state.slots.write(to, piece)?;
            state.gathered.len += piece.len();
            at += piece.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Waits until all stored bytes are in GPU memory.
    pub(super) fn flush(&self) -> Result<()> {
        self.lock().drain(self.source.buffer())
    }

    /// Announces that a request will read this range: the bytes loaded for it are no older than this
    /// call.
    pub(super) fn expect_read(&self, offset: u64, len: u64) -> Result<()> {
        super::check_range(offset, len, self.len())?;
        let mut state = self.lock();
        // Copies in the two directions run on different streams.
        state.drain(self.source.buffer())?;
        state.ahead.expect(&self.source, offset, len)
    }

    /// Copies GPU memory into `bytes`.
    pub(super) fn load(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        let mut guard = self.lock();
        let state = &mut *guard;
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let ahead = &mut state.ahead;
            let mut len = ahead.serve(&self.source, at, rest)?;
            if len == 0 {
                // The bytes were served before, and other chunks have replaced them.
                ahead.expect(&self.source, at, rest.len() as u64)?;
                len = ahead.serve(&self.source, at, rest)?;
            }
            at += len as u64;
            rest = &mut rest[len..];
        }
        Ok(())
    }

    /// Writes for the program, after the bytes that the engine has gathered. The copy runs on the default stream, where
    /// it may wait for kernels, so it must not run under the lock.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.lock().drain(self.source.buffer())?;
        Ok(self.source.buffer().write(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.lock().drain(self.source.buffer())?;
        Ok(self.source.buffer().read(offset, bytes)?)
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let mut state = self.lock();
        state.drain(self.source.buffer())?;
        // All slots are empty now, and the word goes through the first one.
        let State { stream, slots, .. } = &*state;
        stream.queue_read(self.source.buffer(), offset, slots, 0, WORD)?;
        stream.wait()?;
        let mut word = [0; WORD];
        slots.read(0, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            slots.write(0, &after.to_ne_bytes())?;
            stream.queue_write(slots, 0, self.source.buffer(), offset, WORD)?;
            stream.wait()?;
        }
        Ok(before)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// Queues the copy of the slot and moves on to the next one.
    fn submit(&mut self, buffer: &DeviceBuffer) -> Result<()> {
        let Gathered { offset, len } = std::mem::take(&mut self.gathered);
        if len == 0 {
            return Ok(());
        }
        let from = self.slot * CHUNK;
        self.stream
            .queue_write(&self.slots, from, buffer, offset, len)?;
        self.slot = (self.slot + 1) % SLOTS;
        if self.slot == 0 {
            // The copies of the first slots may still be in progress.
            self.stream.wait()?;
        }
        Ok(())
    }

    /// Submits the gathered bytes and waits for all copies.
    fn drain(&mut self, buffer: &DeviceBuffer) -> Result<()> {
        // Nothing was gathered or queued since the last wait.
        if self.gathered.len == 0 && self.slot == 0 {
            return Ok(());
        }
        self.submit(buffer)?;
        self.stream.wait()?;
        self.slot = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};

    use super::*;

    #[test]
    fn an_atomic_between_stores_changes_only_its_own_word() {
        let gpu = Gpu::open(SimDriver::new(1), Ordinal(0)).unwrap();
        let buffer = gpu.allocate(MemoryKind::Plain, 1 << 20).unwrap();
        let staged = Staged::new(Arc::new(buffer)).unwrap();
        staged.write(0, &[0; 64]).unwrap();
        // Not consecutive, so each uses a separate slot.
        staged.store(8, &[1; 8]).unwrap();
        staged.store(32, &[2; 8]).unwrap();
        for (before, add) in [(0, 5), (5, 6)] {
            let sum = AtomicOp::FetchAdd { add };
            assert_eq!(staged.atomic(16, sum).unwrap(), before);
            staged.store(48, &[3; 8]).unwrap();
        }
        staged.flush().unwrap();
        let mut words = [0; 64];
        staged.read(0, &mut words).unwrap();
        let mut expected = [0; 64];
        expected[8..16].fill(1);
        expected[16..24].copy_from_slice(&11_u64.to_ne_bytes());
        expected[32..40].fill(2);
        expected[48..56].fill(3);
        assert_eq!(words, expected);
    }
}
