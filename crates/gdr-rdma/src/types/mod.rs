//! Plain types that the public interface and the providers share.
//!
//! Nothing here imports a device, a provider, or an object that one of them makes.

mod connection_options;
mod counters;
mod endpoint;
mod event;
mod flush_policy;
mod gid;
mod lid;
mod link_layer;
mod peer_text;
mod soft_options;
mod verbs_options;

use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub use self::connection_options::ConnectionOptions;
pub use self::counters::{Counters, PayloadBytes};
pub use self::endpoint::{Endpoint, SourcePort, UdEndpoint};
pub use self::event::AsyncEvent;
pub use self::flush_policy::FlushPolicy;
pub use self::gid::{ChosenGid, GidEntry, GidType, NoGid, choose as choose_gid};
pub use self::lid::Lid;
pub use self::link_layer::LinkLayer;
pub use self::peer_text::PeerText;
pub(crate) use self::soft_options::Shards;
pub use self::soft_options::{PortUse, SoftOptions};
pub use self::verbs_options::VerbsOptions;

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// This process, by RoCEv2 over a UDP socket.
    Soft,
    /// A kernel device through libibverbs: InfiniBand, RoCE, iWARP, Linux's rxe and siw.
    Verbs,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Soft => "soft (RoCEv2 in user space)",
            Self::Verbs => "verbs (a kernel device)",
        })
    }
}

/// How thoroughly an arriving packet is checked before its bytes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Integrity {
    /// RoCE's own CRC over headers and payload, end to end.
    Icrc,
    /// The same over IPv4, with a raw socket (CAP_NET_RAW), for packets without a UDP checksum:
    /// those of network cards and of Linux's rxe. For packets with a UDP checksum, such as this
    /// provider's own, the kernel verifies that checksum, and this process verifies 16 bits of the
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
                "ICRC checked (where UDP has a checksum, that and 16 of the ICRC's 32 bits)"
            }
            Self::PartialIcrc => {
                "ICRC checked to 16 of its 32 bits (IPv4's identification field is hidden without \
                 CAP_NET_RAW)"
            }
        })
    }
}

/// How a device reaches registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationMethod {
    /// The engine of this process copies.
    Engine,
    /// The device accesses pinned pages of the process.
    HostPages,
    /// The device accesses pages of the process, which are faulted in when it touches them.
    OnDemand,
    /// The device accesses GPU memory through a dma-buf.
    DmaBuf,
    /// The device accesses GPU memory through a peer-memory module (nvidia_peermem).
    PeerMemory,
}

impl fmt::Display for RegistrationMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Engine => "by this process",
            Self::HostPages => "pinned host pages",
            Self::OnDemand => "host pages on demand",
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer-memory module",
        })
    }
}

/// Identifies a protection domain within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DomainId(u64);

impl DomainId {
    /// An identifier that [`DomainId::new`] does not return.
    #[cfg(test)]
    pub(crate) const TEST: Self = Self(u64::MAX);

    /// Returns an identifier that no other domain of this process has.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Identifies a completion queue within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CqNumber(u32);

impl CqNumber {
    /// Returns a number that no other of this process's last 2^32 queues has.
    pub(crate) fn new() -> Self {
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
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// The number.
    pub const fn get(self) -> u32 {
        self.0
    }
}
