//! How thoroughly received packets are checked.

use std::fmt;

/// How thoroughly a received packet is checked before its payload is placed in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Integrity {
    /// RoCE's own CRC over headers and payload, end to end.
    Icrc,
    /// The full ICRC, over IPv4, for packets without a UDP checksum; this takes a raw socket (CAP_NET_RAW). Network
    /// cards and Linux's rxe send such packets. For packets with a UDP checksum, this crate's own included, the kernel
    /// verifies the checksum and this process verifies 16 bits of the ICRC, as in [`Integrity::PartialIcrc`].
    IcrcOrChecksum,
    /// As much of the ICRC as a UDP socket over IPv4 can verify. The ICRC covers the identification field, which the
    /// socket does not report, so a packet is accepted if any value of that field yields its ICRC. That leaves 16 of
    /// the 32 bits: every single-bit error is detected, and any other corruption passes with a probability of 1 in
    /// 65536. The kernel also verifies the UDP checksum if the sender set one.
    PartialIcrc,
}

impl fmt::Display for Integrity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Icrc => "ICRC checked",
            Self::IcrcOrChecksum => {
                "ICRC checked, or half of it and UDP's checksum where a packet has one"
            }
            Self::PartialIcrc => {
                "ICRC checked to 16 of its 32 bits (IPv4's identification field is hidden without \
                 CAP_NET_RAW)"
            }
        })
    }
}
