//! The XRC extended transport header: the shared receive queue that a request targets.

use crate::ids::XrcSrqn;

/// XRC extended transport header (XRCETH), 4 bytes: on every request of an extended connection (IBTA annex A14).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XrcEth(pub XrcSrqn);

impl XrcEth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// Parses the header; its first byte is reserved.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(XrcSrqn::new(u32::from_be_bytes(*bytes)))
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.0.get().to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_big_endian_after_a_reserved_byte() {
        let mut bytes = [0xff; XrcEth::LEN];
        XrcEth(XrcSrqn::new(0x01_0203)).emit(&mut bytes);
        assert_eq!(bytes, [0, 1, 2, 3]);
        assert_eq!(
            XrcEth::parse(&[0xff, 1, 2, 3]),
            XrcEth(XrcSrqn::new(0x01_0203))
        );
    }
}
