//! Advanced Error Reporting: what went wrong on the link since the last look.

use super::config::{ConfigSpace, Offset};
use crate::source::Datum;

bitflags::bitflags! {
    /// Errors that cost a packet (PCI Express Base Specification 6.0, 7.8.4.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct UncorrectableErrors: u32 {
        /// The data link protocol was broken.
        const DATA_LINK = 1 << 4;
        /// The link went down by surprise.
        const SURPRISE_DOWN = 1 << 5;
        /// A packet came marked as poisoned.
        const POISONED = 1 << 12;
        /// Flow control was broken.
        const FLOW_CONTROL = 1 << 13;
        /// An answer did not come in time.
        const COMPLETION_TIMEOUT = 1 << 14;
        /// A request was refused by its completer.
        const COMPLETER_ABORT = 1 << 15;
        /// An answer came that nobody asked for.
        const UNEXPECTED_COMPLETION = 1 << 16;
        /// More came than there was room for.
        const RECEIVER_OVERFLOW = 1 << 17;
        /// A packet made no sense.
        const MALFORMED = 1 << 18;
        /// The end-to-end checksum was wrong.
        const ECRC = 1 << 19;
        /// A request was not supported.
        const UNSUPPORTED_REQUEST = 1 << 20;
        /// ACS refused a packet.
        const ACS_VIOLATION = 1 << 21;
        const _ = !0;
    }

    /// Errors that the link repaired (PCI Express Base Specification 6.0, 7.8.4.5).
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
        /// An uncorrectable error was reported as an advice only.
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

/// The names that lspci gives the correctable errors. Older ones say `NonFatalErr` for
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

/// The errors that a function has recorded and nobody has cleared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aer {
    /// Those that cost a packet.
    pub uncorrectable: UncorrectableErrors,
    /// Those that the link repaired.
    pub correctable: CorrectableErrors,
}

impl Aer {
    pub(crate) fn parse(config: &ConfigSpace, at: Offset) -> Datum<Self> {
        config.word(at.plus(0x04)).and_then(|uncorrectable| {
            config.word(at.plus(0x10)).map(|correctable| Self {
                uncorrectable: UncorrectableErrors::from_bits_retain(uncorrectable),
                correctable: CorrectableErrors::from_bits_retain(correctable),
            })
        })
    }
}
