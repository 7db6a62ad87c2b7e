//! How thoroughly packets are checked.

use std::fmt;

/// How thoroughly an arriving packet is checked before its bytes are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Integrity {
    /// RoCE's own CRC over headers and payload, end to end.
    Icrc,
    /// The same over IPv4, with a raw socket (CAP_NET_RAW), for packets without a UDP checksum:
    /// network cards and Linux's rxe send such. For packets with a UDP checksum, such as this
    /// crate's own, the kernel verifies that checksum, and this process verifies 16 bits of the
    /// ICRC as in [`Integrity::PartialIcrc`].
    IcrcOrChecksum,
    /// As much of the ICRC as a UDP socket over IPv4 can verify: the ICRC covers the identification
    /// field, which the socket does not report, so a packet is accepted if any value of that field
    /// explains its ICRC. That leaves 16 of its 32 bits: every single flipped bit is detected, and
    /// all but one in 65536 of other changes. UDP's own checksum is verified as well if the sender
    /// set one.
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
