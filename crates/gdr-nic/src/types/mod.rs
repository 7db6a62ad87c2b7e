//! Plain types of the public interface.
//!
//! Nothing here imports a device, or an object that one creates.

mod counters;
mod event;
mod soft_options;

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use self::counters::{Counters, PayloadBytes};
pub use self::event::AsyncEvent;
pub use self::soft_options::{SoftOptions, Wires};

/// A protection domain. Queue pairs can only access regions in their own domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(u64);

impl Domain {
    /// A domain that [`Domain::new`] does not return.
    #[cfg(test)]
    pub(crate) const TEST: Self = Self(u64::MAX);

    /// Returns a domain that differs from all others in this process.
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Identifies a completion queue within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqNumber(u32);

impl CqNumber {
    /// Returns a number that no other of this process's last 2^32 queues has.
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// Identifies a shared receive queue within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SrqNumber(u32);

impl SrqNumber {
    /// Returns a number that no other of this process's last 2^32 queues has.
    #[expect(clippy::new_without_default, reason = "each one is different")]
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
