//! Numbering of a queue pair's packets in one direction.

use std::collections::{BTreeSet, VecDeque};

use gdr_chaos::Kinds;
use gdr_roce::wire::{Bth, Opcode, Reth};
use gdr_roce::{Mtu, Psn};

/// Half of the PSN space: a PSN less than this far ahead is newer.
const HALF: u32 = 1 << 23;

/// The role of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Request,
    Response,
    Acknowledgement,
}

/// The number of a packet seen for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PacketNumber {
    /// The number of its message.
    pub(super) operation: u64,
    pub(super) packet: u64,
    /// Whether it is the first packet of the message.
    pub(super) is_first: bool,
}

/// The number of message starts kept to match responses: more than the outstanding READs.
const MOST_STARTS: usize = 256;
/// The number of gaps that are tracked: more than a window of packets.
const MOST_MISSING: usize = 4096;

/// The packets of one role in one direction.
#[derive(Debug, Default)]
pub(super) struct PacketStream {
    /// The PSN after the highest one seen.
    next: Option<Psn>,
    packets: u64,
    /// Packets before `next` that have not been seen.
    missing: BTreeSet<u64>,
    operations: u64,
    /// The numbers of the first packets of recent messages.
    starts: VecDeque<u64>,
    /// Whether a message is still open at `next`.
    is_within: bool,
    /// The address at which the last READ would continue: a requester may request a READ in several parts.
    read_on: Option<u64>,
}

/// The header fields by which faults are chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    pub(super) psn: Psn,
    pub(super) opcode: Opcode,
    /// The number of PSNs that it consumes: for a READ request, one for each response.
    pub(super) span: u32,
    /// The start and end address of a READ request.
    pub(super) read: Option<(u64, u64)>,
}

impl Headers {
    /// Parses the headers of a packet on a connection with this path MTU.
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
    /// Returns a stream that begins at this PSN, even if other packets are seen first.
    pub(super) fn from(first: Psn) -> Self {
        Self {
            next: Some(first),
            ..Self::default()
        }
    }

    /// Returns the number of a packet, which depends only on its PSN, not on the order of arrival. `None` for a
    /// retransmission, and for a READ request that continues another one, because the split of a READ into requests
    /// depends on time.
    pub(super) fn number(&mut self, headers: Headers) -> Option<PacketNumber> {
        let next = self.next.unwrap_or(headers.psn);
        let (ahead, position) = (headers.psn.distance_from(next), headers.opcode.position());
        let span = u64::from(headers.span);
        if ahead >= HALF {
            let packet = self
                .packets
                .checked_sub(next.distance_from(headers.psn).into())?;
            if !self.missing.remove(&packet) {
                return None;
            }
            self.missing
                .retain(|it| !(packet..packet + span).contains(it));
            return self.numbered(packet, position.is_first());
        }
        let packet = self.packets + u64::from(ahead);
        // A peer may skip up to half of the PSN space.
        let first = packet.saturating_sub(MOST_MISSING as u64);
        self.missing.extend(first.max(self.packets)..packet);
        while self.missing.len() > MOST_MISSING {
            self.missing.pop_first();
        }
        if ahead > 0 && !self.is_within && !position.is_first() {
            // The first packet of its message is among the missing ones.
            self.begin(self.packets);
        }
        self.next = Some(headers.psn.wrapping_add(headers.span));
        self.packets = packet + span;
        self.is_within = !position.is_last();
        // After a gap, this may be the second part of a READ.
        let continues = headers
            .read
            .is_some_and(|(from, _)| ahead > 0 || self.read_on == Some(from));
        self.read_on = headers.read.map(|(_, to)| to);
        if continues {
            return None;
        }
        self.numbered(packet, position.is_first())
    }

    /// Returns the number of a packet seen for the first time.
    fn numbered(&mut self, packet: u64, is_first: bool) -> Option<PacketNumber> {
        if is_first {
            self.begin(packet);
        }
        let known = self.of_packet(packet);
        Some(PacketNumber {
            operation: known.map_or(0, |known| known.operation),
            packet,
            is_first,
        })
    }

    /// Records that a message begins with this packet.
    fn begin(&mut self, packet: u64) {
        let at = self.starts.partition_point(|start| *start < packet);
        if self.starts.get(at) == Some(&packet) {
            return;
        }
        self.operations += 1;
        self.starts.insert(at, packet);
        if self.starts.len() > MOST_STARTS {
            self.starts.pop_front();
        }
    }

    /// Returns the number of the response with this PSN, which belongs to one of these requests.
    pub(super) fn response(&self, psn: Psn) -> Option<PacketNumber> {
        let behind = self.next?.distance_from(psn);
        self.of_packet(self.packets.checked_sub(u64::from(behind))?)
    }

    /// Returns the number of a packet, if the start of its message is known.
    fn of_packet(&self, packet: u64) -> Option<PacketNumber> {
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
        assert_eq!(number(2, Opcode::SendOnly), Some((1, 3)), "it comes late");
        assert_eq!(number(2, Opcode::SendOnly), None);
        assert_eq!(number(4, Opcode::ReadRequest), Some((3, 5)));
        assert_eq!(number(6, Opcode::ReadRequest), None, "a part of it, again");
        assert_eq!(number(7, Opcode::ReadRequest), None, "it goes on");
        assert_eq!(number(10, Opcode::SendOnly), Some((4, 11)));
        let response = |psn| {
            let number = stream.response(Psn::new(psn)).unwrap();
            (number.operation, number.packet, number.is_first)
        };
        assert_eq!(response(4), (3, 5, true));
        assert_eq!(response(7), (3, 8, false));
    }

    #[test]
    fn a_packet_far_ahead_takes_no_more_memory_than_one_window() {
        let mut stream = PacketStream::from(Psn::new(0));
        let far = Headers {
            psn: Psn::new((1 << 23) - 1),
            opcode: Opcode::SendOnly,
            span: 1,
            read: None,
        };
        let number = stream.number(far).unwrap();
        assert_eq!(number.packet, (1 << 23) - 1);
        let oldest = number.packet - MOST_MISSING as u64;
        assert_eq!(stream.missing.len(), MOST_MISSING);
        assert_eq!(stream.missing.first(), Some(&oldest));
    }

    #[test]
    fn a_packet_has_the_same_number_in_whatever_order_it_is_seen() {
        let sent = [
            (7, Opcode::WriteFirst),
            (8, Opcode::WriteMiddle),
            (9, Opcode::WriteLast),
            (10, Opcode::WriteFirst),
            (11, Opcode::WriteLast),
        ];
        let expected = [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4)];
        for order in [
            [0, 1, 2, 3, 4],
            [2, 1, 0, 4, 3],
            [1, 2, 0, 3, 4],
            [0, 2, 4, 1, 3],
        ] {
            let mut stream = PacketStream::from(Psn::new(7));
            for at in order {
                let (psn, opcode) = sent[at];
                let headers = Headers {
                    psn: Psn::new(psn),
                    opcode,
                    span: 1,
                    read: None,
                };
                let number = stream.number(headers).unwrap();
                assert_eq!((number.operation, number.packet), expected[at], "{order:?}");
                assert_eq!(stream.number(headers), None);
            }
        }
    }
}
