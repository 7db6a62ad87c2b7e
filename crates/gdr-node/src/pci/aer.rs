//! Advanced Error Reporting: the errors recorded since the status was last cleared.

use super::capability::ExtendedId;
use super::config::ConfigSpace;
use crate::source::Datum;

bitflags::bitflags! {
    /// Errors that the link cannot correct (PCI Express Base Specification 6.0, 7.8.4.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UncorrectableErrors: u32 {
        /// The data link protocol was violated.
        const DATA_LINK = 1 << 4;
        /// The link went down unexpectedly.
        const SURPRISE_DOWN = 1 << 5;
        /// A packet was marked as poisoned.
        const POISONED = 1 << 12;
        /// Flow control was violated.
        const FLOW_CONTROL = 1 << 13;
        /// A completion did not arrive in time.
        const COMPLETION_TIMEOUT = 1 << 14;
        /// A request was refused by its completer.
        const COMPLETER_ABORT = 1 << 15;
        /// A completion arrived without a request.
        const UNEXPECTED_COMPLETION = 1 << 16;
        /// The receive buffer overflowed.
        const RECEIVER_OVERFLOW = 1 << 17;
        /// A packet was malformed.
        const MALFORMED = 1 << 18;
        /// The end-to-end checksum was wrong.
        const ECRC = 1 << 19;
        /// A request was not supported.
        const UNSUPPORTED_REQUEST = 1 << 20;
        /// ACS refused a packet.
        const ACS_VIOLATION = 1 << 21;
        const _ = !0;
    }

    /// Errors that the link corrected (PCI Express Base Specification 6.0, 7.8.4.5).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CorrectableErrors: u32 {
        /// The receiver saw a bad symbol.
        const RECEIVER = 1 << 0;
        /// A packet's checksum was wrong.
        const BAD_TLP = 1 << 6;
        /// A link packet's checksum was wrong.
        const BAD_DLLP = 1 << 7;
        /// A packet was sent four times.
        const REPLAY_ROLLOVER = 1 << 8;
        /// A packet was not acknowledged in time.
        const REPLAY_TIMEOUT = 1 << 12;
        /// An uncorrectable error was reported as advisory.
        const ADVISORY = 1 << 13;
        const _ = !0;
    }
}

/// The names that lspci gives the uncorrectable errors.
pub(crate) const UNCORRECTABLE_NAMES: [(&str, UncorrectableErrors); 12] = [
    ("DLP", UncorrectableErrors::DATA_LINK),
    ("SDES", UncorrectableErrors::SURPRISE_DOWN),
    ("TLP", UncorrectableErrors::POISONED),
    ("FCP", UncorrectableErrors::FLOW_CONTROL),
    ("CmpltTO", UncorrectableErrors::COMPLETION_TIMEOUT),
    ("CmpltAbrt", UncorrectableErrors::COMPLETER_ABORT),
    ("UnxCmplt", UncorrectableErrors::UNEXPECTED_COMPLETION),
    ("RxOF", UncorrectableErrors::RECEIVER_OVERFLOW),
    ("MalfTLP", UncorrectableErrors::MALFORMED),
    ("ECRC", UncorrectableErrors::ECRC),
    ("UnsupReq", UncorrectableErrors::UNSUPPORTED_REQUEST),
    ("ACSViol", UncorrectableErrors::ACS_VIOLATION),
];

/// The names that lspci gives the correctable errors. Older versions print `NonFatalErr` for
/// `AdvNonFatalErr`.
pub(crate) const CORRECTABLE_NAMES: [(&str, CorrectableErrors); 7] = [
    ("RxErr", CorrectableErrors::RECEIVER),
    ("BadTLP", CorrectableErrors::BAD_TLP),
    ("BadDLLP", CorrectableErrors::BAD_DLLP),
    ("Rollover", CorrectableErrors::REPLAY_ROLLOVER),
    ("Timeout", CorrectableErrors::REPLAY_TIMEOUT),
    ("AdvNonFatalErr", CorrectableErrors::ADVISORY),
    ("NonFatalErr", CorrectableErrors::ADVISORY),
];

impl UncorrectableErrors {
    /// Returns the names that lspci and Linux give the errors.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (UNCORRECTABLE_NAMES.iter())
            .filter(move |(_, error)| self.contains(*error))
            .map(|(name, _)| *name)
    }
}

impl CorrectableErrors {
    /// Returns the names that lspci gives the errors.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        (CORRECTABLE_NAMES.iter())
            .filter(move |(name, error)| self.contains(*error) && *name != "NonFatalErr")
            .map(|(name, _)| *name)
    }
}

/// The errors that a function has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aer {
    /// Uncorrectable errors.
    pub uncorrectable: UncorrectableErrors,
    /// Correctable errors.
    pub correctable: CorrectableErrors,
}

impl ConfigSpace {
    /// Advanced Error Reporting.
    pub fn aer(&self) -> Datum<Aer> {
        let at = self.find_extended(ExtendedId::AER)?;
        Ok(Aer {
            uncorrectable: UncorrectableErrors::from_bits_retain(self.word(at.plus(0x04))?),
            correctable: CorrectableErrors::from_bits_retain(self.word(at.plus(0x10))?),
        })
    }
}
