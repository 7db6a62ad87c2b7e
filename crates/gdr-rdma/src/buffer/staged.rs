//! GPU memory through page-locked host memory and the GPU's copy engine.
//!
//! What arrives is gathered in a ring of page-locked slots, each of which is copied to the GPU
//! when it is full or when the engine asks for a flush; the copies run on a stream of their own
//! while the next slot fills. What leaves is read ahead on the same stream.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gdr_cuda::{DeviceBuffer, HostBuffer, Stream};

use super::ahead::ReadAhead;
use crate::error::Result;
use gdr_roce::AtomicOp;

/// Bytes of one slot: long enough that a copy's fixed cost (some microseconds) is small beside
/// its duration on PCIe, short enough that it starts while a message still arrives.
const SLOT: usize = 256 << 10;
/// Slots in the ring.
const SLOTS: usize = 4;
/// A copy of [`SLOT`] bytes takes some 20 us; a GPU that takes this long is lost.
const LIMIT: Duration = Duration::from_secs(10);

/// A device buffer behind page-locked memory.
#[derive(Debug)]
pub(crate) struct Staged {
    buffer: Arc<DeviceBuffer>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stream: Stream,
    ring: Arc<HostBuffer>,
    /// The slot being filled.
    slot: usize,
    /// What it holds.
    gathered: Gathered,
    ahead: ReadAhead,
}

/// Consecutive bytes on their way to the device.
#[derive(Clone, Copy, Debug, Default)]
struct Gathered {
    offset: u64,
    len: usize,
}

impl Staged {
    pub(super) fn new(buffer: Arc<DeviceBuffer>) -> Result<Self> {
        let gpu = buffer.gpu();
        let state = State {
            stream: gpu.stream()?,
            ring: Arc::new(gpu.allocate_host(SLOT * SLOTS)?),
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

    /// Takes bytes; they are in GPU memory after [`Staged::flush`].
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

    /// Returns when everything taken is in GPU memory.
    pub(super) fn flush(&self) -> Result<()> {
        self.lock().drain(&self.buffer)
    }

    /// A request is about to read this range: what is loaded for it is no older than now.
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
                // Asked for again, or pushed out of the ring by others.
                let (missing, stream) = (rest.len() as u64, &state.stream);
                ahead.expect(stream, &self.buffer, at, missing)?;
                len = ahead.serve(stream, &self.buffer, at, rest)?;
            }
            at += len as u64;
            rest = &mut rest[len..];
        }
        Ok(())
    }

    /// The program's own copies wait for what the engine gathered, and for nothing else.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.lock();
        state.drain(&self.buffer)?;
        Ok(self.buffer.write(offset, bytes)?)
    }

    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.lock().drain(&self.buffer)?;
        Ok(self.buffer.read(offset, bytes)?)
    }

    pub(super) fn atomic(&self, offset: u64, operation: AtomicOp) -> Result<u64> {
        let mut state = self.lock();
        state.drain(&self.buffer)?;
        let mut word = [0; 8];
        self.buffer.read(offset, &mut word)?;
        let before = u64::from_ne_bytes(word);
        let after = operation.apply(before);
        if after != before {
            self.buffer.write(offset, &after.to_ne_bytes())?;
        }
        Ok(before)
    }

    /// A panic in another holder leaves at worst bytes that are never acknowledged.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Starts copying the slot and turns to the next one.
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
            // The slots ahead may still be on their way.
            self.stream.wait(LIMIT)?;
        }
        Ok(())
    }

    /// Submits what is left and waits.
    fn drain(&mut self, buffer: &DeviceBuffer) -> Result<()> {
        if self.gathered.len == 0 && self.slot == 0 {
            return Ok(());
        }
        self.submit(buffer)?;
        self.stream.wait(LIMIT)?;
        self.slot = 0;
        Ok(())
    }
}
