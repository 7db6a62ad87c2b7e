//! Delivery of ring packets to queue pairs.

use gdr_roce::wire::{Opcode, Packet};

use crate::buffer::CopyThread;
use crate::error::Result;
use crate::shard::memory::Origin;
use crate::shard::qp_table::{Acceptance, Acceptor};
use crate::wire::memory::{PacketSink, RingPacket, RingSender, Taken};
use gdr_udp::Datagram;

/// Delivers ring packets to their queue pairs.
pub(crate) struct RingAcceptor<'a, 'b> {
    pub(crate) acceptor: &'b mut Acceptor<'a>,
    /// Whether a packet was accepted.
    pub(crate) accepted: bool,
}

impl<'a, 'b> RingAcceptor<'a, 'b> {
    pub(crate) fn new(acceptor: &'b mut Acceptor<'a>) -> Self {
        Self {
            acceptor,
            accepted: false,
        }
    }
}

impl PacketSink for RingAcceptor<'_, '_> {
    fn take(&mut self, sender: &RingSender, packet: RingPacket<'_>) -> (Taken, Result<()>) {
        let (bytes, len, parsed, origin) = match packet {
            RingPacket::Whole(bytes) => (bytes, bytes.len(), Packet::new(bytes), Origin::Packet),
            RingPacket::Long(start, record) => {
                let parsed = Packet::in_place(start, record);
                (start, record.len as usize, parsed, Origin::Record(record))
            }
            RingPacket::Referring(bytes, payload) => {
                let len = bytes.len() + payload.len as usize;
                let parsed = Packet::referring(bytes, payload);
                (bytes, len, parsed, Origin::Sender)
            }
            RingPacket::InDevice(bytes, payload, run) => {
                let len = bytes.len() + payload.len as usize;
                let parsed = Packet::referring(bytes, payload);
                (bytes, len, parsed, Origin::Device(run))
            }
        };
        // This packet's memory accesses must follow the copies that earlier packets refer to.
        let is_answer = |packet: &Packet<'_>| packet.opcode() == Opcode::Acknowledge;
        let copied = match origin {
            Origin::Sender => Ok(()),
            // An acknowledgement touches no memory, so nothing need be copied before it.
            _ if parsed.as_ref().is_ok_and(is_answer) => Ok(()),
            Origin::Packet | Origin::Record(_) | Origin::Device(_) => self.read_sender(sender),
        };
        let acceptor = &mut *self.acceptor;
        let datagram = Datagram::by_memory(sender.address, bytes, len, acceptor.socket);
        let acceptance = acceptor.accept_packet(parsed, &datagram, origin);
        if acceptance == Acceptance::NotYet {
            return (Taken::NotYet, copied);
        }
        self.accepted |= acceptance == Acceptance::Accepted;
        acceptor.counters.received_by_memory += 1;
        (Taken::Done, copied)
    }

    fn read_sender(&mut self, sender: &RingSender) -> Result<()> {
        let Acceptor {
            unfinished, qps, ..
        } = &mut *self.acceptor;
        match &sender.memory {
            Some(memory) => {
                let bounce = &mut unfinished.bounce;
                let failed = |qpn| qps.fail(qpn);
                unfinished.copies.run(memory, bounce, failed)
            }
            None => Ok(()),
        }
    }

    fn copy_threads(&self) -> Vec<CopyThread> {
        let mut threads = Vec::<CopyThread>::new();
        for region in self.acceptor.regions.values() {
            if let Some(thread) = region.buffer.copy_thread()
                && !threads.iter().any(|other| other.is_same(thread))
            {
                threads.push(thread.clone());
            }
        }
        threads
    }
}
