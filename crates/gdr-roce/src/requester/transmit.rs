//! Transmission of request packets.

use super::congestion::Payloads;
use super::send_wqe::SendWqe;
use super::{ReadPiece, Requester};
use crate::attributes::ATOMICS_OF_OWN_KIND;
use crate::completion::WcStatus;
use crate::connection::{Connection, ConnectionFailed, Notifications, emit, emit_empty};
use crate::memory::{AccessError, AtomicOp, Memory, PayloadBy};
use crate::payload::MOST_MERGED;
use crate::psn::Psn;
use crate::request::{Operation, Remote, SendFlags};
use crate::timer::Time;
use crate::wire::{AtomicEth, Headers, Ieth, ImmDt, Opcode, Position, Reth, XrcEth};

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
        if self.peer_has_ended {
            return match self.send_queue.is_empty() {
                true => Ok(None),
                // Failing the first is enough: it moves the queue pair to ERR, which flushes the others.
                false => self
                    .fail(WcStatus::RetryExceeded, notifications)
                    .map(|()| None),
            };
        }
        // The peer still has no receive: it would refuse the packet, wasting a retry.
        if self.rnr_wait_until.is_some_and(|until| now < until) {
            return Ok(None);
        }
        self.rnr_wait_until = None;
        self.paced_until = None;
        // Ahead of new packets: an open gap stalls the peer, and with it the window.
        if !self.missing.is_empty() {
            if let Some(until) = self.congestion.wait(now, &self.round_trip) {
                self.paced_until = Some(until);
                return Ok(None);
            }
            return self.poll_missing(now, connection, memory, out, notifications);
        }
        let outstanding = self.next.distance_from(self.una);
        let window = self.window();
        let Some(wqe) = self.send_queue.get(self.cursor) else {
            return Ok(None);
        };
        // It completes with its error after the requests before it. Requests execute in order, so nothing after it is
        // sent.
        if wqe.failed.is_some() {
            return Ok(None);
        }
        if wqe.is_local() {
            if self.cursor > 0 || self.draining {
                return Ok(None);
            }
            self.execute_local(memory, notifications)?;
            // The next request, if any, has packets.
            return self.poll(now, connection, memory, out, notifications);
        }
        if outstanding >= window {
            self.congestion.limit_by_window();
            return Ok(None);
        }
        // Checked after the window: waiting for the window ends with an acknowledgement, and needs no timer.
        if let Some(until) = self.congestion.wait(now, &self.round_trip) {
            self.congestion.limit();
            self.paced_until = Some(until);
            return Ok(None);
        }
        let first = match wqe.first {
            Some(first) => first,
            None => {
                // A fenced request waits for the results of earlier READs and atomics.
                let fenced =
                    wqe.flags.contains(SendFlags::FENCE) && !self.outstanding_reads.is_empty();
                // SQD finishes requests that were started, and starts none (IBTA 10.3.1.5).
                if fenced || self.draining {
                    return Ok(None);
                }
                // Checks the whole message before its first packet: one that ends halfway would leave the peer inside
                // it.
                if wqe.check(memory).is_err() {
                    return self.cannot_send(notifications);
                }
                self.next
            }
        };
        let expects_response = wqe.expects_response();
        self.begin_after_pause(now);
        let index = self.next.distance_from(first);
        let written = match expects_response {
            true => self.write_response_request(now, connection, memory, index, out),
            false => self.write_next_part(now, connection, memory, index, out),
        };
        written.or_else(|_| self.cannot_send(notifications))
    }

    /// Returns how many packets may be unacknowledged now.
    pub(super) fn window(&self) -> u32 {
        match self.probe {
            // Until an answer shows whether the other packets are lost, only the first is retransmitted.
            Some(_) => 1,
            // The peer keeps packets beyond a gap, so it holds some of those that are unacknowledged, and reports with
            // them whether the gap is closed. The pacing limits the rate.
            None if self.missing.is_under_way() => {
                self.config.max_window.min(2 * self.congestion.window())
            }
            None => self.congestion.window(),
        }
    }

    /// Starts a round if nothing is outstanding: what the path carried before the pause may no longer hold.
    pub(super) fn begin_after_pause(&mut self, now: Time) {
        if self.highest == self.una {
            let idle_since = self.progress_at;
            self.congestion.restart(now, idle_since, &self.round_trip);
            self.progress_at = now;
            self.attempt_at = now;
        }
    }

    /// Returns whether the next packet is sent for the first time. False while retransmissions are outstanding: packets
    /// beyond a gap are acknowledged when it closes, so they cannot be timed, and the peer does not keep those that
    /// refer to their payload.
    fn is_new(&self) -> bool {
        self.next == self.highest && !self.missing.is_under_way()
    }

    /// Writes the packet at `index` of the READ or atomic at the cursor. Writes nothing if it has to wait.
    fn write_response_request(
        &mut self,
        now: Time,
        connection: &Connection,
        memory: &mut dyn Memory,
        index: u32,
        out: &mut [u8],
    ) -> Result<Option<usize>, AccessError> {
        let (window, outstanding) = (self.window(), self.next.distance_from(self.una));
        let Some(wqe) = self.send_queue.get_mut(self.cursor) else {
            return Ok(None);
        };
        // A repeated READ request ends where the original did, so that the peer finds it among its latest READs.
        let repeated = self.outstanding_reads.get(self.reads_sent);
        let packets = match repeated {
            Some(piece) => piece.last.distance_from(self.next) + 1,
            None => {
                let piece = self
                    .congestion
                    .read_share(self.config.read_packets, self.attributes.max_rd_atomic);
                (wqe.packets - index).min(piece)
            }
        };
        // With nothing outstanding no acknowledgement can make room, so the request is sent regardless.
        if outstanding > 0 && outstanding + packets > window {
            self.congestion.limit();
            return Ok(None);
        }
        // The peer has resources for only so many READs and atomics, and refuses more.
        let most = usize::from(self.attributes.max_rd_atomic);
        // A peer that runs this crate keeps more atomic results than the program permits, at 16 bytes each.
        let pipelined = self.is_of_own_kind && wqe.is_atomic();
        let most = match pipelined {
            true => most.max(ATOMICS_OF_OWN_KIND),
            false => most,
        };
        if self.reads_sent >= most {
            self.congestion.limit_reads();
            return Ok(None);
        }
        if repeated.is_none() {
            let (first, last) = (self.next, self.next.wrapping_add(packets - 1));
            self.outstanding_reads.push_back(ReadPiece {
                first,
                last,
                repeated: false,
            });
        }
        self.reads_sent += 1;
        let mut headers = wqe.read_request(connection, self.next, index, packets);
        headers.bth.filled = pipelined;
        wqe.first = Some(self.next.wrapping_sub(index));
        let offset = index * connection.mtu.bytes() as u32;
        let len = emit(&headers, wqe.response_request_payload(), out, |payload| {
            wqe.payload.fill(memory, offset, payload)
        })?;
        let is_last = index + packets == wqe.packets;
        self.cursor += usize::from(is_last);
        self.time_next(now);
        self.count_sent(now, packets);
        Ok(Some(len))
    }

    /// Writes the packet at `index` of the SEND or WRITE at the cursor, which stands for several if its payload is sent
    /// by reference.
    fn write_next_part(
        &mut self,
        now: Time,
        connection: &Connection,
        memory: &mut dyn Memory,
        index: u32,
        out: &mut [u8],
    ) -> Result<Option<usize>, AccessError> {
        let (mtu, is_new) = (connection.mtu, self.is_new());
        let Some(wqe) = self.send_queue.get(self.cursor) else {
            return Ok(None);
        };
        // A retransmitted packet carries its payload: after a gap the peer keeps nothing that refers to it.
        let merged = match is_new {
            true => {
                let offset = index * mtu.bytes() as u32;
                wqe.payload
                    .choose(memory, offset, MOST_MERGED, wqe.len, mtu)?
            }
            false => 0,
        };
        let (by, packets) = match merged {
            0 => (PayloadBy::Copy, 1),
            merged => (PayloadBy::Reference, merged),
        };
        // A shorter payload is copied by the receiver itself.
        if packets > self.config.read_packets {
            self.congestion.follow(Payloads::Merged);
        } else if by == PayloadBy::Reference {
            self.congestion.leave_carried();
        } else if is_new && index + 1 < wqe.packets {
            self.congestion.leave_merged();
        }
        let is_of_own_kind = self.is_of_own_kind;
        self.write_part(now, index, packets, |wqe, psn, ack_request| {
            let mut headers = wqe.request_packet(connection, psn, index, packets, ack_request);
            let len = wqe.request_payload(connection, index, packets);
            // Only full ones: the kernel splits a segmented send into datagrams of equal length.
            if is_of_own_kind && len == mtu.bytes() {
                headers.fill();
            }
            match by {
                PayloadBy::Reference => Ok(emit_empty(&headers, out)),
                PayloadBy::Copy => emit(&headers, len, out, |to| {
                    wqe.payload.fill(memory, index * mtu.bytes() as u32, to)
                }),
            }
        })
        .inspect(|_| {
            if by == PayloadBy::Reference {
                self.merged_until = Some(self.next);
            }
        })
    }

    /// Sends the packet of the SEND or WRITE at the cursor that stands for `packets` of them, from `index` on, and
    /// accounts for it. `write` writes it, with this PSN; `true` requests an acknowledgement.
    // Inlined for packets that are written as their requests are posted.
    #[inline(always)]
    pub(super) fn write_part<E>(
        &mut self,
        now: Time,
        index: u32,
        packets: u32,
        write: impl FnOnce(&SendWqe, Psn, bool) -> Result<usize, E>,
    ) -> Result<Option<usize>, E> {
        let window = self.window();
        let outstanding = self.next.distance_from(self.una);
        let interval = self.congestion.share(self.config.ack_request_interval);
        let Some(wqe) = self.send_queue.get_mut(self.cursor) else {
            return Ok(None);
        };
        let since_ack_request = self.since_ack_request + packets;
        let is_last = index + packets == wqe.packets;
        // The program does not see an unsignalled request complete.
        let is_waited_for =
            wqe.flags.contains(SendFlags::SIGNALLED) || !self.is_of_own_kind || self.draining;
        // The last packet that fits the window must request one, or both ends would wait. So must the first packet of a
        // connection, whose round trip sets the timer.
        let ack_request = since_ack_request >= interval
            || is_last && is_waited_for
            || outstanding + packets >= window
            || self.round_trip.smoothed().is_none() && self.timed.is_none();
        // The first transmission fixes the request's PSNs for all retransmissions, as the peer recognizes duplicates by
        // PSN.
        wqe.first = Some(self.next.wrapping_sub(index));
        let written = write(wqe, self.next, ack_request)?;
        self.cursor += usize::from(is_last);
        self.since_ack_request = since_ack_request;
        if ack_request {
            self.since_ack_request = 0;
            self.time_next(now);
        }
        self.count_sent(now, packets);
        Ok(Some(written))
    }

    /// Times the next packet, which requests an acknowledgement; the answer to another one could wait for a later
    /// packet. Only a first transmission is timed, as the answer to a retransmitted packet may be to either.
    fn time_next(&mut self, now: Time) {
        if self.timed.is_none() && self.is_new() {
            self.timed = Some((self.next, now));
        }
    }

    /// Accounts for `packets` that were sent.
    fn count_sent(&mut self, now: Time, packets: u32) {
        self.congestion.sent(now, packets, &self.round_trip);
        self.next = self.next.wrapping_add(packets);
        // Compared by distance from `una`, as PSNs wrap around.
        if self.next.distance_from(self.una) > self.highest.distance_from(self.una) {
            self.highest = self.next;
        }
        // A single timer covers all outstanding packets: it starts when none is running (RFC 6298, 5.1).
        if self.retransmit_at.is_none() {
            self.retransmit_at = self.retransmit_time(now);
        }
    }

    /// Executes requests at the head of the send queue that need no packet.
    pub(super) fn execute_local(
        &mut self,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        loop {
            let executed = match self.send_queue.front().map(|wqe| wqe.operation) {
                Some(Operation::Bind { rkey }) => {
                    memory.bind(rkey).map_err(|_| WcStatus::WindowBind)
                }
                Some(Operation::Invalidate { rkey }) => memory
                    .invalidate(rkey)
                    .map_err(|_| WcStatus::LocalOperation),
                _ => return Ok(()),
            };
            match executed {
                Ok(()) => self.complete(notifications),
                Err(status) => self.fail(status, notifications)?,
            }
        }
    }

    /// Fails the request at the cursor because its segments are not registered. Earlier requests may still succeed, so
    /// it completes after them.
    fn cannot_send(
        &mut self,
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        self.cannot_send_at(self.cursor, notifications)
    }

    /// Fails the request at `index` of the send queue likewise.
    pub(super) fn cannot_send_at(
        &mut self,
        index: usize,
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        if index == 0 {
            self.fail(WcStatus::LocalProtection, notifications)?;
        } else if let Some(wqe) = self.send_queue.get_mut(index) {
            wqe.failed = Some(WcStatus::LocalProtection);
        }
        Ok(None)
    }
}

impl SendWqe {
    /// Returns the headers of the packet of a SEND or WRITE that stands for `merged` packets from `index` on.
    pub(super) fn request_packet(
        &self,
        connection: &Connection,
        psn: Psn,
        index: u32,
        merged: u32,
        ack_request: bool,
    ) -> Headers {
        let position = Position::of(index, merged, self.packets);
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
            Operation::SendInvalidate { .. } => (Opcode::send_invalidate(position), None, None),
            // Unreachable: `read_request` builds these packets, or the operation has none.
            Operation::Read { .. }
            | Operation::Atomic { .. }
            | Operation::AtomicWrite { .. }
            | Operation::Flush { .. }
            | Operation::Bind { .. }
            | Operation::Invalidate { .. } => (Opcode::send(position, false), None, None),
        };
        let mut headers = connection.headers(opcode, psn);
        headers.xrceth = Some(XrcEth(self.receives));
        headers.bth.ack_request = ack_request;
        // Only the last packet completes a receive, so only it can wake the program.
        headers.bth.solicited = position.is_last() && self.flags.contains(SendFlags::SOLICITED);
        headers.reth = reth;
        headers.immediate = immediate.map(ImmDt);
        headers.invalidate = match self.operation {
            Operation::SendInvalidate { rkey } if position.is_last() => Some(Ieth(rkey)),
            _ => None,
        };
        headers
    }

    /// Returns the payload length of that packet.
    pub(super) fn request_payload(
        &self,
        connection: &Connection,
        index: u32,
        merged: u32,
    ) -> usize {
        let mtu = connection.mtu.bytes() as u32;
        (self.len - index * mtu).min(merged * mtu) as usize
    }

    /// Returns the payload length of a request that is answered by a dedicated response.
    pub(super) const fn response_request_payload(&self) -> usize {
        match self.operation {
            Operation::AtomicWrite { .. } => self.len as usize,
            _ => 0,
        }
    }

    /// Returns the headers of a request that is answered by a dedicated response; for a READ, it asks for `packets`
    /// responses from `index` on.
    pub(super) fn read_request(
        &self,
        connection: &Connection,
        psn: Psn,
        index: u32,
        packets: u32,
    ) -> Headers {
        let mtu = connection.mtu.bytes() as u32;
        let reth = |remote: Remote, dma_len| Reth {
            addr: remote.addr,
            rkey: remote.rkey,
            dma_len,
        };
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
            Operation::AtomicWrite { remote } => {
                (Opcode::AtomicWrite, Some(reth(remote, self.len)), None)
            }
            Operation::Flush { remote, len, .. } => (Opcode::Flush, Some(reth(remote, len)), None),
            Operation::Read { remote } | Operation::Write { remote, .. } => {
                let reth = Reth {
                    // Wraps only if the range is invalid, and then the peer refuses it.
                    addr: remote.addr.wrapping_add(u64::from(index * mtu)),
                    rkey: remote.rkey,
                    dma_len: (self.len - index * mtu).min(packets * mtu),
                };
                (Opcode::ReadRequest, Some(reth), None)
            }
            _ => (Opcode::ReadRequest, None, None),
        };
        let mut headers = connection.headers(opcode, psn);
        headers.xrceth = Some(XrcEth(self.receives));
        headers.bth.ack_request = true;
        headers.reth = reth;
        headers.feth = match self.operation {
            Operation::Flush { what, .. } => Some(what),
            _ => None,
        };
        headers.atomic = atomic;
        headers
    }
}
