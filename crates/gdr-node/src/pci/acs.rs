//! Access Control Services: who decides about traffic between two devices below one switch.

use std::fmt;

use super::config::{ConfigSpace, Offset};
use crate::source::Datum;

bitflags::bitflags! {
    /// The services, one bit each, as in the capability and in its control register
    /// (PCI Express Base Specification 6.0, 7.7.11; bit 7 and above are enhanced ACS, of which
    /// the two fields of two bits are kept as they are).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AcsBits: u16 {
        /// Source validation: requests with a bus number that is not below are refused.
        const SOURCE_VALIDATION = 1 << 0;
        /// Translation blocking: requests that say they are translated are refused.
        const TRANSLATION_BLOCKING = 1 << 1;
        /// Request redirect: requests to a peer go up to the root first.
        const REQUEST_REDIRECT = 1 << 2;
        /// Completion redirect: answers to a peer go up to the root first.
        const COMPLETION_REDIRECT = 1 << 3;
        /// Upstream forwarding: what comes from above for above is sent up again.
        const UPSTREAM_FORWARDING = 1 << 4;
        /// Egress control: a vector says which peers may be reached.
        const EGRESS_CONTROL = 1 << 5;
        /// Direct translated peer-to-peer: translated requests are not redirected.
        const DIRECT_TRANSLATED = 1 << 6;
        /// The capability knows enhanced ACS; in control: I/O requests are blocked.
        const ENHANCED = 1 << 7;
        /// Unclaimed requests are redirected (control only).
        const UNCLAIMED_REDIRECT = 1 << 12;
        const _ = !0;
    }
}

impl AcsBits {
    /// What sends traffic between peers through the root or stops it. Clearing these "is
    /// sufficient to always allow passing P2P traffic uninterrupted" (Linux aaca43fda742).
    pub const REDIRECTING: Self = Self::REQUEST_REDIRECT
        .union(Self::COMPLETION_REDIRECT)
        .union(Self::EGRESS_CONTROL);
}

impl fmt::Display for AcsBits {
    /// As lspci names them, those that are on.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = LSPCI_NAMES.iter().filter(|(_, bit)| self.contains(*bit));
        let names: Vec<&str> = names.map(|(name, _)| *name).collect();
        f.write_str(if names.is_empty() { "none" } else { "" })?;
        f.write_str(&names.join(" "))
    }
}

/// The names that lspci gives the bits.
pub(crate) const LSPCI_NAMES: [(&str, AcsBits); 7] = [
    ("SrcValid", AcsBits::SOURCE_VALIDATION),
    ("TransBlk", AcsBits::TRANSLATION_BLOCKING),
    ("ReqRedir", AcsBits::REQUEST_REDIRECT),
    ("CmpltRedir", AcsBits::COMPLETION_REDIRECT),
    ("UpstreamFwd", AcsBits::UPSTREAM_FORWARDING),
    ("EgressCtrl", AcsBits::EGRESS_CONTROL),
    ("DirectTrans", AcsBits::DIRECT_TRANSLATED),
];

/// The ACS capability of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acs {
    /// Where the capability begins; `None` where the capture does not say. The control register
    /// is 6 bytes further on.
    pub at: Option<Offset>,
    /// What the port can do.
    pub capable: AcsBits,
    /// What is on.
    pub control: AcsBits,
}

impl Acs {
    pub(crate) fn parse(config: &ConfigSpace, at: Offset) -> Datum<Self> {
        config.half(at.plus(4)).and_then(|capable| {
            config.half(at.plus(6)).map(|control| Self {
                at: Some(at),
                capable: AcsBits::from_bits_retain(capable),
                control: AcsBits::from_bits_retain(control),
            })
        })
    }

    /// The bits that are on and keep two peers from talking straight to each other. Source
    /// validation and upstream forwarding alone do not.
    pub fn redirecting(self) -> AcsBits {
        self.control & AcsBits::REDIRECTING
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acs(control: u16) -> Acs {
        let control = AcsBits::from_bits_retain(control);
        Acs {
            at: None,
            capable: AcsBits::empty(),
            control,
        }
    }

    #[test]
    fn source_validation_and_upstream_forwarding_redirect_nothing() {
        assert!(acs(0x0011).redirecting().is_empty());
    }

    #[test]
    fn each_redirecting_bit_is_named() {
        assert_eq!(acs(0x001d).redirecting().to_string(), "ReqRedir CmpltRedir");
        assert_eq!(acs(0x0020).redirecting().to_string(), "EgressCtrl");
        assert_eq!(acs(0).redirecting().to_string(), "none");
    }
}
