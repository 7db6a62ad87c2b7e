//! Access Control Services, which decide whether peers below a switch reach each other directly.

use std::fmt;

use super::capability::{ExtendedId, Offset};
use super::config::ConfigSpace;
use crate::source::Datum;

bitflags::bitflags! {
    /// The services, one bit each, as in the capability and control registers (PCI Express Base Specification 6.0,
    /// 7.7.11; bits 7 and above are enhanced ACS, whose two 2-bit fields are kept as they are).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct AcsBits: u16 {
        /// Source validation: requests with a bus number that is not below the port are blocked.
        const SOURCE_VALIDATION = 1 << 0;
        /// Translation blocking: requests with translated addresses are blocked.
        const TRANSLATION_BLOCKING = 1 << 1;
        /// Request redirect: requests to a peer are sent to the root complex.
        const REQUEST_REDIRECT = 1 << 2;
        /// Completion redirect: completions to a peer are sent to the root complex.
        const COMPLETION_REDIRECT = 1 << 3;
        /// Upstream forwarding: requests that came back from the root complex are sent up again.
        const UPSTREAM_FORWARDING = 1 << 4;
        /// Egress control: a vector determines which peers may be reached.
        const EGRESS_CONTROL = 1 << 5;
        /// Direct translated peer-to-peer: translated requests are not redirected.
        const DIRECT_TRANSLATED = 1 << 6;
        /// In the capability: enhanced ACS is supported; in control: I/O requests are blocked.
        const ENHANCED = 1 << 7;
        /// Unclaimed requests are redirected (control only).
        const UNCLAIMED_REDIRECT = 1 << 12;
        const _ = !0;
    }
}

impl AcsBits {
    /// The bits that redirect or block traffic between peers. Clearing these "is
    /// sufficient to always allow passing P2P traffic uninterrupted" (Linux aaca43fda742).
    pub const REDIRECTING: Self = Self::REQUEST_REDIRECT
        .union(Self::COMPLETION_REDIRECT)
        .union(Self::EGRESS_CONTROL);
}

impl fmt::Display for AcsBits {
    /// Formats the set bits with lspci's names.
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
    /// The capability's offset; `None` if the capture lacks it. The control register is 6 bytes further on.
    pub at: Option<Offset>,
    /// The services that the port supports.
    pub capable: AcsBits,
    /// The enabled services.
    pub control: AcsBits,
}

impl Acs {
    /// Returns the enabled services that redirect or block traffic between peers. Source validation and upstream
    /// forwarding alone do neither.
    pub fn redirecting(self) -> AcsBits {
        self.control & AcsBits::REDIRECTING
    }
}

impl ConfigSpace {
    /// Access Control Services.
    pub fn acs(&self) -> Datum<Acs> {
        let at = self.find_extended(ExtendedId::ACS)?;
        Ok(Acs {
            at: Some(at),
            capable: AcsBits::from_bits_retain(self.half(at.plus(4))?),
            control: AcsBits::from_bits_retain(self.half(at.plus(6))?),
        })
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
