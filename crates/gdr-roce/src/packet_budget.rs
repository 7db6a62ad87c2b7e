//! A memory limit for packets buffered beyond gaps.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on the total size of packets that queue pairs buffer while an earlier packet is missing
/// ([`LossRecovery::Selective`](crate::LossRecovery::Selective)). Clones share one budget.
///
/// A queue pair may hold at most as much as is left, so a single one never holds more than half, and others still get
/// some. A packet that exceeds the budget is dropped, and its sender retransmits it. Each packet is charged its length
/// plus 64 bytes.
#[derive(Clone, Debug)]
pub struct PacketBudget(Arc<Bytes>);

#[derive(Debug)]
struct Bytes {
    left: AtomicUsize,
    /// Bytes of dropped packets, since the owner last asked.
    dropped: AtomicUsize,
}

impl PacketBudget {
    /// The default budget of a queue pair: 64 MiB.
    pub const DEFAULT: usize = 64 << 20;

    /// The charge for a packet beyond its length: its map entry, and allocator overhead.
    const OVERHEAD: usize = 64;

    /// Creates a budget.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Bytes {
            left: AtomicUsize::new(bytes),
            dropped: AtomicUsize::new(0),
        }))
    }

    /// Returns how many bytes are left.
    pub fn left(&self) -> usize {
        self.0.left.load(Ordering::Relaxed)
    }

    /// Returns the size of the buffered packets dropped since this last returned a number (in ERR, in RESET, or because
    /// a gap was not closed), once it is at least `least`. The owner can then return memory to the operating system,
    /// which an allocator might otherwise keep.
    pub fn dropped(&self, least: usize) -> Option<usize> {
        let enough = self.0.dropped.load(Ordering::Relaxed) >= least;
        enough.then(|| self.0.dropped.swap(0, Ordering::Relaxed))
    }

    /// Charges a packet of `len` bytes for a queue pair that holds `held`. Returns the charge, or `None` if less would
    /// be left than the queue pair would hold.
    pub(crate) fn take(&self, len: usize, held: usize) -> Option<usize> {
        let size = Self::size(len);
        // Relaxed, as the counter guards no other data.
        self.0
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                let left = left.checked_sub(size)?;
                (held + size <= left).then_some(left)
            })
            .ok()
            .map(|_| size)
    }

    /// Returns the charge for a packet of `len` bytes.
    pub(crate) const fn size(len: usize) -> usize {
        len + Self::OVERHEAD
    }

    /// Returns a charge to the budget.
    pub(crate) fn give_back(&self, size: usize) {
        self.0.left.fetch_add(size, Ordering::Relaxed);
    }

    /// Returns the charge of dropped packets to the budget.
    pub(crate) fn drop_kept(&self, size: usize) {
        self.give_back(size);
        self.0.dropped.fetch_add(size, Ordering::Relaxed);
    }
}

impl Default for PacketBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}
