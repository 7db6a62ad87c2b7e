//! The next packet to send.

use super::Requester;
use super::entry::Entry;
use crate::completion::WcStatus;
use crate::link::{Broken, Link, Results, emit};
use crate::memory::{AtomicOp, Memory};
use crate::psn::Psn;
use crate::request::{Operation, SendFlags};
use crate::timer::Time;
use crate::wire::{AtomicEth, Headers, ImmDt, Opcode, Position, Reth};

impl Requester {
    /// Writes the next request packet, if one may be sent now.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        link: &Link,
        memory: &mut dyn Memory,
        out: &mut [u8],
        results: &mut Results,
    ) -> Result<Option<usize>, Broken> {
        if self.wait_until.is_some_and(|until| now < until) {
            return Ok(None);
        }
        self.wait_until = None;
        let on_its_way = self.next.distance_from(self.una);
        let Some(entry) = self.queue.get_mut(self.cursor) else {
            return Ok(None);
        };
        if entry.failed.is_some() || on_its_way >= self.pace.window {
            return Ok(None);
        }
        let first = match entry.first {
            Some(first) => first,
            None => {
                if entry.flags.contains(SendFlags::FENCE) && !self.reads.is_empty() {
                    return Ok(None);
                }
                if entry.check(memory).is_err() {
                    return self.cannot_send(results);
                }
                self.next
            }
        };
        let index = self.next.distance_from(first);
        let (headers, payload, packets) = if entry.needs_answer() {
            // Asked again, a piece ends where it ended before: the peer knows it as a duplicate.
            let piece = self.pace.read_packets - index % self.pace.read_packets;
            let packets = (entry.packets - index).min(piece);
            let room = on_its_way == 0 || on_its_way + packets <= self.pace.window;
            if !room || self.reads.len() >= usize::from(self.attributes.max_rd_atomic) {
                return Ok(None);
            }
            self.reads.push_back(self.next.wrapping_add(packets - 1));
            (entry.question(link, self.next, index, packets), 0, packets)
        } else {
            self.unasked += 1;
            let ask = self.unasked >= self.pace.ack_request_every
                || index + 1 == entry.packets
                || on_its_way + 1 == self.pace.window;
            if ask {
                self.unasked = 0;
            }
            let (headers, payload) = entry.statement(link, self.next, index, ask);
            (headers, payload, 1)
        };
        entry.first = Some(first);
        let offset = index * link.mtu.bytes() as u32;
        let fill = |payload: &mut [u8]| entry.fill(memory, offset, payload);
        let Ok(len) = emit(&headers, payload, out, fill) else {
            return self.cannot_send(results);
        };
        if index + packets == entry.packets {
            self.cursor += 1;
        }
        self.next = self.next.wrapping_add(packets);
        if self.next.distance_from(self.una) > self.highest.distance_from(self.una) {
            self.highest = self.next;
        }
        if self.retransmit_at.is_none() {
            self.retransmit_at = self.attributes.timeout.duration().map(|wait| now + wait);
        }
        Ok(Some(len))
    }

    /// The entry at the cursor is not in registered memory. It ends in its turn: those before it
    /// may still succeed.
    fn cannot_send(&mut self, results: &mut Results) -> Result<Option<usize>, Broken> {
        if self.cursor == 0 {
            self.fail(WcStatus::LocalProtection, results)?;
        } else if let Some(entry) = self.queue.get_mut(self.cursor) {
            entry.failed = Some(WcStatus::LocalProtection);
        }
        Ok(None)
    }
}

impl Entry {
    /// Packet `index` of a SEND or WRITE, and its payload's length.
    fn statement(&self, link: &Link, psn: Psn, index: u32, ask: bool) -> (Headers, usize) {
        let mtu = link.mtu.bytes() as u32;
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
            // Asked by `question`, never stated.
            Operation::Read { .. } | Operation::Atomic { .. } => {
                (Opcode::send(position, false), None, None)
            }
        };
        let mut headers = link.headers(opcode, psn);
        headers.bth.ack_request = ask;
        headers.bth.solicited = position.is_last() && self.flags.contains(SendFlags::SOLICITED);
        headers.reth = reth;
        headers.immediate = immediate.map(ImmDt);
        (headers, (self.len - index * mtu).min(mtu) as usize)
    }

    /// A READ request for the answers `index` and `packets - 1` after it, or an atomic.
    fn question(&self, link: &Link, psn: Psn, index: u32, packets: u32) -> Headers {
        let mtu = link.mtu.bytes() as u32;
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
                    // Wraps only where the peer refuses the range anyway.
                    addr: remote.addr.wrapping_add(u64::from(index * mtu)),
                    rkey: remote.rkey,
                    dma_len: (self.len - index * mtu).min(packets * mtu),
                };
                (Opcode::ReadRequest, Some(reth), None)
            }
            Operation::Send { .. } => (Opcode::ReadRequest, None, None),
        };
        let mut headers = link.headers(opcode, psn);
        headers.bth.ack_request = true;
        headers.reth = reth;
        headers.atomic = atomic;
        headers
    }
}
