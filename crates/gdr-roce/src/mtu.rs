//! The path MTU: the maximum payload of a packet.

use std::fmt;

/// The path MTU: the maximum payload of a packet in bytes, without headers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Mtu {
    B256,
    B512,
    B1024,
    B2048,
    B4096,
}

impl Mtu {
    /// All path MTUs in ascending order.
    pub const ALL: [Self; 5] = [
        Self::B256,
        Self::B512,
        Self::B1024,
        Self::B2048,
        Self::B4096,
    ];

    /// Returns the number of bytes.
    pub const fn bytes(self) -> usize {
        256 << self as usize
    }

    /// Returns the largest path MTU of at most `bytes`.
    pub fn at_most(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// Returns the value in `enum ibv_mtu`, from 1 for 256 bytes to 5 for 4096.
    pub const fn code(self) -> u8 {
        self as u8 + 1
    }

    /// Returns the path MTU for a value of `enum ibv_mtu`.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Returns the number of packets of a message of `len` bytes; an empty message takes one.
    pub const fn packets(self, len: u32) -> u32 {
        if len == 0 {
            1
        } else {
            len.div_ceil(self.bytes() as u32)
        }
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mtu_has_its_size_and_code() {
        assert_eq!(Mtu::ALL.map(Mtu::bytes), [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::ALL.map(Mtu::code), [1, 2, 3, 4, 5]);
        assert_eq!(Mtu::from_code(5), Some(Mtu::B4096));
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::at_most(1400), Some(Mtu::B1024));
        assert_eq!(Mtu::at_most(255), None);
    }

    #[test]
    fn an_empty_message_takes_one_packet_and_so_does_a_full_one() {
        assert_eq!(
            [0, 1, 256, 257].map(|len| Mtu::B256.packets(len)),
            [1, 1, 1, 2]
        );
        assert_eq!(Mtu::B256.packets(1 << 31), 1 << 23);
    }
}
