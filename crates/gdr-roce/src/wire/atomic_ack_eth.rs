//! The atomic ACK extended transport header: the original value.

/// Atomic ACK extended transport header (AtomicAckETH), 8 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub original: u64,
}

impl AtomicAckEth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 8;

    /// Parses the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            original: u64::from_be_bytes(*bytes),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.original.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_big_endian() {
        let mut bytes = [0; AtomicAckEth::LEN];
        AtomicAckEth {
            original: 0x0102_0304_0506_0708,
        }
        .emit(&mut bytes);
        assert_eq!(bytes, [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(AtomicAckEth::parse(&bytes).original, 0x0102_0304_0506_0708);
    }
}
