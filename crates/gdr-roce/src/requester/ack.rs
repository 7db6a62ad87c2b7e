//! Processing of acknowledgements, NAKs, and READ and atomic responses.

use super::Requester;
use super::congestion::Payloads;
use super::send_wqe::SendWqe;
use crate::completion::WcStatus;
use crate::connection::{Connection, ConnectionFailed, LossRecovery, Notifications};
use crate::contents::Contents;
use crate::memory::{AccessError, Memory};
use crate::payload::MOST_MERGED;
use crate::psn::{PSN_WINDOW, Psn};
use crate::request::{Operation, SendFlags};
use crate::timer::{RnrTimer, Time};
use crate::wire::{NakCode, Packet, Syndrome};

/// How many doublings of the timer survive progress, until a round trip is measured again (Karn's algorithm, RFC 6298,
/// 3).
const BACKOFF_KEPT: u32 = 2;

impl Requester {
    /// Processes a response packet.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let psn = packet.bth().psn;
        if psn.distance_from(self.una) >= self.highest.distance_from(self.una) {
            // The request was acknowledged before, or never sent.
            return Ok(());
        }
        // Other implementations leave this reserved bit clear, so a single packet that sets it identifies the peer; a
        // READ response without it changes nothing.
        self.is_of_own_kind |= packet.bth().filled;
        let opcode = packet.opcode();
        if opcode.is_read_response() || opcode.has_atomic_ack() {
            return self.read_or_atomic_response(now, packet, connection, memory, notifications);
        }
        let Some(aeth) = packet.aeth() else {
            return Ok(());
        };
        match aeth.syndrome {
            Syndrome::Ack { .. } => {
                // ACKs are cumulative: one covers all packets up to its PSN, so a lost ACK needs no retransmission
                // (IBTA 9.7.5).
                let end = psn.wrapping_add(1);
                self.acknowledge(now, end, notifications)?;
                // A READ or atomic before `end` blocks the ACK: its response is lost.
                if self.una == end {
                    Ok(())
                } else if self.recovery == LossRecovery::Selective {
                    // The peer has executed the requests, so only the lost responses are requested again.
                    self.request_missing(now, end);
                    Ok(())
                } else {
                    self.recover_before(psn, now, notifications)
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.statistics.sequence_naks_received += 1;
                match (self.recovery, self.recovery_now()) {
                    // A NAK carries the PSN of the first missing packet, and thereby acknowledges everything before it.
                    (LossRecovery::GoBackN, _) => {
                        self.acknowledge(now, psn, notifications)?;
                        self.recover(now, notifications)
                    }
                    (LossRecovery::Selective, LossRecovery::Selective) => {
                        // Acknowledges nothing: the peer reports every gap, and an earlier one may still be open.
                        self.resend(now, psn);
                        Ok(())
                    }
                    // The peer reports every missing packet, not only the first.
                    (LossRecovery::Selective, LossRecovery::GoBackN) => {
                        self.recover_before(psn, now, notifications)
                    }
                }
            }
            Syndrome::Nak(code) => {
                // The status belongs to the request at `psn`. While the response to an earlier READ is missing, that
                // READ must complete first, so its loss is recovered before the request fails.
                self.acknowledge(now, psn, notifications)?;
                if self.una != psn {
                    return self.recover(now, notifications);
                }
                let status = match code {
                    NakCode::RemoteAccess => WcStatus::RemoteAccess,
                    NakCode::RemoteOperation => WcStatus::RemoteOperation,
                    // A sequence error never gets here: an arm above handles it.
                    NakCode::InvalidRequest | NakCode::SequenceError => {
                        WcStatus::RemoteInvalidRequest
                    }
                };
                self.fail(status, notifications)
            }
            Syndrome::ReceiverNotReady(timer) => {
                self.statistics.rnr_naks_received += 1;
                // Like every NAK, it acknowledges the requests before the refused one (IBTA 9.7.5).
                self.acknowledge(now, psn, notifications)?;
                if self.una != psn {
                    return self.recover(now, notifications);
                }
                self.receiver_not_ready(now, timer, notifications)
            }
            // Its meaning is unknown here, so the packet is dropped as if it were lost.
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// Completes the requests before `end`, up to the first READ or atomic whose response is missing. `end` must not be
    /// after `highest`.
    fn acknowledge(
        &mut self,
        now: Time,
        end: Psn,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let before = self.una;
        self.advance(end, notifications);
        // Only progress restarts the timer and the retry count. Otherwise a peer that repeats an old ACK could keep a
        // dead connection alive.
        if self.una == before {
            Ok(())
        } else {
            self.progress(now, before, notifications)
        }
    }

    /// Completes requests, as far as they precede `end`, were executed, and have their responses placed.
    fn advance(&mut self, end: Psn, notifications: &mut Notifications) {
        let end = match self.recovery {
            LossRecovery::GoBackN => end,
            LossRecovery::Selective => self.execute_before(end),
        };
        while let Some(wqe) = self.send_queue.front()
            && let Some(first) = wqe.first
        {
            let wqe_end = first.wrapping_add(wqe.packets);
            if wqe.expects_response() {
                self.arrivals.advance(self.una);
                let placed = self.arrivals.placed();
                // A later ACK does not replace the payload: without its responses a READ cannot complete.
                if placed == 0 {
                    break;
                }
                let left = wqe_end.distance_from(self.una);
                self.una = self.una.wrapping_add(placed.min(left));
                if self.una == wqe_end {
                    self.complete(notifications);
                }
                continue;
            }
            let executed = end.distance_from(self.una);
            // PSNs are modulo 2^24, so a distance of half of that or more points backwards: the ACK is older than
            // `una`.
            if executed == 0 || executed >= PSN_WINDOW {
                break;
            }
            // The ACK covers part of a message: its packets leave the window, while the request stays until the last
            // one.
            if wqe_end.distance_from(self.una) > executed {
                self.una = end;
                break;
            }
            self.una = wqe_end;
            self.complete(notifications);
        }
    }

    /// Records that the peer has executed all requests before `end`. Returns the PSN up to which it has.
    fn execute_before(&mut self, end: Psn) -> Psn {
        // Acknowledgements may be reordered, so a later one may cover less.
        if end.distance_from(self.una) > self.executed.distance_from(self.una) {
            self.executed = end;
        }
        self.executed
    }

    /// Places the payload of a READ or atomic response.
    fn read_or_atomic_response(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let psn = packet.bth().psn;
        // A response acknowledges all earlier requests.
        self.acknowledge(now, psn, notifications)?;
        if self.una != psn {
            if self.recovery == LossRecovery::GoBackN {
                return self.recover_before(psn, now, notifications);
            }
            self.request_missing(now, psn);
            // A retransmitted request may be answered twice; the first copy counts.
            if self.arrivals.contains(psn) {
                return Ok(());
            }
        }
        // A duplicate, whose request has completed.
        let Some((index, wqe)) = self.request_at(psn) else {
            return Ok(());
        };
        let original = packet.atomic_ack().map(|ack| ack.original.to_ne_bytes());
        let contents = original
            .as_ref()
            .map_or(packet.contents(), |bytes| Contents::Bytes(bytes));
        let position = packet.opcode().position();
        let packets = match original {
            None => contents.packets(connection.mtu),
            Some(_) => 1,
        };
        let last = psn.wrapping_add(packets - 1);
        let (offset, expected, in_order) = match (wqe.operation, original) {
            (Operation::Read { .. }, None) => {
                let mtu = connection.mtu.bytes() as u32;
                let offset = index * mtu;
                // One packet may stand for many by reference, but for at most `MOST_MERGED`; a longer one fails the
                // length check below.
                let expected = (wqe.len - offset).min(packets.min(MOST_MERGED) * mtu);
                let in_order = self.may_begin(psn).contains(&position.is_first())
                    && self.may_end(last).contains(&position.is_last());
                (offset, expected, in_order)
            }
            (Operation::Atomic { .. }, Some(_)) => (0, wqe.len, true),
            (Operation::AtomicWrite { .. } | Operation::Flush { .. }, None) => {
                (0, 0, position.is_first() && position.is_last())
            }
            // The response does not match the request's kind, which is a protocol violation and fails the check below.
            (Operation::Read { .. }, Some(_)) | (Operation::Atomic { .. }, None) => (0, 0, false),
            // The request expects only an acknowledgement.
            _ => return Ok(()),
        };
        // Middle READ responses have no AETH.
        let granted = packet
            .aeth()
            .is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        // Checked before any byte is placed: an invalid response must not change the program's memory.
        if !in_order || !granted || contents.len() != expected as usize {
            return self.fail(WcStatus::BadResponse, notifications);
        }
        let placed = match contents.is_empty() {
            true => Ok(()),
            false => wqe.payload.place(memory, offset, contents),
        };
        match placed {
            Ok(()) => {}
            Err(AccessError::NotYet) => {
                // Not placed yet: the packet is passed in again once the copy has finished, and counts as arrived then.
                self.congestion.follow(Payloads::Merged);
                return Ok(());
            }
            Err(_) => return self.fail(WcStatus::LocalProtection, notifications),
        }
        match contents {
            _ if packets > 1 => self.congestion.leave_carried(),
            // The tail of a message may be carried only because it is short, which reveals nothing about long messages.
            _ if position.is_last() => {}
            Contents::Bytes(_) => self.congestion.follow(Payloads::Carried),
            Contents::At(_) => self.congestion.follow(Payloads::InPlace),
        }
        self.arrivals.insert(psn, packets);
        let before = self.una;
        // Placed beyond a gap: `una` stays until the missing response arrives.
        if before != psn {
            return Ok(());
        }
        self.advance(psn, notifications);
        self.progress(now, before, notifications)
    }

    /// Returns the request that `psn` belongs to, and the packet's index in it.
    fn request_at(&self, psn: Psn) -> Option<(u32, &SendWqe)> {
        self.send_queue.iter().find_map(|wqe| {
            let index = psn.distance_from(wqe.first?);
            (index < wqe.packets).then_some((index, wqe))
        })
    }

    /// Completes the request at the head of the send queue.
    pub(super) fn complete(&mut self, notifications: &mut Notifications) {
        if let Some(wqe) = self.send_queue.front() {
            if wqe.flags.contains(SendFlags::SIGNALLED) {
                notifications
                    .completions
                    .push_back(wqe.completion(WcStatus::Success, self.qpn));
            }
            // Popped last: the entry is large, and removing it first would copy it.
            self.send_queue.pop_front();
            // The cursors are indexes into the queue, which has just lost its head.
            self.cursor = self.cursor.saturating_sub(1);
            if let Some(probe) = &mut self.probe {
                probe.cursor = probe.cursor.saturating_sub(1);
            }
        }
    }

    /// Resets timers and retry budgets after `una` has advanced from `before`.
    fn progress(
        &mut self,
        now: Time,
        before: Psn,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let moved = self.una.distance_from(before);
        if self.next.distance_from(before) < moved {
            // Packets queued for retransmission have been acknowledged.
            self.next = self.una;
            self.restarted_at = Some(self.una);
            self.cursor = 0;
            self.reads_sent = 0;
        }
        // Before the READs below are counted, as it restores their number from before the timer expired.
        self.end_probe(now, before);
        while self
            .outstanding_reads
            .front()
            .is_some_and(|piece| piece.last.distance_from(before) < moved)
        {
            self.outstanding_reads.pop_front();
            // After a rewind, some may not have been retransmitted, so the count may already be 0.
            self.reads_sent = self.reads_sent.saturating_sub(1);
        }
        if let Some((psn, sent)) = self.timed
            && psn.distance_from(before) < moved
        {
            // The timed packet was sent only once, so this acknowledges that transmission (Karn's algorithm, RFC 6298,
            // 3).
            self.timed = None;
            // A measurement ends the timer's backoff (RFC 6298, 5).
            self.expirations = 0;
            self.round_trip.sample(now, now.saturating_since(sent));
        }
        // On a path that loses most packets, none may ever qualify for timing; an approximate round trip is better than
        // none.
        if let Some(sent) = self.missing.resent_at(before)
            && self.round_trip.guess(now.saturating_since(sent))
        {
            self.expirations = 0;
        }
        self.merged_until = self
            .merged_until
            .filter(|until| until.distance_from(before) > moved);
        self.missing.acknowledge(before, moved);
        self.arrivals.advance(self.una);
        // Both marks must stay in the window: before `una`, their distance would be almost 2^24.
        for mark in [&mut self.executed, &mut self.examined] {
            if mark.distance_from(before) < moved {
                *mark = self.una;
            }
        }
        self.congestion.acknowledge(now, moved, &self.round_trip);
        self.resend_next(now);
        self.recovering = false;
        // The limits count attempts without progress, so progress resets them.
        self.retries = 0;
        self.expirations = self.expirations.min(BACKOFF_KEPT);
        self.progress_at = now;
        self.attempt_at = now;
        self.rnr_retries_left = self.attributes.rnr_retry.times();
        self.rnr_wait_until = None;
        self.retransmit_at = if self.una == self.highest {
            None
        } else {
            self.retransmit_time(now)
        };
        // A request that cannot be sent waits for all earlier ones. It is now at the head.
        match self.send_queue.front().and_then(|wqe| wqe.failed) {
            Some(status) => self.fail(status, notifications),
            None => Ok(()),
        }
    }

    /// Resumes after the packets that were sent before the timer expired, unless they are lost.
    fn end_probe(&mut self, now: Time, before: Psn) {
        let Some(probe) = self.probe.take() else {
            return;
        };
        let only = self.una == probe.psn.wrapping_add(1);
        if only && probe.next != self.una {
            // The peer has the retransmitted packet and nothing after it.
            self.timed = None;
            self.congestion
                .lose(now, 0, self.recovery, &self.round_trip);
        } else if probe.next.distance_from(before) > self.next.distance_from(before) {
            self.next = probe.next;
            self.cursor = probe.cursor;
            self.reads_sent = probe.reads_sent;
        }
    }

    /// Retransmits because the peer answered the packet at `psn` but an earlier answer is missing. Does nothing if that
    /// packet was sent before the latest rewind, as answers to packets sent since may still arrive.
    fn recover_before(
        &mut self,
        psn: Psn,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        if psn.distance_from(self.una) < self.next.distance_from(self.una) {
            self.recover(now, notifications)
        } else {
            Ok(())
        }
    }

    /// Retransmits after a loss, unless a retransmission is in progress.
    fn recover(
        &mut self,
        now: Time,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        if self.recovering {
            Ok(())
        } else {
            self.retry(now, notifications)
        }
    }

    fn receiver_not_ready(
        &mut self,
        now: Time,
        timer: RnrTimer,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        // Packets in flight when the first one was refused are refused as well. Together they count as one failed
        // attempt.
        if self.rnr_wait_until.is_some() {
            return Ok(());
        }
        match &mut self.rnr_retries_left {
            Some(0) => return self.fail(WcStatus::RnrRetryExceeded, notifications),
            Some(left) => *left -= 1,
            // `None` is retry count 7 of the attributes: no limit.
            None => {}
        }
        // An RNR NAK shows that the peer is alive, so the retry count restarts.
        self.retries = 0;
        self.expirations = 0;
        self.progress_at = now;
        self.attempt_at = now;
        // The peer dropped the refused packet and everything after it.
        self.rewind();
        self.rnr_wait_until = Some(now + timer.duration());
        Ok(())
    }
}
