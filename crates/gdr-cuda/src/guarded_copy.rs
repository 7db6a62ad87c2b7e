//! Copies that can be cancelled.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::error::{Error, Result};
use crate::host_buffer::HostBuffer;
use crate::kernel::Launch;
use crate::pointer::DevicePtr;

/// The state of each block of the kernel, added to the copy's number, which is a multiple of 4.
pub(crate) const STARTED: u32 = 1;
pub(crate) const COPIED: u32 = 2;
pub(crate) const SKIPPED: u32 = 3;

/// The offset of the blocks' words from the word that cancels: a cache line, because the CPU polls the words.
pub(crate) const STATES: usize = 64;
const MOST_BLOCKS: u32 = 32;
/// The number of bytes that all threads of a block copy at once.
const BYTES_OF_BLOCK: u64 = 8 << 10;

/// The progress of a [`GuardedCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GuardedState {
    /// The copy has not ended, and may still write.
    InProgress,
    /// All bytes have arrived.
    Complete,
    /// The copy was cancelled, and writes nothing more. Some of the bytes may have arrived.
    Cancelled,
}

/// A copy started by [`Stream::queue_guarded_copy`](crate::Stream::queue_guarded_copy), as the CPU sees it: words in
/// page-locked memory report its progress and cancel it. Neither calls the driver, so a blocked driver delays neither.
///
/// The blocks of a kernel copy the bytes. Each block first announces that it has started, then checks whether the copy
/// is cancelled. The CPU cancels in the opposite order: it writes the word that cancels, then checks which blocks have
/// started. At least one of the two sees the other. A block that has not started by then never accesses the memory, and
/// a block that has started ends soon.
#[derive(Clone, Debug)]
pub struct GuardedCopy {
    host: Arc<HostBuffer>,
    offset: usize,
    /// The GPU's address of the words.
    guard: DevicePtr,
    number: u32,
    blocks: u32,
}

impl GuardedCopy {
    /// The length of the words in bytes.
    pub const LEN: usize = STATES + 4 * MOST_BLOCKS as usize;

    /// Creates the `count`-th copy that uses the words at `offset`, a multiple of 4, and copies `len` bytes. The
    /// previous copy must have ended ([`GuardedCopy::has_ended`]). The words of the first copy must be 0.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Misaligned`].
    pub fn new(host: &Arc<HostBuffer>, offset: usize, count: u64, len: u64) -> Result<Self> {
        const NUMBERS: u64 = (1 << 30) - 1;
        host.at(offset, Self::LEN)?;
        host.load_u32(offset)?;
        let guard = host.gpu_ptr().checked_add(offset as u64);
        Ok(Self {
            host: Arc::clone(host),
            offset,
            guard: guard.ok_or(Error::OutOfRange {
                offset: offset as u64,
                wanted: Self::LEN as u64,
                len: host.len() as u64,
            })?,
            // Never 0, which is the value of the words before the first copy.
            number: 4 * (count % NUMBERS + 1) as u32,
            blocks: len
                .div_ceil(BYTES_OF_BLOCK)
                .clamp(1, u64::from(MOST_BLOCKS)) as u32,
        })
    }

    pub(crate) fn host(&self) -> &Arc<HostBuffer> {
        &self.host
    }

    /// Returns the kernel of this copy.
    pub(crate) fn launch(&self, src: DevicePtr, dst: DevicePtr, len: u64) -> Launch {
        Launch::GuardedCopy {
            src,
            dst,
            len,
            guard: self.guard,
            number: self.number,
            blocks: self.blocks,
        }
    }

    fn load(&self, at: usize) -> u32 {
        // `new` has checked the range.
        self.host.load_u32(self.offset + at).unwrap_or_default()
    }

    fn store(&self, at: usize, word: u32) {
        let stored = self.host.store_u32(self.offset + at, word);
        debug_assert!(stored.is_ok(), "`new` has checked the range");
    }

    fn block(at: u32) -> usize {
        STATES + 4 * at as usize
    }

    /// Returns the state of each block.
    fn states(&self) -> impl Iterator<Item = u32> {
        (0..self.blocks).map(|at| self.load(Self::block(at)).wrapping_sub(self.number))
    }

    /// Returns the progress of the copy.
    pub fn state(&self) -> GuardedState {
        let is_cancelled = self.load(0) == self.number;
        if is_cancelled {
            // Orders the loads of the blocks' states after the word that cancels, whichever thread wrote that word.
            fence(Ordering::SeqCst);
        }
        let mut all = GuardedState::Complete;
        for state in self.states() {
            match state {
                COPIED => {}
                SKIPPED => all = GuardedState::Cancelled,
                STARTED => return GuardedState::InProgress,
                _ if is_cancelled => all = GuardedState::Cancelled,
                _ => return GuardedState::InProgress,
            }
        }
        all
    }

    /// Cancels the copy: blocks that have not started copy nothing. [`GuardedCopy::state`] shows whether other blocks
    /// have.
    pub fn cancel(&self) {
        self.store(0, self.number);
        fence(Ordering::SeqCst);
    }

    /// Ends a copy whose kernel was not and will not be queued.
    pub fn leave_out(&self) {
        self.cancel();
        for at in 0..self.blocks {
            self.store(Self::block(at), self.number + SKIPPED);
        }
    }

    /// Returns whether all blocks have ended, so that the words can be used for the next copy. A cancelled copy ends
    /// when the GPU reaches its kernel.
    pub fn has_ended(&self) -> bool {
        self.states().all(|state| matches!(state, COPIED | SKIPPED))
    }
}
