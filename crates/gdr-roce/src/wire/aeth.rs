//! The ACK extended transport header: the outcome of requests.

use crate::psn::Msn;
use crate::timer::RnrTimer;

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A packet is missing: the requester retransmits from this PSN on. All other codes terminate the connection.
    SequenceError,
    /// The request is malformed, or the operation is not allowed.
    InvalidRequest,
    /// The key, range or permission is wrong.
    RemoteAccess,
    /// The responder could not execute the request.
    RemoteOperation,
}

/// The syndrome of an AETH.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// All requests up to and including this PSN are complete.
    Ack {
        /// The encoded credit count, five bits. 31 means that credits are not used.
        credits: u8,
    },
    /// No receive is posted (RNR): the requester retries after this delay.
    ReceiverNotReady(RnrTimer),
    /// The request was refused.
    Nak(NakCode),
    /// A reserved value.
    Reserved(u8),
}

impl Syndrome {
    /// An ACK without a credit count.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// Decodes the syndrome byte.
    pub const fn from_byte(byte: u8) -> Self {
        match byte {
            0x00..=0x1f => Self::Ack { credits: byte },
            0x20..=0x3f => Self::ReceiverNotReady(RnrTimer::new(byte)),
            0x60 => Self::Nak(NakCode::SequenceError),
            0x61 => Self::Nak(NakCode::InvalidRequest),
            0x62 => Self::Nak(NakCode::RemoteAccess),
            0x63 => Self::Nak(NakCode::RemoteOperation),
            _ => Self::Reserved(byte),
        }
    }

    /// Returns the syndrome byte.
    pub const fn byte(self) -> u8 {
        match self {
            Self::Ack { credits } => credits & 0x1f,
            Self::ReceiverNotReady(timer) => 0x20 | timer.code(),
            Self::Nak(NakCode::SequenceError) => 0x60,
            Self::Nak(NakCode::InvalidRequest) => 0x61,
            Self::Nak(NakCode::RemoteAccess) => 0x62,
            Self::Nak(NakCode::RemoteOperation) => 0x63,
            Self::Reserved(byte) => byte,
        }
    }
}

/// ACK extended transport header (AETH), 4 bytes: on acknowledgements, and on all but the middle READ responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The outcome.
    pub syndrome: Syndrome,
    /// The number of messages that the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Length on the wire in bytes.
    pub const LEN: usize = 4;

    /// Parses the header.
    pub const fn parse(bytes: &[u8; Self::LEN]) -> Self {
        Self {
            syndrome: Syndrome::from_byte(bytes[0]),
            msn: Msn::new(u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]])),
        }
    }

    /// Writes the header.
    pub const fn emit(&self, out: &mut [u8; Self::LEN]) {
        *out = self.msn.get().to_be_bytes();
        out[0] = self.syndrome.byte();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_syndrome_has_its_byte() {
        for byte in 0..=255 {
            assert_eq!(Syndrome::from_byte(byte).byte(), byte);
        }
        assert_eq!(Syndrome::ACK.byte(), 0x1f);
        assert_eq!(Syndrome::ReceiverNotReady(RnrTimer::new(12)).byte(), 0x2c);
        assert_eq!(Syndrome::Nak(NakCode::RemoteAccess).byte(), 0x62);
        assert_eq!(Syndrome::from_byte(0x64), Syndrome::Reserved(0x64));
    }

    proptest! {
        #[test]
        fn a_parsed_header_emits_the_same_bytes(bytes: [u8; Aeth::LEN]) {
            let mut again = [0; Aeth::LEN];
            Aeth::parse(&bytes).emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
