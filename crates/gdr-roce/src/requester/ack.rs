//! Processing of acknowledgements, NAKs, READ responses and atomic responses.

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

/// How much of the back-off of the timer is kept until a round trip is measured again (Karn's
/// algorithm, RFC 6298, 3).
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
            // The request was acknowledged before, or was never sent.
            return Ok(());
        }
        // Other implementations leave this reserved bit 0, so one packet with it is enough to know
        // the peer; a READ response without it changes nothing.
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
                // An ACK stands for all packets up to its own, so that a lost one needs no
                // repetition (IBTA 9.7.5).
                let end = psn.wrapping_add(1);
                self.acknowledge(now, end, notifications)?;
                // A READ or atomic before `end` blocks the acknowledgement: its response is lost.
                if self.una == end {
                    Ok(())
                } else if self.recovery == LossRecovery::Selective {
                    // The peer has executed the requests, so only the responses that are lost are
                    // requested again.
                    self.request_missing(now, end);
                    Ok(())
                } else {
                    self.recover_before(psn, now, notifications)
                }
            }
            Syndrome::Nak(NakCode::SequenceError) => {
                self.statistics.sequence_naks_received += 1;
                match (self.recovery, self.recovery_now()) {
                    // A NAK names the first packet that is missing, so it acknowledges all before it.
                    (LossRecovery::GoBackN, _) => {
                        self.acknowledge(now, psn, notifications)?;
                        self.recover(now, notifications)
                    }
                    (LossRecovery::Selective, LossRecovery::Selective) => {
                        // Nothing before it is acknowledged: the peer reports every gap, and an
                        // earlier one may still be open.
                        self.resend(now, psn);
                        Ok(())
                    }
                    // It reports each packet that it misses, and not only the first one.
                    (LossRecovery::Selective, LossRecovery::GoBackN) => {
                        self.recover_before(psn, now, notifications)
                    }
                }
            }
            Syndrome::Nak(code) => {
                // The status is about the request at `psn`. As long as a response to an earlier READ is missing,
                // that READ must complete first, so its loss is recovered before the request fails.
                self.acknowledge(now, psn, notifications)?;
                if self.una != psn {
                    return self.recover(now, notifications);
                }
                let status = match code {
                    NakCode::RemoteAccess => WcStatus::RemoteAccess,
                    NakCode::RemoteOperation => WcStatus::RemoteOperation,
                    // A sequence error does not reach this match: an arm above handles it.
                    NakCode::InvalidRequest | NakCode::SequenceError => {
                        WcStatus::RemoteInvalidRequest
                    }
                };
                self.fail(status, notifications)
            }
            Syndrome::ReceiverNotReady(timer) => {
                self.statistics.rnr_naks_received += 1;
                // As every NAK, it acknowledges the requests before the refused one (IBTA 9.7.5).
                self.acknowledge(now, psn, notifications)?;
                if self.una != psn {
                    return self.recover(now, notifications);
                }
                self.receiver_not_ready(now, timer, notifications)
            }
            // What a later version means by it is unknown, so the packet is dropped as if it were
            // lost.
            Syndrome::Reserved(_) => Ok(()),
        }
    }

    /// Completes the requests before `end`, up to the first READ or atomic whose response is
    /// missing. `end` is at most `highest`.
    fn acknowledge(
        &mut self,
        now: Time,
        end: Psn,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let before = self.una;
        self.advance(end, notifications);
        // Without progress the timer and the retry count must not begin again: a peer that only
        // repeats an old ACK would keep a dead connection alive.
        if self.una == before {
            Ok(())
        } else {
            self.progress(now, before, notifications)
        }
    }

    /// Completes requests as far as the requests before `end` were executed and responses are placed.
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
                // A later acknowledgement does not stand for the bytes: without its responses a READ has nothing
                // to complete with.
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
            // PSNs are numbers modulo 2^24: a distance of half of them or more is one backwards, of an
            // acknowledgement that is older than `una`.
            if executed == 0 || executed >= PSN_WINDOW {
                break;
            }
            // Part of a message: its packets leave the window, and the request stays until the last one.
            if wqe_end.distance_from(self.una) > executed {
                self.una = end;
                break;
            }
            self.una = wqe_end;
            self.complete(notifications);
        }
    }

    /// Notes that the peer has executed all requests before `end`; returns up to where it has.
    fn execute_before(&mut self, end: Psn) -> Psn {
        // The network may reorder acknowledgements, so a later one may be for less.
        if end.distance_from(self.una) > self.executed.distance_from(self.una) {
            self.executed = end;
        }
        self.executed
    }

    /// Places the payload of a READ response or an atomic response.
    fn read_or_atomic_response(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        connection: &Connection,
        memory: &mut dyn Memory,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let psn = packet.bth().psn;
        // A response acknowledges all requests before it.
        self.acknowledge(now, psn, notifications)?;
        if self.una != psn {
            if self.recovery == LossRecovery::GoBackN {
                return self.recover_before(psn, now, notifications);
            }
            self.request_missing(now, psn);
            // A repeated request may be answered twice; the first copy counts.
            if self.arrivals.contains(psn) {
                return Ok(());
            }
        }
        // A duplicate of a response whose request has completed.
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
                // A packet may stand for many by reference, but for no more than `MOST_MERGED`: a
                // longer one fails the check of its length below.
                let expected = (wqe.len - offset).min(packets.min(MOST_MERGED) * mtu);
                let in_order = self.may_begin(psn).contains(&position.is_first())
                    && self.may_end(last).contains(&position.is_last());
                (offset, expected, in_order)
            }
            (Operation::Atomic { .. }, Some(_)) => (0, wqe.len, true),
            (Operation::AtomicWrite { .. } | Operation::Flush { .. }, None) => {
                (0, 0, position.is_first() && position.is_last())
            }
            // A response to the other kind of request fails the check below: the peer broke the
            // protocol.
            (Operation::Read { .. }, Some(_)) | (Operation::Atomic { .. }, None) => (0, 0, false),
            // The request expects an acknowledgement only.
            _ => return Ok(()),
        };
        // Middle responses of a READ have no AETH.
        let granted = packet
            .aeth()
            .is_none_or(|aeth| matches!(aeth.syndrome, Syndrome::Ack { .. }));
        // Before any byte is placed: an invalid response must not change the memory of the program.
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
                // It arrives when the copy is over and the packet is passed again: until then it is
                // not placed.
                self.congestion.follow(Payloads::Merged);
                return Ok(());
            }
            Err(_) => return self.fail(WcStatus::LocalProtection, notifications),
        }
        match contents {
            _ if packets > 1 => self.congestion.leave_carried(),
            // The rest of a message may be short enough to be carried, and says nothing about long
            // ones.
            _ if position.is_last() => {}
            Contents::Bytes(_) => self.congestion.follow(Payloads::Carried),
            Contents::At(_) => self.congestion.follow(Payloads::InPlace),
        }
        self.arrivals.insert(psn, packets);
        let before = self.una;
        // It came after a gap: `una` stays until the missing response arrives.
        if before != psn {
            return Ok(());
        }
        self.advance(psn, notifications);
        self.progress(now, before, notifications)
    }

    /// The request that `psn` belongs to, and the packet's place in it.
    fn request_at(&self, psn: Psn) -> Option<(u32, &SendWqe)> {
        self.send_queue.iter().find_map(|wqe| {
            let index = psn.distance_from(wqe.first?);
            (index < wqe.packets).then_some((index, wqe))
        })
    }

    /// Completes the first request of the send queue.
    pub(super) fn complete(&mut self, notifications: &mut Notifications) {
        if let Some(wqe) = self.send_queue.front() {
            if wqe.flags.contains(SendFlags::SIGNALLED) {
                notifications
                    .completions
                    .push_back(wqe.completion(WcStatus::Success, self.qpn));
            }
            // Only now: it is long, and taken out first it would be copied.
            self.send_queue.pop_front();
            // The cursors are places in the queue, whose front has just gone.
            self.cursor = self.cursor.saturating_sub(1);
            if let Some(probe) = &mut self.probe {
                probe.cursor = probe.cursor.saturating_sub(1);
            }
        }
    }

    /// Updates timers and retry budgets after `una` has advanced from `before`.
    fn progress(
        &mut self,
        now: Time,
        before: Psn,
        notifications: &mut Notifications,
    ) -> Result<(), ConnectionFailed> {
        let moved = self.una.distance_from(before);
        if self.next.distance_from(before) < moved {
            // Packets that were about to be sent again are acknowledged.
            self.next = self.una;
            self.restarted_at = Some(self.una);
            self.cursor = 0;
            self.reads_sent = 0;
        }
        // Before the READs below are counted: it restores their number from before the timer
        // expired.
        self.end_probe(now, before);
        while self
            .outstanding_reads
            .front()
            .is_some_and(|piece| piece.last.distance_from(before) < moved)
        {
            self.outstanding_reads.pop_front();
            // After a rewind some of them may not have been sent again, so the count may be at 0.
            self.reads_sent = self.reads_sent.saturating_sub(1);
        }
        if let Some((psn, sent)) = self.timed
            && psn.distance_from(before) < moved
        {
            // The timed packet was sent once only, so this acknowledgement answers that transmission (Karn's
            // algorithm, RFC 6298, section 3).
            self.timed = None;
            // A measurement ends the back-off of the timer (RFC 6298, 5).
            self.expirations = 0;
            self.round_trip.sample(now, now.saturating_since(sent));
        }
        // On a path that loses most packets no packet may ever be timed; an approximate round trip
        // is better than none.
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
        // Both marks are places in the window. Left before `una`, their distance would be almost
        // 2^24.
        for mark in [&mut self.executed, &mut self.examined] {
            if mark.distance_from(before) < moved {
                *mark = self.una;
            }
        }
        self.congestion.acknowledge(now, moved, &self.round_trip);
        self.resend_next(now);
        self.recovering = false;
        // The limits count attempts without progress, so progress gives all of them back.
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
        // A request that cannot be sent waits until all before it are complete. Now it is the first
        // one.
        match self.send_queue.front().and_then(|wqe| wqe.failed) {
            Some(status) => self.fail(status, notifications),
            None => Ok(()),
        }
    }

    /// Goes on after the packets that were sent before the timer expired, unless they are lost.
    fn end_probe(&mut self, now: Time, before: Psn) {
        let Some(probe) = self.probe.take() else {
            return;
        };
        let only = self.una == probe.psn.wrapping_add(1);
        if only && probe.next != self.una {
            // The peer has the packet that was sent again and none after it.
            self.timed = None;
            self.congestion
                .lose(now, 0, self.recovery, &self.round_trip);
        } else if probe.next.distance_from(before) > self.next.distance_from(before) {
            self.next = probe.next;
            self.cursor = probe.cursor;
            self.reads_sent = probe.reads_sent;
        }
    }

    /// Retransmits because the peer answered the packet at `psn` and an answer before it is missing,
    /// unless that packet was sent before the latest rewind: what is sent since may still come.
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
        // Packets that were under way when the first one was refused are refused, too: one failed
        // attempt, which counts once.
        if self.rnr_wait_until.is_some() {
            return Ok(());
        }
        match &mut self.rnr_retries_left {
            Some(0) => return self.fail(WcStatus::RnrRetryExceeded, notifications),
            Some(left) => *left -= 1,
            // `None` is the count 7 of the attributes: without a limit.
            None => {}
        }
        // An RNR NAK shows that the peer is alive, so it resets the retry count.
        self.retries = 0;
        self.expirations = 0;
        self.progress_at = now;
        self.attempt_at = now;
        // The peer dropped the refused packet and all after it.
        self.rewind();
        self.rnr_wait_until = Some(now + timer.duration());
        Ok(())
    }
}
