//! Memory as the engine sees it: a trait that checks and moves.

use crate::key::Key;

bitflags::bitflags! {
    /// What may be done to a memory region, or through a queue pair.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// This side's receives and READ responses may be placed. Reading locally is always allowed.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may do atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
    }
}

/// Bytes by address and number, as a work request or a packet names them. Not checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Address of the first byte.
    pub addr: u64,
    /// How many bytes.
    pub len: u32,
}

/// An atomic operation on eight bytes in the host's byte order, aligned to eight.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AtomicOp {
    /// Adds, wrapping.
    FetchAdd {
        /// What is added.
        add: u64,
    },
    /// Replaces the value by `swap` when it is `compare`.
    CompareSwap {
        /// What is expected.
        compare: u64,
        /// What replaces it.
        swap: u64,
    },
}

impl AtomicOp {
    /// The new value where `old` stands.
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            Self::FetchAdd { add } => old.wrapping_add(add),
            Self::CompareSwap { compare, swap } => {
                if old == compare {
                    swap
                } else {
                    old
                }
            }
        }
    }
}

/// Why memory was not accessed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// No region of the queue pair's protection domain has this key.
    #[error("no memory region has this key; register it in the queue pair's protection domain")]
    UnknownKey,
    /// The range leaves its region.
    #[error("the range leaves its memory region; register more, or ask for less")]
    OutOfRange,
    /// The region does not permit this.
    #[error("the memory region does not permit this access; register it with that permission")]
    Permission,
    /// The memory itself failed: a device that went away, a copy that went wrong.
    #[error("the memory cannot be accessed any more; its device may be gone")]
    Failed,
}

/// The memory regions of one protection domain: where the bytes come from and go to.
///
/// One value stands for the protection domain that the queue pair belongs to: a key of another
/// domain is an unknown one.
///
/// The engine calls [`check`](Self::check) for the whole of a message's range before it moves
/// its first byte, and moves packet by packet. A region may go away in between, so
/// [`read`](Self::read), [`write`](Self::write) and [`atomic`](Self::atomic) must check their own
/// range, too, and must refuse a range that is not wholly inside: no call may move part of it.
///
/// One call moves at most one packet's payload, 4096 bytes. A range of zero bytes is never asked for.
pub trait Memory {
    /// Whether `extent` lies in the region of `key` and all of `access` is permitted.
    ///
    /// # Errors
    ///
    /// The first thing that stands against it. `extent` comes from outside: its end may overflow.
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError>;

    /// Copies `out.len()` bytes from `addr` on.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_READ` for a [`Key::Remote`].
    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `bytes` to `addr`.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_WRITE` for a [`Key::Remote`], `LOCAL_WRITE`
    /// for a [`Key::Local`].
    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Applies `op` at `addr`, a multiple of eight, and tells the value before.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_ATOMIC`.
    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError>;
}
