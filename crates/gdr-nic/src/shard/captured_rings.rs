//! Ring packets that are also written to a capture file.

use gdr_chaos::Direction;

use super::ring_acceptor::RingAcceptor;
use crate::buffer::{CopyThread, volatile_copy};
use crate::chaos::{Chaos, Checksum};
use crate::error::Result;
use crate::wire::memory::{PacketSink, RingPacket, RingSender, Taken};

/// Delivers ring packets to their queue pairs, and writes accepted ones to the process's capture file.
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
                // SAFETY: the record stays mapped until its ring space is returned, which happens after this call, and
                // there is no reference to its bytes here. A peer that writes it meanwhile, against the ring's rules,
                // only affects the values read.
                unsafe { volatile_copy::load(from, &mut bytes) };
                bytes
            }
            // A device that is captured accepts no references.
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

    /// Returns nothing: this device imports no memory of senders.
    fn copy_threads(&self) -> Vec<CopyThread> {
        Vec::new()
    }
}
