//! The BTH opcode: the type of a packet and its extension headers.

/// The position of a packet in its message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// The position of packet `index` of `count`, or of one that stands for it and the next ones, `merged` in all.
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

/// An opcode of the reliable connection, unreliable connection or unreliable datagram service, or the
/// congestion notification.
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
    /// Makes written bytes visible. Like the atomic WRITE, it is answered by an empty READ response.
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    /// SEND of the unreliable connection service. Its opcodes are the reliable one's plus 0x20.
    UnreliableSendFirst = 0x20,
    UnreliableSendMiddle = 0x21,
    UnreliableSendLast = 0x22,
    UnreliableSendLastImmediate = 0x23,
    UnreliableSendOnly = 0x24,
    UnreliableSendOnlyImmediate = 0x25,
    UnreliableWriteFirst = 0x26,
    UnreliableWriteMiddle = 0x27,
    UnreliableWriteLast = 0x28,
    UnreliableWriteLastImmediate = 0x29,
    UnreliableWriteOnly = 0x2a,
    UnreliableWriteOnlyImmediate = 0x2b,
    /// SEND of the unreliable datagram service.
    DatagramSend = 0x64,
    DatagramSendImmediate = 0x65,
    /// Congestion notification packet (CNP).
    CongestionNotification = 0x81,
}

/// The bits of an opcode that name the service (IBTA 9.2.1), and their value for unreliable connections.
const SERVICE: u8 = 0xe0;
const UNRELIABLE: u8 = 0x20;

impl Opcode {
    /// All opcodes.
    pub const ALL: [Self; 40] = [
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
        Self::UnreliableSendFirst,
        Self::UnreliableSendMiddle,
        Self::UnreliableSendLast,
        Self::UnreliableSendLastImmediate,
        Self::UnreliableSendOnly,
        Self::UnreliableSendOnlyImmediate,
        Self::UnreliableWriteFirst,
        Self::UnreliableWriteMiddle,
        Self::UnreliableWriteLast,
        Self::UnreliableWriteLastImmediate,
        Self::UnreliableWriteOnly,
        Self::UnreliableWriteOnlyImmediate,
        Self::DatagramSend,
        Self::DatagramSendImmediate,
        Self::CongestionNotification,
    ];

    /// The opcode of a byte, or `None` if it is reserved or belongs to another service.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        BY_BYTE[byte as usize]
    }

    /// The byte on the wire.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The opcode of a SEND packet.
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

    /// The opcode of a packet of a SEND with invalidate.
    pub const fn send_invalidate(position: Position) -> Self {
        match position {
            Position::First => Self::SendFirst,
            Position::Middle => Self::SendMiddle,
            Position::Last => Self::SendLastInvalidate,
            Position::Only => Self::SendOnlyInvalidate,
        }
    }

    /// The opcode of a WRITE packet.
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

    /// The opcode of a READ response packet.
    pub const fn read_response(position: Position) -> Self {
        match position {
            Position::First => Self::ReadResponseFirst,
            Position::Middle => Self::ReadResponseMiddle,
            Position::Last => Self::ReadResponseLast,
            Position::Only => Self::ReadResponseOnly,
        }
    }

    /// The opcode of a datagram.
    pub const fn datagram(immediate: bool) -> Self {
        if immediate {
            Self::DatagramSendImmediate
        } else {
            Self::DatagramSend
        }
    }

    /// Returns whether the packet belongs to the unreliable connection service.
    pub const fn is_unreliable_connection(self) -> bool {
        self.byte() & SERVICE == UNRELIABLE
    }

    /// The opcode of the unreliable connection service for a SEND or WRITE packet of the reliable one;
    /// that service has no other opcodes, so another one stays as it is.
    #[must_use]
    pub const fn unreliable(self) -> Self {
        match Self::from_byte(self.byte() | UNRELIABLE) {
            Some(unreliable) if self.byte() & SERVICE == 0 => unreliable,
            _ => self,
        }
    }

    /// The opcode of the reliable connection service for a packet of the unreliable one; another one
    /// stays as it is.
    const fn reliable(self) -> Self {
        match Self::from_byte(self.byte() & !SERVICE) {
            Some(reliable) if self.is_unreliable_connection() => reliable,
            _ => self,
        }
    }

    /// The position of the packet in its message.
    pub const fn position(self) -> Position {
        match self.reliable() {
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

    /// Returns whether the packet is a response, for the requester, rather than a request.
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

    /// Returns whether the packet is part of a SEND of a connection.
    pub const fn is_send(self) -> bool {
        matches!(
            self.reliable(),
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
            self.reliable(),
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

    /// Returns whether a RETH follows the BTH, or the FETH behind it.
    pub const fn has_reth(self) -> bool {
        matches!(
            self.reliable(),
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
            self.reliable(),
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

/// A table, because it is used once per packet.
static BY_BYTE: [Option<Opcode>; 256] = {
    let mut table = [None; 256];
    let mut at = 0;
    while at < Opcode::ALL.len() {
        table[Opcode::ALL[at] as usize] = Some(Opcode::ALL[at]);
        at += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_has_its_byte_and_other_bytes_have_none() {
        let known = (0..=255).filter_map(Opcode::from_byte).collect::<Vec<_>>();
        assert_eq!(known.len(), Opcode::ALL.len());
        assert!(
            known
                .iter()
                .all(|op| Opcode::from_byte(op.byte()) == Some(*op))
        );
        assert_eq!(Opcode::from_byte(0x15), None);
        assert_eq!(
            Opcode::from_byte(0x2c),
            None,
            "unreliable connections have no READ"
        );
        assert_eq!(Opcode::from_byte(0x64), Some(Opcode::datagram(false)));
        assert_eq!(Opcode::from_byte(0x65), Some(Opcode::datagram(true)));
    }

    #[test]
    fn unreliable_connections_have_the_sends_and_writes_of_reliable_ones() {
        for opcode in Opcode::ALL
            .into_iter()
            .filter(|opcode| opcode.byte() < 0x20)
        {
            let unreliable = opcode.unreliable();
            let has_one = (opcode.is_send() || opcode.is_write()) && !opcode.has_ieth();
            assert_eq!(unreliable.is_unreliable_connection(), has_one, "{opcode:?}");
            assert_eq!(unreliable.position(), opcode.position());
            assert_eq!(unreliable.is_send(), opcode.is_send());
            assert_eq!(unreliable.is_write(), opcode.is_write());
            assert_eq!(unreliable.has_reth(), opcode.has_reth());
            assert_eq!(unreliable.has_immediate(), opcode.has_immediate());
            assert_eq!(unreliable.has_payload(), opcode.has_payload());
        }
        let only = Opcode::from_byte(0x24);
        assert_eq!(only, Some(Opcode::SendOnly.unreliable()));
        let datagram = Opcode::DatagramSend;
        assert!(!datagram.is_unreliable_connection() && !datagram.is_send());
        assert_eq!(datagram.unreliable(), datagram);
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
