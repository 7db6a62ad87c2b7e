//! The BTH opcode: a packet's type, which determines its extension headers.

use super::{Aeth, AtomicAckEth, AtomicEth, Deth, Feth, Ieth, ImmDt, Reth, XrcEth};
use crate::connection::Reliability;

/// A packet's position in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// Returns the position of the packet that stands for `merged` packets from `index` on, in a message of `count`.
    pub const fn of(index: u32, merged: u32, count: u32) -> Self {
        match (index == 0, index + merged >= count) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Returns whether the packet is the first of its message.
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether the packet is the last of its message.
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

/// The opcode of a connection packet (of any service), an unreliable datagram, or a congestion notification.
///
/// The upper three bits of the wire byte select the service (IBTA 9.2.1); below them, all connection services use the
/// same opcodes: see [`Reliability::byte`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names come from the specification")]
pub enum Opcode {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    /// Makes written bytes visible. Like an atomic WRITE, it is answered by an empty READ response.
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    /// SEND of the unreliable datagram service.
    DatagramSend = 0x64,
    DatagramSendImmediate = 0x65,
    /// Congestion notification packet (CNP).
    CongestionNotification = 0x81,
}

impl Opcode {
    /// All opcodes.
    pub const ALL: [Self; 28] = [
        Self::SendFirst,
        Self::SendMiddle,
        Self::SendLast,
        Self::SendLastImmediate,
        Self::SendOnly,
        Self::SendOnlyImmediate,
        Self::WriteFirst,
        Self::WriteMiddle,
        Self::WriteLast,
        Self::WriteLastImmediate,
        Self::WriteOnly,
        Self::WriteOnlyImmediate,
        Self::ReadRequest,
        Self::ReadResponseFirst,
        Self::ReadResponseMiddle,
        Self::ReadResponseLast,
        Self::ReadResponseOnly,
        Self::Acknowledge,
        Self::AtomicAcknowledge,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::SendLastInvalidate,
        Self::SendOnlyInvalidate,
        Self::Flush,
        Self::AtomicWrite,
        Self::DatagramSend,
        Self::DatagramSendImmediate,
        Self::CongestionNotification,
    ];

    /// Decodes the wire byte. Returns `None` if it is reserved or belongs to another service.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Layout::of(byte).opcode
    }

    /// Returns the wire byte, of the reliable service if the opcode belongs to connections.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// Returns whether the opcode belongs to a connection.
    pub const fn is_of_connection(self) -> bool {
        self.byte() & SERVICE == 0
    }

    /// Returns the opcode of a SEND packet.
    pub const fn send(position: Position, immediate: bool) -> Self {
        match (position, immediate) {
            (Position::First, _) => Self::SendFirst,
            (Position::Middle, _) => Self::SendMiddle,
            (Position::Last, false) => Self::SendLast,
            (Position::Last, true) => Self::SendLastImmediate,
            (Position::Only, false) => Self::SendOnly,
            (Position::Only, true) => Self::SendOnlyImmediate,
        }
    }

    /// Returns the opcode of a packet of a SEND with invalidate.
    pub const fn send_invalidate(position: Position) -> Self {
        match position {
            Position::First => Self::SendFirst,
            Position::Middle => Self::SendMiddle,
            Position::Last => Self::SendLastInvalidate,
            Position::Only => Self::SendOnlyInvalidate,
        }
    }

    /// Returns the opcode of a WRITE packet.
    pub const fn write(position: Position, immediate: bool) -> Self {
        match (position, immediate) {
            (Position::First, _) => Self::WriteFirst,
            (Position::Middle, _) => Self::WriteMiddle,
            (Position::Last, false) => Self::WriteLast,
            (Position::Last, true) => Self::WriteLastImmediate,
            (Position::Only, false) => Self::WriteOnly,
            (Position::Only, true) => Self::WriteOnlyImmediate,
        }
    }

    /// Returns the opcode of a READ response packet.
    pub const fn read_response(position: Position) -> Self {
        match position {
            Position::First => Self::ReadResponseFirst,
            Position::Middle => Self::ReadResponseMiddle,
            Position::Last => Self::ReadResponseLast,
            Position::Only => Self::ReadResponseOnly,
        }
    }

    /// Returns the opcode of a datagram.
    pub const fn datagram(immediate: bool) -> Self {
        if immediate {
            Self::DatagramSendImmediate
        } else {
            Self::DatagramSend
        }
    }

    /// Returns the packet's position in its message.
    pub const fn position(self) -> Position {
        match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Position::First,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => Position::Middle,
            Self::SendLast
            | Self::SendLastImmediate
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImmediate
            | Self::ReadResponseLast => Position::Last,
            _ => Position::Only,
        }
    }

    /// Returns whether the packet is a response, addressed to the requester, rather than a request.
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseMiddle
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns whether the packet belongs to the unreliable datagram service.
    pub const fn is_datagram(self) -> bool {
        matches!(self, Self::DatagramSend | Self::DatagramSendImmediate)
    }

    /// Returns whether the packet is part of a connection's SEND.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Self::SendFirst
                | Self::SendMiddle
                | Self::SendLast
                | Self::SendLastImmediate
                | Self::SendOnly
                | Self::SendOnlyImmediate
                | Self::SendLastInvalidate
                | Self::SendOnlyInvalidate
        )
    }

    /// Returns whether the packet is part of a WRITE.
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteMiddle
                | Self::WriteLast
                | Self::WriteLastImmediate
                | Self::WriteOnly
                | Self::WriteOnlyImmediate
        )
    }

    /// Returns whether the packet is a READ response.
    pub const fn is_read_response(self) -> bool {
        self.is_response() && self.has_payload()
    }

    /// Returns whether payload may follow the headers.
    pub const fn has_payload(self) -> bool {
        !matches!(
            self,
            Self::ReadRequest
                | Self::Acknowledge
                | Self::AtomicAcknowledge
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::Flush
        )
    }

    /// Returns whether a FETH follows the BTH.
    pub const fn has_feth(self) -> bool {
        matches!(self, Self::Flush)
    }

    /// Returns whether a DETH follows the BTH.
    pub const fn has_deth(self) -> bool {
        self.is_datagram()
    }

    /// Returns whether a RETH follows the BTH and the FETH, if any.
    pub const fn has_reth(self) -> bool {
        matches!(
            self,
            Self::WriteFirst
                | Self::WriteOnly
                | Self::WriteOnlyImmediate
                | Self::ReadRequest
                | Self::Flush
                | Self::AtomicWrite
        )
    }

    /// Returns whether an AETH follows the BTH.
    pub const fn has_aeth(self) -> bool {
        matches!(
            self,
            Self::ReadResponseFirst
                | Self::ReadResponseLast
                | Self::ReadResponseOnly
                | Self::Acknowledge
                | Self::AtomicAcknowledge
        )
    }

    /// Returns whether immediate data follows.
    pub const fn has_immediate(self) -> bool {
        matches!(
            self,
            Self::SendLastImmediate
                | Self::SendOnlyImmediate
                | Self::WriteLastImmediate
                | Self::WriteOnlyImmediate
                | Self::DatagramSendImmediate
        )
    }

    /// Returns whether an IETH follows.
    pub const fn has_ieth(self) -> bool {
        matches!(self, Self::SendLastInvalidate | Self::SendOnlyInvalidate)
    }

    /// Returns whether an AtomicETH follows.
    pub const fn has_atomic(self) -> bool {
        matches!(self, Self::CompareSwap | Self::FetchAdd)
    }

    /// Returns whether an AtomicAckETH follows.
    pub const fn has_atomic_ack(self) -> bool {
        matches!(self, Self::AtomicAcknowledge)
    }
}

/// The bits of the wire byte that select the service.
pub(crate) const SERVICE: u8 = 0xe0;

/// The header layout that a wire byte implies.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    /// `None` if the byte is reserved or belongs to another service.
    pub(super) opcode: Option<Opcode>,
    /// Length of the XRCETH, which precedes the other extension headers.
    pub(super) xrceth: u8,
    /// Length of all extension headers, filler excluded.
    pub(super) extensions: u8,
}

impl Layout {
    pub(super) const fn of(byte: u8) -> Self {
        LAYOUTS[byte as usize]
    }

    /// Returns the table entry of a wire byte.
    const fn new(byte: u8, opcode: Opcode) -> Self {
        let xrceth = match byte & SERVICE == Reliability::Extended as u8 {
            true if !opcode.is_response() => XrcEth::LEN,
            _ => 0,
        };
        let lengths = [
            (opcode.has_deth(), Deth::LEN),
            (opcode.has_feth(), Feth::LEN),
            (opcode.has_reth(), Reth::LEN),
            (opcode.has_aeth(), Aeth::LEN),
            (opcode.has_atomic(), AtomicEth::LEN),
            (opcode.has_atomic_ack(), AtomicAckEth::LEN),
            (opcode.has_immediate(), ImmDt::LEN),
            (opcode.has_ieth(), Ieth::LEN),
        ];
        let mut extensions = xrceth;
        let mut at = 0;
        while at < lengths.len() {
            if lengths[at].0 {
                extensions += lengths[at].1;
            }
            at += 1;
        }
        Self {
            opcode: Some(opcode),
            xrceth: xrceth as u8,
            extensions: extensions as u8,
        }
    }
}

/// Precomputed, because the layout of every packet is looked up here.
static LAYOUTS: [Layout; 256] = {
    let reserved = Layout {
        opcode: None,
        xrceth: 0,
        extensions: 0,
    };
    let mut table = [reserved; 256];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        let opcode = Opcode::ALL[at];
        table[opcode as usize] = Layout::new(opcode as u8, opcode);
        if opcode.is_of_connection() {
            let extended = Reliability::Extended.byte(opcode);
            table[extended as usize] = Layout::new(extended, opcode);
        }
        // The unreliable service has no other opcodes.
        if (opcode.is_send() || opcode.is_write()) && !opcode.has_ieth() {
            let unreliable = Reliability::Unreliable.byte(opcode);
            table[unreliable as usize] = Layout::new(unreliable, opcode);
        }
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_its_byte_and_other_bytes_have_none() {
        let known = (0..=255).filter_map(Opcode::from_byte).count();
        let of_connections = Opcode::ALL
            .iter()
            .filter(|op| op.is_of_connection())
            .count();
        // Plus the opcodes of the other services: twelve of the unreliable one, and an equivalent of each opcode of a
        // connection in the extended one.
        assert_eq!(known, Opcode::ALL.len() + of_connections + 12);
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_byte(opcode.byte()), Some(opcode));
        }
        assert_eq!(Opcode::from_byte(0x15), None);
        let reads = [0x0c, 0x2c, 0xac].map(Opcode::from_byte);
        let read = Some(Opcode::ReadRequest);
        assert_eq!(
            reads,
            [read, None, read],
            "unreliable connections have no READ"
        );
        assert_eq!(Opcode::from_byte(0x64), Some(Opcode::datagram(false)));
        assert_eq!(Opcode::from_byte(0x65), Some(Opcode::datagram(true)));
        assert_eq!(Opcode::from_byte(0xa4), Some(Opcode::SendOnly));
        assert_eq!(Opcode::from_byte(0x24), Some(Opcode::SendOnly));
        assert_eq!(Opcode::from_byte(0xe4), None);
    }

    #[test]
    fn requests_of_extended_connections_have_one_more_header() {
        for opcode in Opcode::ALL.into_iter().filter(|op| op.is_of_connection()) {
            let reliable = Layout::of(opcode.byte());
            let extended = Layout::of(Reliability::Extended.byte(opcode));
            let len = if opcode.is_response() { 0 } else { 4 };
            assert_eq!(reliable.xrceth, 0);
            assert_eq!(extended.xrceth, len, "{opcode:?}");
            assert_eq!(extended.extensions, reliable.extensions + len);
        }
    }

    #[test]
    fn a_message_has_one_first_and_one_last_packet() {
        assert_eq!(Position::of(0, 1, 1), Position::Only);
        let three = [0, 1, 2].map(|index| Position::of(index, 1, 3));
        assert_eq!(three, [Position::First, Position::Middle, Position::Last]);
        for position in [
            Position::First,
            Position::Middle,
            Position::Last,
            Position::Only,
        ] {
            for immediate in [false, true] {
                assert_eq!(Opcode::send(position, immediate).position(), position);
                assert_eq!(Opcode::write(position, immediate).position(), position);
            }
            assert_eq!(Opcode::read_response(position).position(), position);
        }
    }
}
