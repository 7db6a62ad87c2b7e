//! Immediate data: four bytes for the receiver's completion.

use crate::ids::Immediate;

/// Immediate data, 4 bytes: on the last packet of a SEND or WRITE with immediate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImmDt(pub Immediate);

impl ImmDt {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// Parses the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self(Immediate(u32::from_be_bytes(*bytes)))
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
    fn the_number_is_big_endian() {
        let mut bytes = [0; ImmDt::LEN];
        ImmDt(Immediate(0x0102_0304)).emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4]);
        assert_eq!(ImmDt::parse(&bytes), ImmDt(Immediate(0x0102_0304)));
    }
}
