//! GPU memory through page-locked host memory and the GPU's copy engine.
//!
//! Received bytes are gathered in a ring of page-locked slots. Each slot is copied to the GPU when
//! it is full or when the engine flushes; the copies run on a separate stream while the next slot
//! fills. Bytes to send are read ahead on the same stream.

use std::sync::{Arc, Mutex, MutexGuard};

use gdr_cuda::DeviceBuffer;

use super::copy_stream::CopyStream;
use super::pinned_ring::PinnedRing;
use super::read_ahead::ReadAhead;
use crate::error::Result;
use crate::lock::lock;
use gdr_roce::AtomicOp;

/// The length of a slot in bytes: long enough that the fixed cost of a copy (some microseconds) is
/// small compared to its duration on PCIe, short enough that it starts while a message still
/// arrives.
const SLOT: usize = 256 << 10;
/// How many slots the ring has.
const SLOTS: usize = 4;
/// The length of an atomic operation in bytes.
const WORD: usize = 8;

/// A device buffer behind page-locked memory.
#[derive(Debug)]
pub(crate) struct Staged {
    buffer: Arc<DeviceBuffer>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: CopyStream,
    /// The slots, followed by the word of an atomic operation.
    ring: PinnedRing,
    /// The slot being filled.
    slot: usize,
    /// The bytes in it.
    gathered: Gathered,
    ahead: ReadAhead,
}

/// Consecutive bytes that are not yet copied to the device.
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
            ring: PinnedRing::new(gpu, SLOT * SLOTS + WORD)?,
            slot: 0,
            gathered: Gathered::default(),
            ahead: ReadAhead::new(gpu)?,
        };
        Ok(Self {
            buffer,
            state: Mutex::new(state),
        })
    }

    pub(super) fn len(&self) -> u64 {
        self.buffer.len()
    }

    pub(super) fn device_buffer(&self) -> &Arc<DeviceBuffer> {
        &self.buffer
    }

    pub(super) fn address(&self) -> u64 {
        self.buffer.ptr().get()
    }

    /// Stores bytes; they are in GPU memory after [`Staged::flush`].
    pub(super) fn store(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        super::check_range(offset, bytes.len() as u64, self.len())?;
        let mut state = self.lock();
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let follows = at == state.gathered.offset + state.gathered.len as u64;
            if state.gathered.len == SLOT || (state.gathered.len > 0 && !follows) {
                state.submit(&self.buffer)?;
            }
            if state.gathered.len == 0 {
                state.gathered.offset = at;
            }
            let (piece, later) = rest.split_at(rest.len().min(SLOT - state.gathered.len));
            let to = state.slot * SLOT + state.gathered.len;
            state.ring.write(to, piece)?;
            state.gathered.len += piece.len();
            at += piece.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Waits until all stored bytes are in GPU memory.
    pub(super) fn flush(&self) -> Result<()> {
        self.lock().drain(&self.buffer)
    }

    /// Announces that a request will read this range: the bytes loaded for it are no older than this
    /// call.
    pub(super) fn expect_read(&self, offset: u64, len: u64) -> Result<()> {
        super::check_range(offset, len, self.len())?;
        let mut guard = self.lock();
        let state = &mut *guard;
        // The stream runs the copies in this order.
        state.submit(&self.buffer)?;
        state.ahead.expect(&state.stream, &self.buffer, offset, len)
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
            let mut len = ahead.serve(&state.stream, &self.buffer, at, rest)?;
            if len == 0 {
                // They were served before, or other chunks have taken their room.
                let (missing, stream) = (rest.len() as u64, &state.stream);
                ahead.expect(stream, &self.buffer, at, missing)?;
                len = ahead.serve(stream, &self.buffer, at, rest)?;
            }
            at += len as u64;
            rest = &mut rest[len..];
        }
        Ok(())
    }

    /// Copies for the program, after the bytes that the engine gathered. The copy runs on the default
    /// stream, where it may wait for kernels, so it must not run under the lock.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.lock().drain(&self.buffer)?;
        Ok(self.buffer.write(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.lock().drain(&self.buffer)?;
        Ok(self.buffer.read(offset, bytes)?)
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        const AT: usize = SLOT * SLOTS;
        let mut state = self.lock();
        state.drain(&self.buffer)?;
        let State { stream, ring, .. } = &*state;
        stream.queue_read(&self.buffer, offset, ring, AT, WORD)?;
        stream.wait()?;
        let mut word = [0; WORD];
        ring.read(AT, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            ring.write(AT, &after.to_ne_bytes())?;
            stream.queue_write(ring, AT, &self.buffer, offset, WORD)?;
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
        let from = self.slot * SLOT;
        self.stream
            .queue_write(&self.ring, from, buffer, offset, len)?;
        self.slot = (self.slot + 1) % SLOTS;
        if self.slot == 0 {
            // The copies of the first slots may still be in progress.
            self.stream.wait()?;
        }
        Ok(())
    }

    /// Submits the gathered bytes and waits for all copies.
    fn drain(&mut self, buffer: &DeviceBuffer) -> Result<()> {
        if self.gathered.len == 0 && self.slot == 0 {
            return Ok(());
        }
        self.submit(buffer)?;
        self.stream.wait()?;
        self.slot = 0;
        Ok(())
    }
}
