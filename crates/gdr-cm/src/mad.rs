//! Management datagrams (MADs): the common header, and access to fields by position.

/// The length of every management datagram.
pub const MAD_LEN: usize = 256;

/// Header length. Field positions in the tables of chapter 12 count from its end.
const HEADER: usize = 24;
/// `BaseVersion`, `MgmtClass` (communication management), `ClassVersion` and method (`ComMgtSend`) of every
/// message; IBTA 13.4.2 and 16.7.1.
const KIND: [u8; 4] = [1, 7, 2, 3];

/// Why bytes are not a connection management message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MadError {
    /// The length differs from that of a management datagram.
    #[error("management datagram: the length is {0} bytes instead of {MAD_LEN}")]
    Length(usize),
    /// Unexpected version, class or method.
    #[error("management datagram: unexpected version, class and method: {0:02x?}")]
    Kind([u8; 4]),
    /// The attribute ID is not a message that this crate knows.
    #[error("management datagram: attribute {0:#06x} does not identify a known message")]
    Attribute(u16),
}

/// A management datagram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mad([u8; MAD_LEN]);

impl Mad {
    /// Returns a datagram with this attribute ID and zeros after its header.
    pub(super) fn new(attribute: u16, transaction: u64) -> Self {
        let mut mad = Self([0; MAD_LEN]);
        mad.0[..4].copy_from_slice(&KIND);
        mad.0[8..16].copy_from_slice(&transaction.to_be_bytes());
        mad.0[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad
    }

    /// Checks that untrusted bytes are a connection management datagram.
    ///
    /// # Errors
    ///
    /// [`MadError::Length`], [`MadError::Kind`].
    pub fn of(bytes: &[u8]) -> Result<Self, MadError> {
        let bytes: [u8; MAD_LEN] = bytes
            .try_into()
            .map_err(|_| MadError::Length(bytes.len()))?;
        let kind = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if kind != KIND {
            return Err(MadError::Kind(kind));
        }
        Ok(Self(bytes))
    }

    /// Returns the bytes.
    pub const fn as_bytes(&self) -> &[u8; MAD_LEN] {
        &self.0
    }

    /// Returns the transaction ID, which a message and its replies share.
    pub fn transaction(&self) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[8..16]);
        u64::from_be_bytes(bytes)
    }

    pub(super) const fn attribute(&self) -> u16 {
        u16::from_be_bytes([self.0[16], self.0[17]])
    }

    /// Returns the `N` bytes at a table position. All positions are constants in this module's callers.
    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&self.0[HEADER + at..HEADER + at + N]);
        bytes
    }

    pub(super) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[HEADER + at..HEADER + at + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from_be_bytes(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes(at))
    }

    /// Returns the upper 24 bits of the word at a table position.
    pub(super) fn u24(&self, at: usize) -> u32 {
        self.u32(at) >> 8
    }

    pub(super) fn put_u24(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_be_bytes()[1..]);
    }

    /// Returns `width` bits of a byte from bit `from` on, counted from the most significant one.
    pub(super) fn bits(&self, at: usize, from: u32, width: u32) -> u8 {
        let [byte] = self.bytes(at);
        (byte << from) >> (8 - width)
    }

    /// Sets bits that are still zero.
    pub(super) fn put_bits(&mut self, at: usize, from: u32, width: u32, value: u8) {
        let [byte] = self.bytes(at);
        let value = (value << (8 - width)) >> from;
        self.put(at, &[byte | value]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_from_the_most_significant_one() {
        let mut mad = Mad::new(0x10, 7);
        mad.put_bits(43, 0, 5, 0x15);
        mad.put_bits(43, 5, 2, 0xff);
        assert_eq!(mad.bytes(43), [0xae]);
        assert_eq!(mad.bits(43, 0, 5), 0x15);
        assert_eq!(mad.bits(43, 5, 2), 3);
        assert_eq!(mad.bits(43, 7, 1), 0);
    }

    #[test]
    fn other_classes_versions_and_lengths_are_refused() {
        let good = *Mad::new(0x10, 0x0102_0304_0506_0708).as_bytes();
        assert_eq!(
            Mad::of(&good).map(|mad| mad.transaction()),
            Ok(0x0102_0304_0506_0708)
        );
        assert_eq!(Mad::of(&good[..255]), Err(MadError::Length(255)));
        for at in 0..4 {
            let mut other = good;
            other[at] ^= 0x10;
            assert!(matches!(Mad::of(&other), Err(MadError::Kind(_))), "{at}");
        }
    }
}
