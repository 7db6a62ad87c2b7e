//! Selective retransmission: only the packets that the peer misses are retransmitted.

use std::collections::VecDeque;

use super::{ReadPiece, Requester};
use crate::connection::{Connection, ConnectionFailed, Notifications, emit};
use crate::memory::Memory;
use crate::psn::{PSN_WINDOW, Psn};
use crate::timer::Time;

/// Packets that the peer reported as missing.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Waiting for retransmission.
    queue: VecDeque<Psn>,
    /// Retransmitted, with the time of the retransmission.
    resent: VecDeque<(Psn, Time)>,
}

impl Missing {
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.resent.clear();
    }

    /// Removes the `packets` packets from `first` on, which have been acknowledged.
    pub(super) fn acknowledge(&mut self, first: Psn, packets: u32) {
        // In the common case without losses, this is two comparisons.
        if !self.queue.is_empty() || !self.resent.is_empty() {
            self.queue.retain(|psn| psn.distance_from(first) >= packets);
            self.resent
                .retain(|(psn, _)| psn.distance_from(first) >= packets);
        }
    }

    /// Returns whether nothing waits for retransmission.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns when the packet at `psn` was last retransmitted.
    pub(super) fn resent_at(&self, psn: Psn) -> Option<Time> {
        let same = self.resent.iter().find(|(sent, _)| *sent == psn);
        same.map(|(_, at)| *at)
    }

    /// Returns whether any retransmitted packet is unacknowledged.
    pub(super) fn is_under_way(&self) -> bool {
        !self.resent.is_empty()
    }
}

impl Requester {
    /// Queues the packet at `psn` for retransmission, because the peer misses it. Does nothing if it was retransmitted
    /// less than a round trip ago, as that copy may still be in flight.
    pub(super) fn resend(&mut self, now: Time, psn: Psn) {
        // Acknowledged since, or about to be retransmitted after a rewind anyway.
        if psn.distance_from(self.una) >= self.next.distance_from(self.una) {
            return;
        }
        if let Some(psn) = self.first_of_request(psn) {
            self.resend_at(now, psn);
        }
    }

    /// Retransmits the first unacknowledged packet if it was retransmitted before: an acknowledgement just up to it
    /// shows that the retransmission was lost, too.
    pub(super) fn resend_next(&mut self, now: Time) {
        if self.missing.resent_at(self.una).is_some() {
            self.resend(now, self.una);
        }
    }

    /// Like [`Requester::resend`], without moving `psn` to the first missing packet of its READ.
    fn resend_at(&mut self, now: Time, psn: Psn) {
        let smoothed = self.round_trip.smoothed().unwrap_or_default();
        let resent = self
            .missing
            .resent
            .iter()
            .position(|(sent, _)| *sent == psn);
        if let Some(index) = resent {
            // A retransmission is answered after a round trip: an earlier report was sent before the peer had it.
            let on_its_way = |(_, at): &(Psn, Time)| now.saturating_since(*at) < smoothed;
            if self.missing.resent.get(index).is_some_and(on_its_way) {
                return;
            }
            self.missing.resent.remove(index);
        }
        // Packets beyond a gap are acknowledged when the gap closes, not after a round trip.
        self.timed = None;
        // A queued packet already counted as lost when it was queued.
        if self.queue_missing(psn) {
            let outstanding = self.next.distance_from(self.una);
            self.congestion
                .lose(now, outstanding, self.recovery, &self.round_trip);
        }
    }

    /// Queues the packet at `psn` for retransmission. Returns whether it was not queued yet.
    fn queue_missing(&mut self, psn: Psn) -> bool {
        let new = !self.missing.queue.contains(&psn);
        if new {
            self.missing.queue.push_back(psn);
            self.statistics.retransmissions += 1;
        }
        new
    }

    /// Retransmits the first and the last unacknowledged packet. If the peer has the last one, it reports every other
    /// packet that it misses.
    pub(super) fn resend_ends(&mut self, now: Time) {
        // Like RFC 8985's tail loss probe (7): losing the last packet leaves no gap for the peer to report.
        for psn in [self.una, self.next.wrapping_sub(1)] {
            let Some(psn) = self.first_of_request(psn) else {
                continue;
            };
            // The timer has expired, so the retransmission is lost as well, however recent.
            self.missing.resent.retain(|(sent, _)| *sent != psn);
            self.queue_missing(psn);
        }
        self.retransmit_at = self.retransmit_time(now);
    }

    /// Requests again the responses missing before `to`, because the peer has answered a packet after them.
    pub(super) fn request_missing(&mut self, now: Time, to: Psn) {
        let ahead = to.distance_from(self.una);
        let examined = self.examined.distance_from(self.una);
        if ahead > examined {
            // By index, because `resend_at` borrows the whole requester.
            for at in 0..self.outstanding_reads.len() {
                let Some(piece) = self.outstanding_reads.get(at).copied() else {
                    break;
                };
                let begins = self.ahead_of_una(piece.first).max(examined);
                let ends = (self.ahead_of_una(piece.last) + 1).min(ahead);
                let missing = (begins..ends)
                    .map(|ahead| self.una.wrapping_add(ahead))
                    // Only the first gap of each piece: once it closes, the next one blocks `una` and is requested
                    // then.
                    .find(|psn| !self.arrivals.contains(*psn));
                if let Some(psn) = missing {
                    self.resend_at(now, psn);
                }
            }
            // Each PSN is examined once; otherwise every packet after a late response would request it again.
            self.examined = to;
        }
        // The retransmission may be lost, too.
        self.resend(now, self.una);
    }

    /// Returns the distance of `psn` from `una`; 0 if it is before `una`.
    fn ahead_of_una(&self, psn: Psn) -> u32 {
        let ahead = psn.distance_from(self.una);
        if ahead < PSN_WINDOW { ahead } else { 0 }
    }

    /// Returns the PSN to retransmit to get `psn` answered. For a READ, that is the first missing response, from which
    /// the READ is requested again; `None` if none is missing.
    fn first_of_request(&self, psn: Psn) -> Option<Psn> {
        let Some(piece) = self.piece_of(psn) else {
            return Some(psn);
        };
        let begins = self.ahead_of_una(piece.first);
        (begins..=self.ahead_of_una(piece.last))
            .map(|ahead| self.una.wrapping_add(ahead))
            .find(|psn| !self.arrivals.contains(*psn))
    }

    /// Returns which values "is the first response of a request" may have for the response at `psn`.
    pub(super) fn may_begin(&self, psn: Psn) -> &'static [bool] {
        match self.piece_of(psn) {
            Some(piece) if piece.first == psn => &[true],
            // After a retransmission, responses to either request may arrive.
            Some(piece) if piece.repeated => &[true, false],
            _ if self.restarted_at == Some(psn) => &[true, false],
            _ => &[false],
        }
    }

    /// Returns which values "is the last response of a request" may have for the response at `psn`.
    pub(super) fn may_end(&self, psn: Psn) -> &'static [bool] {
        match self.piece_of(psn) {
            Some(piece) if piece.last == psn => &[true],
            Some(piece) if piece.repeated => &[true, false],
            _ => &[false],
        }
    }

    /// Returns the READ request packet or atomic that `psn` belongs to.
    fn piece_of(&self, psn: Psn) -> Option<ReadPiece> {
        let includes = |piece: &&ReadPiece| {
            psn.distance_from(piece.first) <= piece.last.distance_from(piece.first)
        };
        self.outstanding_reads.iter().find(includes).copied()
    }

    /// Takes the next packet to retransmit, skipping responses that have arrived since.
    fn next_missing(&mut self) -> Option<Psn> {
        loop {
            let psn = self.missing.queue.pop_front()?;
            if !self.arrivals.contains(psn) {
                return Some(psn);
            }
        }
    }

    /// Returns how many responses of a READ request are missing from `psn` on, up to the next placed one.
    fn missing_in(&self, piece: &ReadPiece, psn: Psn) -> u32 {
        let rest = 1..=piece.last.distance_from(psn);
        let mut behind = rest.map(|packets| psn.wrapping_add(packets));
        let placed = behind.find(|psn| self.arrivals.contains(*psn));
        placed
            .unwrap_or(piece.last.wrapping_add(1))
            .distance_from(psn)
    }

    /// Writes the next packet that the peer misses to `out`.
    pub(super) fn poll_missing(
        &mut self,
        now: Time,
        connection: &Connection,
        memory: &mut dyn Memory,
        out: &mut [u8],
        notifications: &mut Notifications,
    ) -> Result<Option<usize>, ConnectionFailed> {
        let Some(psn) = self.next_missing() else {
            // Everything queued has arrived since.
            return Ok(None);
        };
        let piece = self.piece_of(psn);
        let packets = piece.map_or(1, |piece| self.missing_in(&piece, psn));
        let found = self.send_queue.iter_mut().enumerate().find(|(_, wqe)| {
            let first = wqe.first.map(|first| psn.distance_from(first));
            first.is_some_and(|index| index < wqe.packets)
        });
        let Some((cursor, wqe)) = found else {
            return Ok(None);
        };
        let index = wqe.first.map_or(0, |first| psn.distance_from(first));
        let (headers, payload) = match piece {
            Some(_) => {
                let mut headers = wqe.read_request(connection, psn, index, packets);
                // The first transmission may be lost. So this one, too, must declare that it may be one of more atomics
                // than the program permits.
                headers.bth.filled = self.is_of_own_kind && wqe.is_atomic();
                (headers, wqe.response_request_payload())
            }
            None => {
                // The window is stuck until this is acknowledged, so the answer must not wait for further packets.
                let ack_request = true;
                let headers = wqe.request_packet(connection, psn, index, 1, ack_request);
                (headers, wqe.request_payload(connection, index, 1))
            }
        };
        let offset = index * connection.mtu.bytes() as u32;
        let fill = |payload: &mut [u8]| wqe.payload.fill(memory, offset, payload);
        let Ok(len) = emit(&headers, payload, out, fill) else {
            return self.cannot_send_at(cursor, notifications);
        };
        // The answer may be to either transmission (Karn's algorithm, RFC 6298, 3).
        if self.timed.is_some_and(|(timed, _)| timed == psn) {
            self.timed = None;
        }
        if let Some(piece) = piece {
            let same = |other: &&mut ReadPiece| other.first == piece.first;
            let repeated = self.outstanding_reads.iter_mut().find(same);
            repeated.into_iter().for_each(|piece| piece.repeated = true);
        }
        self.missing.resent.push_back((psn, now));
        self.congestion.sent(now, packets, &self.round_trip);
        Ok(Some(len))
    }
}
