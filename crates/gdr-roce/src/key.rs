//! Names of things: queue pairs, memory, work requests.

/// A queue pair number: 24 bits. 0 and 1 are the management queue pairs' and never ours.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Qpn(u32);

impl Qpn {
    /// The low 24 bits of `number`.
    pub const fn new(number: u32) -> Self {
        Self(number & 0x00ff_ffff)
    }

    /// The number, below 2^24.
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A partition key. The low 15 bits name the partition, the top bit says full member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PartitionKey(pub u16);

impl PartitionKey {
    /// The default partition, full member: the only one that RoCE fabrics commonly have.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether two ports with these keys may talk: same partition, not both limited members.
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

/// A memory region's key for this side's own work requests. Never on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Lkey(pub u32);

/// A memory region's key for the peer's requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct Rkey(pub u32);

/// A key by the side that presents it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Key {
    /// From a work request of this side.
    Local(Lkey),
    /// From a packet of the peer.
    Remote(Rkey),
}

/// A work request's name, the caller's own; comes back in its completion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Debug)]
pub struct WrId(pub u64);

/// Four bytes that travel with a message and arrive in the receiver's completion.
///
/// The wire carries them big-endian; this is the number in between.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Immediate(pub u32);
