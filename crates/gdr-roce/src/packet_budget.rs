//! How much memory the packets after gaps may take.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A limit on the bytes of packets that queue pairs together keep while an earlier packet is missing
/// ([`LossRecovery::Selective`](crate::LossRecovery::Selective)). A clone refers to the same budget.
///
/// A queue pair may hold at most as much as is left, so a single one never holds more than half, and others still
/// get some. A packet that exceeds the budget is dropped, and its sender sends it again. Each packet counts with its
/// length plus 64 bytes.
#[derive(Clone, Debug)]
pub struct PacketBudget(Arc<Bytes>);

#[derive(Debug)]
struct Bytes {
    left: AtomicUsize,
    /// The bytes of packets that were dropped since the owner last asked.
    dropped: AtomicUsize,
}

impl PacketBudget {
    /// The default budget of a queue pair: 64 MiB.
    pub const DEFAULT: usize = 64 << 20;

    /// What a packet counts besides its length: its place, and what the allocator adds.
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

    /// Returns how many bytes of kept packets were dropped (in ERR, in RESET, or because a gap was not closed) since
    /// this last returned a number, once there are at least `least`. The owner can then return the memory to the
    /// operating system, since an allocator may keep it.
    pub fn dropped(&self, least: usize) -> Option<usize> {
        let enough = self.0.dropped.load(Ordering::Relaxed) >= least;
        enough.then(|| self.0.dropped.swap(0, Ordering::Relaxed))
    }

    /// Takes what a packet of `len` bytes counts, for a queue pair that holds `held`. Returns `None` if
    /// less would be left than the queue pair would hold.
    pub(crate) fn take(&self, len: usize, held: usize) -> Option<usize> {
        let size = Self::size(len);
        // Nothing but the number itself is shared, so no order is needed.
        self.0
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                let left = left.checked_sub(size)?;
                (held + size <= left).then_some(left)
            })
            .ok()
            .map(|_| size)
    }

    /// What a packet of `len` bytes counts.
    pub(crate) const fn size(len: usize) -> usize {
        len + Self::OVERHEAD
    }

    /// Gives back what was taken.
    pub(crate) fn give_back(&self, size: usize) {
        self.0.left.fetch_add(size, Ordering::Relaxed);
    }

    /// Gives back what was taken for packets that are dropped.
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
