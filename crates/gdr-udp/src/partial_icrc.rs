//! Verifies the ICRC of packets whose IPv4 identification field is unknown.
//!
//! The ICRC covers that field, but a UDP socket does not report it. A CRC is linear, though: with all other bytes
//! fixed, only 65536 of the 2^32 possible ICRCs are correct for some value of the field. A packet with any other ICRC
//! is corrupt. This detects every single-bit error at any path MTU, and misses one in 65536 of other corruptions.
//!
//! In detail: let d be the XOR of the actual identification and a guess, as a polynomial of degree below 16. The two
//! ICRCs differ by d times x^n modulo the CRC's polynomial, where n is the number of bits after the field, plus 32. So
//! the difference of the ICRCs divided by x^n must have a degree below 16.

use std::cell::Cell;

use gdr_roce::wire::icrc::{self, IcrcCache, Ip, LEN, Path};

/// Ethernet's polynomial without x^32; bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;
/// 1/x: the polynomial is x^32 + ... + 1, so x times this leaves 1.
const INVERSE_OF_X: u32 = (POLYNOMIAL ^ ONE) << 1 | 1;
/// The bits of degree 16 and above. (Bit order is reversed: lower degrees are in the upper bits.)
const FROM_DEGREE_16: u32 = 0xffff;
/// Bytes from the end of the identification field to the end of the IPv4 and UDP headers.
const HEADERS_AFTER: usize = 14 + 8;

/// Verifies ICRCs for any identification. Caches what depends on the last headers and length.
#[derive(Debug)]
pub struct PartialIcrc {
    /// The last body length, and 1/x^n for it.
    divisor: Cell<(usize, u32)>,
    icrc: IcrcCache,
}

impl PartialIcrc {
    /// Returns a checker with an empty cache.
    #[expect(clippy::new_without_default, reason = "it is made once for each wire")]
    pub fn new() -> Self {
        Self {
            divisor: Cell::new((0, divisor(0))),
            icrc: IcrcCache::new(),
        }
    }

    /// Returns whether the ICRC of a datagram is correct, as far as `path` determines it.
    #[inline]
    pub fn is_intact(&self, path: &Path, datagram: &[u8]) -> bool {
        match path.ip {
            Ip::V4 { .. } => self.matches(path, datagram),
            Ip::V6 { .. } => icrc::matches(path, datagram),
        }
    }

    /// Returns whether the last four bytes of a datagram are its ICRC on `path` with some identification. The
    /// identification in `path` is tried first. The datagram is untrusted and may have any length.
    pub fn matches(&self, path: &Path, datagram: &[u8]) -> bool {
        let Some((body, icrc)) = datagram.split_last_chunk::<LEN>() else {
            return false;
        };
        let difference = u32::from_le_bytes(self.icrc.icrc(path, body)) ^ u32::from_le_bytes(*icrc);
        if difference == 0 {
            return true;
        }
        let (len, mut by) = self.divisor.get();
        if len != body.len() {
            by = divisor(body.len());
            self.divisor.set((body.len(), by));
        }
        product(difference, by) & FROM_DEGREE_16 == 0
    }
}

/// Returns 1/x^n for a body of `len` bytes.
fn divisor(len: usize) -> u32 {
    let mut n = 8 * (HEADERS_AFTER + len) + 32;
    let (mut power, mut square) = (ONE, INVERSE_OF_X);
    while n > 0 {
        if n & 1 == 1 {
            power = product(power, square);
        }
        square = product(square, square);
        n >>= 1;
    }
    power
}

/// Returns the product of two polynomials over GF(2), modulo the CRC's polynomial.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for degree in 0..32 {
        // Branch-free, as the factors are unpredictable.
        sum ^= b & (a << degree >> 31).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gdr_roce::wire::MAX_DATAGRAM;
    use proptest::prelude::*;

    use super::*;

    fn path(identification: u16) -> Path {
        let ip = Ip::V4 {
            src: Ipv4Addr::new(10, 0, 17, 1),
            dst: Ipv4Addr::new(10, 0, 18, 1),
            identification,
            dont_fragment: true,
        };
        Path {
            ip,
            src_port: 0,
            dst_port: 4791,
        }
    }

    #[test]
    fn the_inverse_of_x_is_its_inverse() {
        assert_eq!(product(INVERSE_OF_X, ONE >> 1), ONE);
    }

    /// A congestion notification sent by a ConnectX-4 Lx (scapy's test/contrib/roce.uts), with identification 0x718c.
    #[test]
    fn a_packet_of_a_network_card_matches_without_its_identification() {
        let mut datagram = [0; 32];
        datagram[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
        datagram[28..].copy_from_slice(&[0x82, 0xfd, 0x00, 0x2a]);
        let check = PartialIcrc::new();
        assert!(check.matches(&path(0), &datagram));
        datagram[9] ^= 1;
        assert!(!check.matches(&path(0), &datagram));
    }

    #[test]
    fn few_wrong_checksums_pass() {
        let check = PartialIcrc::new();
        let mut datagram = [7; 200];
        icrc::seal(&path(0), &mut datagram);
        let passed = (1..=1_000_000_u32).filter(|n| {
            let mut wrong = datagram;
            let (_, tail) = wrong.split_last_chunk_mut::<4>().unwrap();
            *tail = (u32::from_le_bytes(*tail) ^ n.wrapping_mul(0x9e37_79b1)).to_le_bytes();
            check.matches(&path(0), &wrong)
        });
        // Of a million, 2^-16 are expected to pass: 15.
        let passed = passed.count();
        assert!((1..60).contains(&passed), "{passed}");
    }

    /// The result depends only on the distance of the flipped bit from the identification, so shorter datagrams behave
    /// alike.
    #[test]
    fn every_flipped_bit_is_detected_except_for_congestion_bits() {
        let check = PartialIcrc::new();
        let mut datagram = [7; MAX_DATAGRAM];
        icrc::seal(&path(0x718c), &mut datagram);
        for bit in 0..8 * datagram.len() {
            datagram[bit / 8] ^= 1 << (bit % 8);
            let passes = check.matches(&path(0), &datagram);
            assert_eq!(passes, bit / 8 == 4, "bit {bit}");
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn two_flipped_bits_may_pass_that_the_full_icrc_detects() {
        let check = PartialIcrc::new();
        let mut datagram = [7; 1024];
        icrc::seal(&path(0x718c), &mut datagram);
        datagram[93] ^= 0x11;
        assert!(check.matches(&path(0), &datagram));
        assert!(!icrc::matches(&path(0x718c), &datagram));
    }

    proptest! {
        #[test]
        fn every_identification_passes_and_a_flipped_bit_does_not(
            mut datagram in proptest::collection::vec(any::<u8>(), 16..5000),
            identification: u16,
            guess: u16,
            at in any::<prop::sample::Index>(),
            bit in 0_u8..8,
        ) {
            let check = PartialIcrc::new();
            icrc::seal(&path(identification), &mut datagram);
            prop_assert!(check.matches(&path(guess), &datagram));
            // Skips the byte with the congestion bits, which the ICRC does not cover.
            let at = 5 + at.index(datagram.len() - 5);
            datagram[at] ^= 1_u8 << bit;
            prop_assert!(!check.matches(&path(guess), &datagram));
        }

        #[test]
        fn bytes_of_any_length_do_not_panic(datagram: Vec<u8>) {
            PartialIcrc::new().matches(&path(0), &datagram);
        }
    }
}
