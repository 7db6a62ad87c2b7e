//! The ICRC of packets whose IPv4 identification field is not known.
//!
//! The ICRC covers that field, and a UDP socket does not tell it. But a CRC is linear: the ICRCs
//! that some identification explains are 65536 of the 2^32 possible ones, and which these are
//! follows from the rest of the packet. What arrives with another one was changed on its way. No
//! single flipped bit goes unseen in packets of any path MTU; of other changes, one in 65536 does.
//!
//! In detail: the ICRC differs from the one for a guessed identification by the remainder of a
//! polynomial of degree below 16, in which the two identifications differ, times x to the power of
//! the bits behind the field and 32 more. So that difference, divided by that power, must again be
//! of a degree below 16.

use std::cell::Cell;

use gdr_roce::wire::icrc::{LEN, Path};

/// Ethernet's polynomial without x^32; bit 31 is the coefficient of x^0.
const POLYNOMIAL: u32 = 0xedb8_8320;
const ONE: u32 = 1 << 31;
/// 1/x: the polynomial is x^32 + ... + 1, so x times this leaves 1.
const INVERSE_OF_X: u32 = (POLYNOMIAL ^ ONE) << 1 | 1;
/// The bits of those below degree 16 are the upper ones.
const FROM_DEGREE_16: u32 = 0xffff;
/// From behind the identification to the end of the headers of IPv4 and UDP, bytes.
const HEADERS_BEHIND: usize = 14 + 8;

/// Judges ICRCs whatever the identification was; it remembers the power for the last length.
#[derive(Debug)]
pub(super) struct AnyIdentification {
    /// A length, and what divides by the power that belongs to it.
    divisor: Cell<(usize, u32)>,
}

impl AnyIdentification {
    pub(super) fn new() -> Self {
        Self {
            divisor: Cell::new((0, divisor(0))),
        }
    }

    /// Whether the last four bytes of a datagram are its ICRC for `path` with some identification;
    /// the one in `path` is tried first. Takes untrusted bytes of any length.
    pub(super) fn matches(&self, path: &Path, datagram: &[u8]) -> bool {
        let Some((body, icrc)) = datagram.split_last_chunk::<LEN>() else {
            return false;
        };
        let difference = u32::from_le_bytes(path.icrc(body)) ^ u32::from_le_bytes(*icrc);
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

/// 1 / x^n, for the n of a body of `len` bytes.
fn divisor(len: usize) -> u32 {
    let mut n = 8 * (HEADERS_BEHIND + len) + 32;
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

/// The product of two polynomials over GF(2), modulo Ethernet's.
fn product(a: u32, mut b: u32) -> u32 {
    let mut sum = 0;
    for degree in 0..32 {
        // No branches: what is multiplied is random.
        sum ^= b & (a << degree >> 31).wrapping_neg();
        b = (b >> 1) ^ (POLYNOMIAL & (b & 1).wrapping_neg());
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gdr_roce::wire::MAX_DATAGRAM;
    use gdr_roce::wire::icrc::{self, Ip};
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

    /// A congestion notification that a ConnectX-4 Lx sent (scapy's test/contrib/roce.uts), with
    /// identification 0x718c.
    #[test]
    fn a_network_cards_own_packet_matches_without_its_identification() {
        let mut datagram = [0; 32];
        datagram[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
        datagram[28..].copy_from_slice(&[0x82, 0xfd, 0x00, 0x2a]);
        let judge = AnyIdentification::new();
        assert!(judge.matches(&path(0), &datagram));
        datagram[9] ^= 1;
        assert!(!judge.matches(&path(0), &datagram));
    }

    #[test]
    fn few_wrong_checksums_pass() {
        let judge = AnyIdentification::new();
        let mut datagram = [7; 200];
        icrc::seal(&path(0), &mut datagram);
        let passed = (1..=1_000_000_u32).filter(|n| {
            let mut wrong = datagram;
            let (_, tail) = wrong.split_last_chunk_mut::<4>().unwrap();
            *tail = (u32::from_le_bytes(*tail) ^ n.wrapping_mul(0x9e37_79b1)).to_le_bytes();
            judge.matches(&path(0), &wrong)
        });
        // 15 are expected; 2^-16 of a million.
        let passed = passed.count();
        assert!((1..60).contains(&passed), "{passed}");
    }

    /// Whether one passes depends only on its distance from the identification, in front of all
    /// that is flipped here; so what holds for the longest datagram holds for shorter ones.
    #[test]
    fn any_flipped_bit_is_found_but_for_congestion() {
        let judge = AnyIdentification::new();
        let mut datagram = [7; MAX_DATAGRAM];
        icrc::seal(&path(0x718c), &mut datagram);
        for bit in 0..8 * datagram.len() {
            datagram[bit / 8] ^= 1 << (bit % 8);
            let passes = judge.matches(&path(0), &datagram);
            assert_eq!(passes, bit / 8 == 4, "bit {bit}");
            datagram[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn two_flipped_bits_may_pass_that_the_whole_icrc_finds() {
        let judge = AnyIdentification::new();
        let mut datagram = [7; 1024];
        icrc::seal(&path(0x718c), &mut datagram);
        datagram[93] ^= 0x11;
        assert!(judge.matches(&path(0), &datagram));
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
            let judge = AnyIdentification::new();
            icrc::seal(&path(identification), &mut datagram);
            prop_assert!(judge.matches(&path(guess), &datagram));
            // Behind what is left to congestion bits.
            let at = 5 + at.index(datagram.len() - 5);
            datagram[at] ^= 1_u8 << bit;
            prop_assert!(!judge.matches(&path(guess), &datagram));
        }

        #[test]
        fn bytes_of_any_length_are_judged(datagram: Vec<u8>) {
            AnyIdentification::new().matches(&path(0), &datagram);
        }
    }
}
