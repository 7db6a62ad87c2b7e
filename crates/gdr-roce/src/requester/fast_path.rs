//! The fast path: posting and transmission of a request in a single step.

use super::Requester;
use super::send_wqe::SendWqe;
use crate::attributes::Capabilities;
use crate::connection::{Connection, bth, emit_payload};
use crate::psn::Psn;
use crate::request::{Operation, Remote, SendFlags, SendRequest};
use crate::timer::Time;
use crate::wire::{Bth, ImmDt, Opcode, Position, Reth, padding, put};

impl Requester {
    /// Posts a request and writes its only packet to `out`, as [`Requester::post`] and [`Requester::poll`] would.
    /// Returns `None`, with nothing posted, unless it is a SEND or WRITE of one packet that may be sent now, and `fill`
    /// copies its payload.
    #[inline(always)]
    pub(crate) fn post_and_write<E>(
        &mut self,
        request: &SendRequest<'_>,
        caps: &Capabilities,
        connection: &Connection,
        now: Time,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
        out: &mut [u8],
    ) -> Option<usize> {
        if request.flags.contains(SendFlags::FENCE) || !self.is_unhindered() || self.room(caps) == 0
        {
            return None;
        }
        match request.operation {
            Operation::Send { .. } | Operation::Write { .. } => {}
            _ => return None,
        }
        self.send_queue.push_back(SendWqe::EMPTY);
        let wqe = self.send_queue.back_mut()?;
        if wqe.set(request, caps, connection.mtu).is_err() || wqe.packets != 1 {
            self.withdraw(1);
            return None;
        }
        self.begin_after_pause(now);
        let written = self.write_part(now, 0, 1, |wqe, psn, ack_request| {
            wqe.write_only(connection, psn, ack_request, fill, out)
        });
        if written.is_err() {
            self.withdraw(1);
        }
        written.ok().flatten()
    }

    /// Returns whether the first packet of the next request may be sent as soon as it is posted.
    fn is_unhindered(&self) -> bool {
        // Also after an RNR NAK or a timeout, a request before it is to be sent, or the window is one packet.
        self.cursor == self.send_queue.len()
            && self.missing.is_empty()
            && !self.draining
            && !self.peer_has_ended
            && !self.congestion.is_paced()
            && self.next.distance_from(self.una) < self.window()
    }
}

impl SendWqe {
    /// Writes the only packet of a SEND or WRITE, as [`SendWqe::request_packet`] and [`emit`](crate::connection::emit)
    /// would.
    #[inline(always)]
    fn write_only<E>(
        &self,
        connection: &Connection,
        psn: Psn,
        ack_request: bool,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
        out: &mut [u8],
    ) -> Result<usize, E> {
        let (opcode, remote, immediate) = match self.operation {
            Operation::Write { remote, immediate } => {
                let opcode = Opcode::write(Position::Only, immediate.is_some());
                (opcode, Some(remote), immediate)
            }
            Operation::Send { immediate } => {
                let opcode = Opcode::send(Position::Only, immediate.is_some());
                (opcode, None, immediate)
            }
            // Unreachable: `post_and_write` leaves others alone.
            _ => (Opcode::send(Position::Only, false), None, None),
        };
        let len = self.len as usize;
        let bth = Bth {
            solicited: self.flags.contains(SendFlags::SOLICITED),
            pad: padding(len) as u8,
            ack_request,
            ..bth(
                connection.reliability.byte(opcode),
                connection.dest_qpn,
                psn,
            )
        };
        let mut at = 0;
        put(out, &mut at, |to| bth.emit(to));
        if let Some(Remote { rkey, addr }) = remote {
            let dma_len = self.len;
            put(out, &mut at, |to| {
                Reth {
                    addr,
                    rkey,
                    dma_len,
                }
                .emit(to);
            });
        }
        if let Some(immediate) = immediate {
            put(out, &mut at, |to| ImmDt(immediate).emit(to));
        }
        emit_payload(at, len, out, fill)
    }
}
