//! Reads by the copy engine for callers that may not wait.
//!
//! A read that signal handlers may make, interrupt and leave by a jump cannot take a lock, allocate, or call the
//! driver, which does both: the interrupted thread, or one that waits for it, may hold the lock. A thread of this crate
//! therefore calls the driver. The reader posts its request in a [`slot`] and loads the bytes by CPU, starting with the
//! first. Whenever the next piece has arrived in page-locked memory, the reader takes it from there. The read is never
//! slower than its loads, whatever happens to the thread, the driver or the GPU.
//!
//! The copy engine writes only into page-locked memory of this module, never into the reader's. After a read has
//! returned, it reads nothing more for it, unless the driver keeps the thread for longer than 1 ms in the call that
//! queues a piece; dropping [`EngineReads`] waits for that.
//!
//! # Order
//! Over PCIe, the first loads of a read follow the earlier stores of its thread, and their bytes return after the
//! stores have arrived. The request is posted only then, so it reads the stored bytes.

mod engine_thread;
mod pieces;
mod slot;

use std::hint;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gdr_cuda::{DeviceBuffer, DriverKind};

use self::engine_thread::EngineThread;
use self::pieces::Pieces;
pub use self::slot::Lease;
use self::slot::{Request, Slot, pieces_of};
use crate::copier::Allocations;
use crate::cpu::{self, Caching, Routine};
use crate::error::{Error, Result};
use crate::mapping::Mapping;

/// The number of bytes loaded between two checks for a piece: this takes a PCIe round trip.
const BLOCK: u64 = 1 << 10;
/// How long a load of a block from a simulated GPU takes, so that its copy engine, which is a thread, is of use.
const SIMULATED_BLOCK: Duration = Duration::from_micros(10);
/// How long a complete read waits for the copy engine to stop reading for it.
const MOST_WAIT: Duration = Duration::from_millis(1);
/// From this length on, reads use stores that bypass the caches.
const UNCACHED: usize = 16 << 20;

/// Reads of a mapping by its GPU's copy engine.
#[derive(Debug)]
pub struct EngineReads {
    mapping: Arc<Mapping>,
    thread: &'static EngineThread,
    source: u64,
    /// The GPU address of the buffer, the offset of the mapping in it, and its length.
    buffer: u64,
    start: u64,
    len: u64,
    is_simulated: bool,
    taken: AtomicU64,
}

impl EngineReads {
    /// Creates reads of `mapping`, which begins in `buffer` and may end after it. Starts a thread for the GPU unless
    /// there is one; the thread sleeps while nothing is read.
    ///
    /// # Errors
    /// [`Error::MappedElsewhere`] if the mapping does not begin there; [`Error::Gpu`].
    pub fn new(mapping: Arc<Mapping>, buffer: impl Into<Arc<DeviceBuffer>>) -> Result<Self> {
        let buffer = buffer.into();
        let (mapped, allocated) = (mapping.device_ptr(), buffer.ptr());
        let start = mapped
            .offset_from(allocated)
            .filter(|start| *start < buffer.len())
            .ok_or(Error::MappedElsewhere { mapped, allocated })?;
        let thread = EngineThread::of(buffer.gpu())?;
        let is_simulated = buffer.gpu().driver().kind() == DriverKind::Simulated;
        let len = buffer.len();
        let allocations = Arc::new(Allocations::of(buffer)?);
        Ok(Self {
            mapping,
            source: thread.add(allocations),
            thread,
            buffer: allocated.get(),
            start,
            len,
            is_simulated,
            taken: AtomicU64::new(0),
        })
    }

    /// Returns the number of bytes that the copy engine has delivered so far; the CPU loaded the rest.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// Copies `len` bytes at `offset` to `host`, as [`Mapping::read_at`] does. Signal handlers may call this function,
    /// and may leave it by a jump: it takes no lock, allocates nothing and calls no function that does, and only the
    /// calling thread writes to `host`. [`Lease::end`] frees what an abandoned read still uses.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] or [`Error::ForkedChild`], and nothing is read.
    ///
    /// # Safety
    /// - `host` is valid for writing `len` bytes, and not in a mapping.
    /// - No other read uses `lease`, which is not moved until it is ended.
    pub unsafe fn read(&self, lease: &Lease, offset: u64, host: *mut u8, len: usize) -> Result<()> {
        let window = self.mapping.window_at(offset, len)?;
        let reader = Reader {
            window,
            host,
            len: len as u64,
            routine: self.mapping.routine(),
            caching: self.mapping.caching(),
            is_simulated: self.is_simulated,
        };
        let at = self.start.saturating_add(offset);
        // The copy engine does not read past the allocation.
        let is_in_buffer = at
            .checked_add(reader.len)
            .is_some_and(|end| end <= self.len);
        let first = reader.first_block();
        // Earlier stores leave the CPU first. The loads of the first block then arrive after them, and the request is
        // posted after the loads (see the module page).
        self.mapping.flush();
        reader.load(0, first);
        let is_worth =
            is_in_buffer && first < reader.len && self.thread.is_worth(reader.len, Instant::now());
        let claimed = is_worth.then(|| self.thread.claim(lease));
        let Some(slot) = claimed.flatten() else {
            // A failed claim leaves the slot in the lease.
            lease.end();
            reader.load(first, reader.len);
            return Ok(());
        };
        let request = Request {
            source: self.source,
            offset: at,
            len: reader.len,
        };
        slot.post(request, first);
        // After the request is posted, because a thread that is about to sleep checks for one once more.
        self.thread.wake();
        let taken = reader.go_on(slot, &pieces_of(&request, self.buffer), first);
        slot.stop();
        // A copy in progress reads memory that the caller may free next.
        wait_briefly(|| !slot.is_read());
        lease.end();
        self.taken.fetch_add(taken, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for EngineReads {
    fn drop(&mut self) {
        self.thread.remove(self.source);
    }
}

/// A read by the calling thread.
struct Reader {
    window: *const u8,
    host: *mut u8,
    len: u64,
    routine: &'static Routine,
    caching: Caching,
    is_simulated: bool,
}

impl Reader {
    /// Returns the length of the first block, which ends with a line.
    fn first_block(&self) -> u64 {
        let into_line = self.window.addr() as u64 % 64;
        self.len.min(BLOCK - into_line)
    }

    /// Loads the bytes from `at` to `end` by CPU.
    fn load(&self, mut at: u64, end: u64) {
        while at < end {
            let block = match self.is_simulated {
                true => BLOCK.min(end - at),
                false => end - at,
            };
            let start = Instant::now();
            // SAFETY: `window_at` found the range in the mapping, and `host` has as many bytes, as `read` requires; no
            // Rust memory is in a mapping.
            unsafe {
                let (to, from) = (self.host.add(at as usize), self.window.add(at as usize));
                cpu::copy_from(self.routine, self.caching, to, from, block as usize);
            }
            while self.is_simulated && start.elapsed() < SIMULATED_BLOCK {
                hint::spin_loop();
            }
            at += block;
        }
    }

    /// Takes pieces from `at` on as they arrive, and loads those that have not arrived. Returns the number of bytes
    /// taken.
    fn go_on(&self, slot: &Slot, pieces: &Pieces, mut at: u64) -> u64 {
        let mut taken = 0;
        while at < self.len {
            // The loads may be inside a piece: the rest of it is taken once it arrives.
            let number = pieces.with(at);
            match slot.arrived(number) {
                Some(ring) => {
                    let end = pieces.range(number).end;
                    // SAFETY: the piece has arrived there, and its position is reused only after `progress` below.
                    unsafe { self.take(ring.add(pieces.place(at)), at, end) };
                    taken += end - at;
                    at = end;
                }
                None => {
                    if !slot.is_queued(number) {
                        // The thread may need this CPU, for example in a process that is bound to one CPU.
                        thread::yield_now();
                    }
                    let end = self.len.min(at + BLOCK);
                    self.load(at, end);
                    at = end;
                }
            }
            // From here on the thread may reuse the positions of these bytes.
            slot.progress(at);
        }
        taken
    }

    /// Copies the bytes from `at` to `end` out of a ring.
    ///
    /// # Safety
    /// The bytes are at `from`, in page-locked memory that nothing writes.
    unsafe fn take(&self, from: *const u8, at: u64, end: u64) {
        let len = (end - at) as usize;
        // SAFETY: the caller's promise, and `read`'s: `host` has the bytes of the read, and is ordinary memory outside
        // any ring. The routine accepts ordinary memory.
        unsafe {
            let to = self.host.add(at as usize);
            // A routine that needs an uncached mapping would fault on the program's memory.
            if self.len as usize >= UNCACHED && !self.routine.needs_uncached_mapping() {
                cpu::copy_to(self.routine, Caching::WriteCombined, to, from, len);
            } else {
                ptr::copy_nonoverlapping(from, to, len);
            }
        }
    }
}

/// Waits until the condition holds, for a limited time.
fn wait_briefly(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() && start.elapsed() < MOST_WAIT {
        // The thread may need this CPU.
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
