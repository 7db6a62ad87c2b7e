//! Requests on an unreliable connection.

use super::{Nak, Responder};
use crate::completion::WcStatus;
use crate::connection::{Connection, ConnectionFailed, Notifications};
use crate::memory::Memory;
use crate::wire::Packet;

impl Responder {
    /// Processes a packet of an unreliable connection. The first packet of a message is accepted with any PSN and
    /// aborts a message in progress. Others must continue the message in progress, or they are dropped (IBTA 9.8.3).
    ///
    /// # Errors
    /// The segments of a receive are not registered. All other errors drop the message.
    pub(crate) fn receive_unreliable(
        &mut self,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let psn = packet.bth().psn;
        let is_first = packet.opcode().position().is_first();
        // The next message reuses the receive of a dropped one.
        if is_first || psn != self.expected_psn {
            self.put_back();
        }
        let placed = self
            .check_sequence_and_access(packet.opcode())
            .and_then(|()| self.place(packet, connection, memory, notifications));
        match placed {
            Ok(()) => {
                self.expected_psn = psn.wrapping_add(packet.contents().packets(connection.mtu));
                Ok(())
            }
            // Only a local error fails the queue pair: a peer must not be able to terminate it with a packet.
            Err(Nak::Fatal(_, WcStatus::LocalProtection)) => {
                self.end_message(WcStatus::LocalProtection, notifications);
                Err(ConnectionFailed)
            }
            // The owner passes the packet in again; the receive stays in use until then.
            Err(Nak::NotYet) => Ok(()),
            Err(_) => {
                self.put_back();
                Ok(())
            }
        }
    }
}
