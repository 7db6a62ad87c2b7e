//! Identifiers: queue pair numbers, memory keys, work request identifiers.

/// A 24-bit queue pair number. 0 and 1 are reserved for management queue pairs, and the last one for multicast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Qpn(u32);

impl Qpn {
    /// The queue pair that receives management datagrams.
    pub const MANAGEMENT: Self = Self(1);
    /// The destination of multicast datagrams: every queue pair attached to the group.
    pub const MULTICAST: Self = Self(0x00ff_ffff);

    /// Returns the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// Returns the number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The number of a shared receive queue in an [`XrcDomain`](crate::XrcDomain), of 24 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct XrcSrqn(u32);

impl XrcSrqn {
    /// Returns the low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// Returns the number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A partition key: the partition in the low 15 bits, full membership in the top bit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// Full membership of the default partition, usually the only one in a RoCE network.
    pub const DEFAULT: Self = Self(0xffff);

    /// Returns whether ports with these keys may communicate: they are in the same partition, and at least one is a
    /// full member.
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A queue key: a datagram is accepted only if it carries the key of the queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Qkey(pub u32);

impl Qkey {
    /// The bit of a controlled key, which only the operating system may choose.
    const CONTROLLED: u32 = 1 << 31;

    /// Returns the key to send for a request with this key on a queue pair whose key is `own`: that is `own` if this
    /// key is controlled (IBTA 10.2.5).
    #[must_use]
    pub const fn sent_from(self, own: Self) -> Self {
        if self.0 & Self::CONTROLLED == 0 {
            self
        } else {
            own
        }
    }
}

/// The local key of a memory region, used in local work requests. It is never sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Lkey(pub u32);

/// The remote key of a memory region, used by the peer's requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Rkey(pub u32);

/// The key of a memory access.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// From a local work request.
    Local(Lkey),
    /// From a packet sent by the peer.
    Remote(Rkey),
}

/// A caller-chosen identifier of a work request, returned in its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct WrId(pub u64);

/// Immediate data: four bytes delivered in the receiver's completion.
///
/// In host byte order here, and big-endian on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Immediate(pub u32);
