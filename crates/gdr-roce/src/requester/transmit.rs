//! Transmission of request packets.

use super::Requester;
use super::send_wqe::SendWqe;
use crate::completion::WcStatus;
use crate::connection::{Connection, ConnectionFailed, Notifications, emit};
use crate::memory::{AtomicOp, Memory};
use crate::psn::Psn;
use crate::request::{Operation, SendFlags};
use crate::timer::Time;
use crate::wire::{AtomicEth, Headers, ImmDt, Opcode, Position, Reth};

impl Requester {
    /// Writes the next request packet to `out`, if one may be sent at `now`.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        connection: &Connection,
        memory: &mut dyn Memory,
        out: &mut [u8],
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        if self.rnr_wait_until.is_some_and(|until| now < until) {
            return Ok(None);
        }
        self.rnr_wait_until = None;
        let outstanding = self.next.distance_from(self.una);
        let Some(wqe) = self.send_queue.get_mut(self.cursor) else {
            return Ok(None);
        };
        if wqe.failed.is_some() || outstanding >= self.config.window {
            return Ok(None);
        }
        let first = match wqe.first {
            Some(first) => first,
            None => {
                if wqe.flags.contains(SendFlags::FENCE) && !self.outstanding_reads.is_empty() {
                    return Ok(None);
                }
                if wqe.check(memory).is_err() {
                    return self.cannot_send(notifications);
                }
                self.next
            }
        };
        if self.highest == self.una {
            self.progress_at = now;
        }
        let index = self.next.distance_from(first);
        let (headers, payload, packets) = if wqe.expects_response() {
            // A repeated READ request ends where the first one ended, so that the peer finds it
            // among its latest READs.
            let piece = self.config.read_packets - index % self.config.read_packets;
            let packets = (wqe.packets - index).min(piece);
            let room = outstanding == 0 || outstanding + packets <= self.config.window;
            if !room || self.outstanding_reads.len() >= usize::from(self.attributes.max_rd_atomic) {
                return Ok(None);
            }
            self.outstanding_reads
                .push_back(self.next.wrapping_add(packets - 1));
            (
                wqe.read_request(connection, self.next, index, packets),
                0,
                packets,
            )
        } else {
            self.since_ack_request += 1;
            let ack_request = self.since_ack_request >= self.config.ack_request_interval
                || index + 1 == wqe.packets
                || outstanding + 1 == self.config.window;
            if ack_request {
                self.since_ack_request = 0;
            }
            let (headers, payload) = wqe.request_packet(connection, self.next, index, ack_request);
            (headers, payload, 1)
        };
        wqe.first = Some(first);
        let offset = index * connection.mtu.bytes() as u32;
        let fill = |payload: &mut [u8]| wqe.payload.fill(memory, offset, payload);
        let Ok(len) = emit(&headers, payload, out, fill) else {
            return self.cannot_send(notifications);
        };
        if index + packets == wqe.packets {
            self.cursor += 1;
        }
        self.next = self.next.wrapping_add(packets);
        if self.next.distance_from(self.una) > self.highest.distance_from(self.una) {
            self.highest = self.next;
        }
        if self.retransmit_at.is_none() {
            self.retransmit_at = self.retransmit_time(now);
        }
        Ok(Some(len))
    }

    /// Fails the request at the cursor because its segments are not registered. The requests
    /// before it may still succeed, so it completes after them.
    fn cannot_send(
        &mut self,
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        if self.cursor == 0 {
            self.fail(WcStatus::LocalProtection, notifications)?;
        } else if let Some(wqe) = self.send_queue.get_mut(self.cursor) {
            wqe.failed = Some(WcStatus::LocalProtection);
        }
        Ok(None)
    }
}

impl SendWqe {
    /// Headers and payload length of packet `index` of a SEND or WRITE.
    fn request_packet(
        &self,
        connection: &Connection,
        psn: Psn,
        index: u32,
        ack_request: bool,
    ) -> (Headers, usize) {
        let mtu = connection.mtu.bytes() as u32;
        let position = Position::of(index, self.packets);
        let (opcode, immediate, reth) = match self.operation {
            Operation::Write { remote, immediate } => {
                let reth = Reth {
                    addr: remote.addr,
                    rkey: remote.rkey,
                    dma_len: self.len,
                };
                (
                    Opcode::write(position, immediate.is_some()),
                    immediate,
                    Some(reth),
                )
            }
            Operation::Send { immediate } => {
                (Opcode::send(position, immediate.is_some()), immediate, None)
            }
            // Not reached: `read_request` makes these packets.
            Operation::Read { .. } | Operation::Atomic { .. } => {
                (Opcode::send(position, false), None, None)
            }
        };
        let mut headers = connection.headers(opcode, psn);
        headers.bth.ack_request = ack_request;
        headers.bth.solicited = position.is_last() && self.flags.contains(SendFlags::SOLICITED);
        headers.reth = reth;
        headers.immediate = immediate.map(ImmDt);
        (headers, (self.len - index * mtu).min(mtu) as usize)
    }

    /// Headers of an atomic, or of a READ request for `packets` responses from `index` on.
    fn read_request(&self, connection: &Connection, psn: Psn, index: u32, packets: u32) -> Headers {
        let mtu = connection.mtu.bytes() as u32;
        let (opcode, reth, atomic) = match self.operation {
            Operation::Atomic { remote, op } => {
                let (opcode, swap_or_add, compare) = match op {
                    AtomicOp::FetchAdd { add } => (Opcode::FetchAdd, add, 0),
                    AtomicOp::CompareSwap { compare, swap } => (Opcode::CompareSwap, swap, compare),
                };
                let atomic = AtomicEth {
                    addr: remote.addr,
                    rkey: remote.rkey,
                    swap_or_add,
                    compare,
                };
                (opcode, None, Some(atomic))
            }
            Operation::Read { remote } | Operation::Write { remote, .. } => {
                let reth = Reth {
                    // Wraps only if the range is invalid; the peer refuses such a range.
                    addr: remote.addr.wrapping_add(u64::from(index * mtu)),
                    rkey: remote.rkey,
                    dma_len: (self.len - index * mtu).min(packets * mtu),
                };
                (Opcode::ReadRequest, Some(reth), None)
            }
            Operation::Send { .. } => (Opcode::ReadRequest, None, None),
        };
        let mut headers = connection.headers(opcode, psn);
        headers.bth.ack_request = true;
        headers.reth = reth;
        headers.atomic = atomic;
        headers
    }
}
