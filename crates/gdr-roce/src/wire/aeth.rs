//! The acknowledge extended transport header: how it went.

use crate::psn::Msn;
use crate::timer::RnrTimer;

/// Why a request was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// A packet is missing: send again from this PSN on. The only one that is not the end.
    SequenceError,
    /// The request makes no sense here, or is not allowed.
    InvalidRequest,
    /// The memory may not be accessed so.
    RemoteAccess,
    /// The responder failed.
    RemoteOperation,
}

/// What an AETH says.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Syndrome {
    /// Everything up to this PSN is done. The five bits are a credit count; 31 says none.
    Ack {
        /// Encoded credits, 0 to 31.
        credits: u8,
    },
    /// No receive is posted: try again, no sooner than this.
    ReceiverNotReady(RnrTimer),
    /// Refused.
    Nak(NakCode),
    /// A byte that the specification keeps for later.
    Reserved(u8),
}

impl Syndrome {
    /// An acknowledgement without a credit count.
    pub const ACK: Self = Self::Ack { credits: 31 };

    /// Reads the byte.
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

    /// The byte on the wire.
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

/// Acknowledge extended transport header, 4 bytes: on acknowledgements and READ responses, but
/// not on those in the middle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// How it went.
    pub syndrome: Syndrome,
    /// Messages that the responder has completed.
    pub msn: Msn,
}

impl Aeth {
    /// Bytes on the wire.
    pub const LEN: usize = 4;

    /// Reads the header.
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
        fn what_is_read_is_written_again(bytes: [u8; Aeth::LEN]) {
            let mut again = [0; Aeth::LEN];
            Aeth::parse(&bytes).emit(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }
}
