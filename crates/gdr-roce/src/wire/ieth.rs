//! The invalidate extended transport header: a remote key for the receiver to invalidate.

use crate::ids::Rkey;

/// Invalidate extended transport header (IETH), 4 bytes: on the last packet of a SEND with invalidate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ieth(pub Rkey);

impl Ieth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// Parses the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(Rkey(u32::from_be_bytes(*bytes)))
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.0.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_big_endian() {
        let mut bytes = [0; Ieth::LEN];
        Ieth(Rkey(0x0102_0304)).emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(Ieth::parse(&bytes), Ieth(Rkey(0x0102_0304)));
    }
}
