//! The interface to memory regions.

use crate::ids::{Key, Rkey};

bitflags::bitflags! {
    /// Access rights of a memory region or a queue pair, as in `enum ibv_access_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    pub struct Access: u8 {
        /// Local requests may write: receives, READs and atomics. Reading is always permitted.
        const LOCAL_WRITE = 1;
        /// The peer may WRITE.
        const REMOTE_WRITE = 1 << 1;
        /// The peer may READ.
        const REMOTE_READ = 1 << 2;
        /// The peer may perform atomic operations.
        const REMOTE_ATOMIC = 1 << 3;
        /// The peer may make its writes globally visible.
        const FLUSH_GLOBAL = 1 << 4;
        /// The peer may make its writes persistent.
        const FLUSH_PERSISTENT = 1 << 5;
    }
}

/// An address range from a work request or a packet. It is unchecked, and its end may overflow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// Address of the first byte.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

/// An atomic operation on an aligned 64-bit number in host byte order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum AtomicOp {
    /// Adds `add`, wrapping around.
    FetchAdd { add: u64 },
    /// Replaces the value by `swap` if it equals `compare`.
    CompareSwap { compare: u64, swap: u64 },
}

impl AtomicOp {
    /// Returns the new value, given the old one.
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

/// How a packet's payload is sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PayloadBy {
    /// The packet contains a copy.
    Copy,
    /// The packet refers to the bytes.
    Reference,
}

/// Why an access to memory failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The queue pair's protection domain has no region with this key.
    #[error("no memory region has this key; register it in the queue pair's protection domain")]
    UnknownKey,
    /// The range is not inside the region.
    #[error("the range is not inside its memory region; register more, or access less")]
    OutOfRange,
    /// The region does not permit the access.
    #[error("the memory region does not permit this access; register it with that permission")]
    Permission,
    /// The memory is inaccessible: its device failed or was removed.
    #[error("the memory cannot be accessed any more; check its device")]
    Failed,
    /// The bytes for [`write_from`](Memory::write_from) are still being copied. The packet has no effect, and the
    /// caller passes it in again later.
    #[error("the bytes are not there yet; pass the packet again")]
    NotYet,
}

/// The memory regions of a queue pair's protection domain. A key from another domain is an
/// [`UnknownKey`](AccessError::UnknownKey).
///
/// A queue pair calls [`check`](Self::check) for the whole range of a message before it copies the first byte, and then
/// copies packet by packet. The exception is a received SEND, whose length is known only with the last packet: there
/// each packet is checked separately. A region may be deregistered in between, so [`read`](Self::read),
/// [`write`](Self::write) and [`atomic`](Self::atomic) must check their own range as well. They copy the whole range or
/// return an error.
///
/// One call copies at most the payload of one packet (4096 bytes), or of 1024 packets with
/// [`write_from`](Self::write_from). The range is never empty.
pub trait Memory {
    /// Checks that `extent` is inside the region of `key` and that the region permits `access`.
    ///
    /// # Errors
    ///
    /// Any [`AccessError`]. `extent` is untrusted: its end may overflow.
    fn check(&self, key: Key, extent: Extent, access: Access) -> Result<(), AccessError>;

    /// Like [`check`](Self::check), for a request that refers to the whole region.
    ///
    /// # Errors
    ///
    /// Any [`AccessError`]. By default [`AccessError::UnknownKey`].
    fn check_region(&self, key: Key, access: Access) -> Result<(), AccessError> {
        let _ = (key, access);
        Err(AccessError::UnknownKey)
    }

    /// Copies the bytes at `addr` to `out`.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_READ` for a [`Key::Remote`].
    fn read(&mut self, key: Key, addr: u64, out: &mut [u8]) -> Result<(), AccessError>;

    /// Copies `bytes` to `addr`.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_WRITE` for a [`Key::Remote`], `LOCAL_WRITE` for a [`Key::Local`].
    fn write(&mut self, key: Key, addr: u64, bytes: &[u8]) -> Result<(), AccessError>;

    /// Copies the bytes at `from` to `addr`. The wire that received [`Contents::At`](crate::Contents::At) and the owner
    /// of the memory agree on the meaning of the address in `from`.
    ///
    /// The message may write `room` bytes from `addr` on, at least as many as `from` has, so that the payload of its
    /// next packets may be copied along.
    ///
    /// # Errors
    ///
    /// As for [`write`](Self::write), and [`AccessError::NotYet`] while the bytes are being copied. By default
    /// [`AccessError::Failed`], as no such bytes exist.
    fn write_from(
        &mut self,
        key: Key,
        addr: u64,
        from: Extent,
        room: u32,
    ) -> Result<(), AccessError> {
        let _ = (key, addr, from, room);
        Err(AccessError::Failed)
    }

    /// Decides how the payload of the packet being written is sent. `extent` is what [`read`](Self::read) would copy
    /// for this packet and the ones after it, in a message of `message` bytes. Returns how many of these bytes are sent
    /// [by reference](PayloadBy::Reference): none, all, or a multiple of 4096. A single packet stands for all of them:
    /// it is written without payload, and the owner of the memory adds the location of the bytes, which must not change
    /// until the peer has acknowledged or received them. Never called for retransmissions.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    fn choose_payload(
        &mut self,
        key: Key,
        extent: Extent,
        message: u32,
    ) -> Result<u32, AccessError> {
        let _ = (key, extent, message);
        Ok(0)
    }

    /// Applies `op` at `addr`, a multiple of eight, and returns the original value.
    ///
    /// # Errors
    ///
    /// As for [`check`](Self::check); needs `REMOTE_ATOMIC`.
    fn atomic(&mut self, key: Key, addr: u64, op: AtomicOp) -> Result<u64, AccessError>;

    /// Binds the memory window with this key.
    ///
    /// # Errors
    ///
    /// [`AccessError::UnknownKey`] unless it is this queue pair's window, and of type 1 or unbound. By default there
    /// are no windows.
    fn bind(&mut self, rkey: Rkey) -> Result<(), AccessError> {
        let _ = rkey;
        Err(AccessError::UnknownKey)
    }

    /// Invalidates the memory window with this key, which then permits no access.
    ///
    /// # Errors
    ///
    /// [`AccessError::UnknownKey`] unless it is a type 2 window that this queue pair has bound.
    fn invalidate(&mut self, rkey: Rkey) -> Result<(), AccessError> {
        let _ = rkey;
        Err(AccessError::UnknownKey)
    }
}
