//! Plain types of the public interface.
//!
//! Nothing here imports a device, or an object that one makes.

mod counters;
mod event;
mod soft_options;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use self::counters::{Counters, PayloadBytes};
pub use self::event::AsyncEvent;
pub(crate) use self::soft_options::Shards;
pub use self::soft_options::{PortUse, SoftOptions, Wires};

/// The UDP port from which a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePort {
    /// Always the port of the address of its device. Packets from another port of that address are dropped.
    OfAddress,
    /// Any port, as of network cards and Linux's rxe.
    Any,
}

/// How thoroughly an arriving packet is checked before its bytes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Integrity {
    /// RoCE's own CRC over headers and payload, end to end.
    Icrc,
    /// The same over IPv4, with a raw socket (CAP_NET_RAW), for packets without a UDP checksum:
    /// those of network cards and of Linux's rxe. For packets with a UDP checksum, such as this
    /// crate's own, the kernel verifies that checksum, and this process verifies 16 bits of the
    /// ICRC as in [`Integrity::PartialIcrc`].
    IcrcOrChecksum,
    /// As much of the ICRC as a UDP socket over IPv4 can verify: the ICRC covers the identification
    /// field, which the socket does not report, so a packet is accepted if any value of that field
    /// explains its ICRC. That leaves 16 of its 32 bits: every single flipped bit is detected, and
    /// all but one in 65536 of other changes. UDP's own checksum is verified as well if the sender
    /// set one.
    PartialIcrc,
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Icrc => "ICRC checked",
            Self::IcrcOrChecksum => {
                "ICRC checked, or half of it and UDP's checksum where a packet has one"
            }
            Self::PartialIcrc => {
                "ICRC checked to 16 of its 32 bits (IPv4's identification field is hidden without \
                 CAP_NET_RAW)"
            }
        })
    }
}

/// A protection domain: queue pairs reach the regions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Domain(u64);

impl Domain {
    /// A domain that [`Domain::new`] does not return.
    #[cfg(test)]
    pub(crate) const TEST: Self = Self(u64::MAX);

    /// Returns a domain that is different from all others of this process.
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

    /// The number.
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

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
