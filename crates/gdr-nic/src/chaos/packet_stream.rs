//! The packets of a queue pair in one direction, by their numbers.

use std::collections::VecDeque;

use gdr_chaos::Kinds;
use gdr_roce::wire::{Bth, Opcode, Reth};
use gdr_roce::{Mtu, Psn};

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
    /// It begins the message.
    pub(super) is_first: bool,
}

/// How many messages responses may belong to: more than READs are outstanding.
const MOST_STARTS: usize = 256;

/// Packets of one role in one direction.
#[derive(Debug, Default)]
pub(super) struct PacketStream {
    /// The sequence number behind the highest that was seen.
    next: Option<Psn>,
    packets: u64,
    operations: u64,
    /// The first packets of the last messages.
    starts: VecDeque<u64>,
    /// Where the READ continues that was requested last: a requester may ask for the parts of one by one.
    read_on: Option<u64>,
}

/// The headers that faults are chosen by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) psn: Psn,
    pub(super) opcode: Opcode,
    /// How many sequence numbers it has: a READ request has as many as its responses.
    pub(super) span: u32,
    /// The first and the last address of a READ request.
    pub(super) read: Option<(u64, u64)>,
}

impl Headers {
    /// Returns the headers of a packet on a connection with this path MTU.
    pub(super) fn of(packet: &[u8], mtu: Option<Mtu>) -> Option<Self> {
        let (psn, opcode) = {
            let bth = Bth::parse(packet.first_chunk()?);
            (bth.psn, Opcode::from_byte(bth.opcode)?)
        };
        let reth = packet.get(Bth::LEN..).and_then(<[u8]>::first_chunk);
        let reth = reth
            .map(Reth::parse)
            .filter(|_| opcode == Opcode::ReadRequest);
        let span = reth.zip(mtu).map(|(reth, mtu)| mtu.packets(reth.dma_len));
        let read = reth.map(|reth| (reth.addr, reth.addr.wrapping_add(reth.dma_len.into())));
        Some(Self {
            psn,
            opcode,
            span: span.unwrap_or(1),
            read,
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
    /// The number of a packet; `None` if it, or a later one, was seen before, and for a READ request that continues
    /// another one: in how many parts a READ is asked for depends on time.
    pub(super) fn number(&mut self, headers: Headers) -> Option<PacketNumber> {
        let ahead = headers.psn.distance_from(self.next.unwrap_or(headers.psn));
        if ahead >= HALF {
            return None;
        }
        self.next = Some(headers.psn.wrapping_add(headers.span));
        let packet = self.packets + u64::from(ahead);
        self.packets = packet + u64::from(headers.span);
        let continues = headers
            .read
            .is_some_and(|(from, _)| self.read_on == Some(from));
        self.read_on = headers.read.map(|(_, to)| to);
        if continues {
            return None;
        }
        let is_first = headers.opcode.position().is_first();
        if is_first {
            self.operations += 1;
            self.starts.push_back(packet);
            if self.starts.len() > MOST_STARTS {
                self.starts.pop_front();
            }
        }
        Some(PacketNumber {
            operation: self.operations.saturating_sub(1),
            packet,
            is_first,
        })
    }

    /// The number of the response with this sequence number to one of these requests.
    pub(super) fn response(&self, psn: Psn) -> Option<PacketNumber> {
        let behind = self.next?.distance_from(psn);
        let packet = self.packets.checked_sub(u64::from(behind))?;
        let later = self
            .starts
            .iter()
            .rev()
            .take_while(|start| **start > packet);
        let later = later.count();
        let start = self.starts.iter().rev().nth(later)?;
        Some(PacketNumber {
            operation: self.operations.checked_sub(later as u64 + 1)?,
            packet,
            is_first: *start == packet,
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
            let is_read = opcode == Opcode::ReadRequest;
            let number = stream.number(Headers {
                psn: Psn::new(psn),
                opcode,
                span: if is_read { 3 } else { 1 },
                read: is_read.then_some((psn.into(), u64::from(psn) + 3)),
            });
            number.map(|number| (number.operation, number.packet))
        };
        let top = (1 << 24) - 1;
        assert_eq!(number(top, Opcode::WriteFirst), Some((0, 0)));
        assert_eq!(number(0, Opcode::WriteLast), Some((0, 1)));
        assert_eq!(number(top, Opcode::WriteFirst), None);
        assert_eq!(number(3, Opcode::SendOnly), Some((1, 4)));
        assert_eq!(number(2, Opcode::SendOnly), None, "a later one was seen");
        assert_eq!(number(4, Opcode::ReadRequest), Some((2, 5)));
        assert_eq!(number(6, Opcode::ReadRequest), None, "a part of it, again");
        assert_eq!(number(7, Opcode::ReadRequest), None, "it goes on");
        assert_eq!(number(10, Opcode::SendOnly), Some((3, 11)));
        let response = |psn| {
            let number = stream.response(Psn::new(psn)).unwrap();
            (number.operation, number.packet, number.is_first)
        };
        assert_eq!(response(4), (2, 5, true));
        assert_eq!(response(7), (2, 8, false));
    }
}
