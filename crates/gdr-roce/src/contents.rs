//! The payload of a received packet.

use crate::ids::Key;
use crate::memory::{AccessError, Extent, Memory};
use crate::mtu::Mtu;

/// The payload of a received packet.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// The payload bytes.
    Bytes(&'a [u8]),
    /// The location of the bytes, in terms of [`Memory::write_from`].
    At(Extent),
}

impl Contents<'_> {
    /// Returns the number of bytes.
    pub const fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::At(extent) => extent.len as usize,
        }
    }

    /// Returns whether there are no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of packets of the path MTU. Bytes stored elsewhere may be the payload of several.
    pub(crate) const fn packets(&self, mtu: Mtu) -> u32 {
        match self {
            Self::Bytes(_) => 1,
            Self::At(extent) => mtu.packets(extent.len),
        }
    }

    /// Splits the bytes at `at`.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        match self {
            Self::Bytes(bytes) => {
                let (first, rest) = bytes.split_at(at.min(bytes.len()));
                (Self::Bytes(first), Self::Bytes(rest))
            }
            Self::At(Extent { addr, len }) => {
                let at = (at as u32).min(len);
                let rest = Extent {
                    addr: addr.wrapping_add(at.into()),
                    len: len - at,
                };
                (Self::At(Extent { addr, len: at }), Self::At(rest))
            }
        }
    }

    /// Stores the bytes at `addr`, from where on the message may write `room` bytes.
    pub(crate) fn store(
        self,
        memory: &mut dyn Memory,
        key: Key,
        addr: u64,
        room: u32,
    ) -> Result<(), AccessError> {
        match self {
            Self::Bytes(bytes) => memory.write(key, addr, bytes),
            Self::At(from) => memory.write_from(key, addr, from, room),
        }
    }
}
