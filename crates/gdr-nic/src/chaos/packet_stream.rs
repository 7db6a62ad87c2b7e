//! The packets of a queue pair in one direction, by their numbers.

use gdr_chaos::Kinds;
use gdr_roce::Psn;
use gdr_roce::wire::{Bth, Opcode};

/// The half of the sequence numbers that are later.
const HALF: u32 = 1 << 23;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Request,
    Response,
    Acknowledgement,
}

/// The number of a packet that was not seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketNumber {
    /// Of its message.
    pub(super) operation: u64,
    pub(super) packet: u64,
}

/// Packets of one role in one direction.
#[derive(Debug, Default)]
pub(super) struct PacketStream {
    /// The sequence number behind the highest that was seen.
    next: Option<Psn>,
    packets: u64,
    operations: u64,
}

/// The headers that faults are chosen by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) psn: Psn,
    pub(super) opcode: Opcode,
}

impl Headers {
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let bth = Bth::parse(packet.first_chunk()?);
        Some(Self {
            psn: bth.psn,
            opcode: Opcode::from_byte(bth.opcode)?,
        })
    }

    pub(super) fn role(self) -> Role {
        match self.opcode {
            Opcode::Acknowledge | Opcode::CongestionNotification => Role::Acknowledgement,
            opcode if opcode.is_response() => Role::Response,
            _ => Role::Request,
        }
    }

    pub(super) fn kind(self) -> Kinds {
        let opcode = self.opcode;
        match self.role() {
            Role::Acknowledgement => Kinds::ACK,
            _ if opcode.is_datagram() => Kinds::DATAGRAM,
            _ if opcode.is_send() => Kinds::SEND,
            _ if opcode.is_write() => Kinds::WRITE,
            _ if opcode == Opcode::ReadRequest || opcode.is_read_response() => Kinds::READ,
            _ => Kinds::ATOMIC,
        }
    }
}

impl PacketStream {
    /// The number of a packet; `None` if it, or a later one, was seen before.
    pub(super) fn number(&mut self, headers: Headers) -> Option<PacketNumber> {
        let ahead = headers.psn.distance_from(self.next.unwrap_or(headers.psn));
        if ahead >= HALF {
            return None;
        }
        self.next = Some(headers.psn.wrapping_add(1));
        let packet = self.packets + u64::from(ahead);
        self.packets = packet + 1;
        if headers.opcode.position().is_first() {
            self.operations += 1;
        }
        Some(PacketNumber {
            operation: self.operations.saturating_sub(1),
            packet,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_that_is_sent_again_has_no_number() {
        let mut stream = PacketStream::default();
        let mut number = |psn, opcode| {
            stream
                .number(Headers {
                    psn: Psn::new(psn),
                    opcode,
                })
                .map(|number| (number.operation, number.packet))
        };
        let top = (1 << 24) - 1;
        assert_eq!(number(top, Opcode::WriteFirst), Some((0, 0)));
        assert_eq!(number(0, Opcode::WriteLast), Some((0, 1)));
        assert_eq!(number(top, Opcode::WriteFirst), None);
        assert_eq!(number(3, Opcode::SendOnly), Some((1, 4)));
        assert_eq!(number(2, Opcode::SendOnly), None, "a later one was seen");
    }
}
