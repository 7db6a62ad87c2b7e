//! Packets of rings that are written to a file as well.

use gdr_chaos::Direction;

use super::ring_acceptor::RingAcceptor;
use crate::buffer::{CopyThread, volatile_copy};
use crate::chaos::{Chaos, Checksum};
use crate::error::Result;
use crate::wire::memory::{PacketSink, RingPacket, RingSender, Taken};

/// Passes the packets of rings to their queue pairs, and writes those that they accept to the file of the process.
pub(crate) struct CapturedRings<'a, 'b> {
    pub(crate) rings: RingAcceptor<'a, 'b>,
    pub(crate) chaos: &'b Chaos,
}

impl PacketSink for CapturedRings<'_, '_> {
    fn take(&mut self, sender: &RingSender, packet: RingPacket<'_>) -> (Taken, Result<()>) {
        let bytes = match &packet {
            RingPacket::Whole(bytes) => bytes.to_vec(),
            RingPacket::Long(_, record) => {
                let mut bytes = vec![0; record.len as usize];
                let from = std::ptr::with_exposed_provenance::<u8>(record.addr as usize);
                // SAFETY: the record is in the mapping of the ring until its room is given back, which is after
                // this call, and nothing here refers to its bytes. A peer that writes it meanwhile, against the
                // rules of the ring, changes only what is read.
                unsafe { volatile_copy::load(from, &mut bytes) };
                bytes
            }
            // A device whose packets are captured takes no references.
            RingPacket::Referring(..) | RingPacket::InDevice(..) => Vec::new(),
        };
        let before = std::mem::take(&mut self.rings.accepted);
        let taken = self.rings.take(sender, packet);
        if self.rings.accepted && !bytes.is_empty() {
            let socket = self.rings.acceptor.socket;
            let (direction, right) = (Direction::In, Checksum::Right);
            self.chaos
                .capture(direction, sender.address, &bytes, right, socket.local());
        }
        self.rings.accepted |= before;
        taken
    }

    fn read_sender(&mut self, sender: &RingSender) -> Result<()> {
        self.rings.read_sender(sender)
    }

    /// None: this device imports no memory of senders.
    fn copy_threads(&self) -> Vec<CopyThread> {
        Vec::new()
    }
}
