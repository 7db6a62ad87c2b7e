//! Selective retransmission: only the packets that the peer misses are sent again.

use std::collections::VecDeque;

use super::{ReadPiece, Requester};
use crate::connection::{Connection, ConnectionFailed, Notifications, emit};
use crate::memory::Memory;
use crate::psn::{PSN_WINDOW, Psn};
use crate::timer::Time;

/// The packets that the peer misses.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Those to be sent again.
    queue: VecDeque<Psn>,
    /// Those that were sent again, and when.
    resent: VecDeque<(Psn, Time)>,
}

impl Missing {
    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.resent.clear();
    }

    /// Forgets the `packets` from `first` on, which are acknowledged.
    pub(super) fn acknowledge(&mut self, first: Psn, packets: u32) {
        // Without a loss, which is the usual case, an acknowledgement costs two comparisons.
        if !self.queue.is_empty() || !self.resent.is_empty() {
            self.queue.retain(|psn| psn.distance_from(first) >= packets);
            self.resent
                .retain(|(psn, _)| psn.distance_from(first) >= packets);
        }
    }

    /// Returns whether nothing is to be sent again.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// When the packet at `psn` was last sent again.
    pub(super) fn resent_at(&self, psn: Psn) -> Option<Time> {
        let same = self.resent.iter().find(|(sent, _)| *sent == psn);
        same.map(|(_, at)| *at)
    }

    /// Returns whether a packet that was sent again is not acknowledged.
    pub(super) fn is_under_way(&self) -> bool {
        !self.resent.is_empty()
    }
}

impl Requester {
    /// Sends the packet at `psn` again, because the peer misses it. A packet that was sent again less
    /// than a round trip ago may still be under way.
    pub(super) fn resend(&mut self, now: Time, psn: Psn) {
        // It was acknowledged since, or a rewind sends it again in any case.
        if psn.distance_from(self.una) >= self.next.distance_from(self.una) {
            return;
        }
        if let Some(psn) = self.first_of_request(psn) {
            self.resend_at(now, psn);
        }
    }

    /// Sends the first unacknowledged packet again if the peer missed it before: an acknowledgement up to
    /// it shows that its repetition is lost, too.
    pub(super) fn resend_next(&mut self, now: Time) {
        if self.missing.resent_at(self.una).is_some() {
            self.resend(now, self.una);
        }
    }

    /// Like [`Requester::resend`], for a packet that is not the rest of a READ.
    fn resend_at(&mut self, now: Time, psn: Psn) {
        let smoothed = self.round_trip.smoothed().unwrap_or_default();
        let resent = self
            .missing
            .resent
            .iter()
            .position(|(sent, _)| *sent == psn);
        if let Some(index) = resent {
            // The answer to a repetition takes a round trip: an earlier report was sent before the
            // peer had it.
            let on_its_way = |(_, at): &(Psn, Time)| now.saturating_since(*at) < smoothed;
            if self.missing.resent.get(index).is_some_and(on_its_way) {
                return;
            }
            self.missing.resent.remove(index);
        }
        // What comes after a gap is acknowledged when the gap is closed, not after a round trip.
        self.timed = None;
        // A packet that is queued counted as lost when it was queued.
        if self.queue_missing(psn) {
            let outstanding = self.next.distance_from(self.una);
            self.congestion
                .lose(now, outstanding, self.recovery, &self.round_trip);
        }
    }

    /// Queues the packet at `psn` to be sent again; returns whether it was not queued yet.
    fn queue_missing(&mut self, psn: Psn) -> bool {
        let new = !self.missing.queue.contains(&psn);
        if new {
            self.missing.queue.push_back(psn);
            self.statistics.retransmissions += 1;
        }
        new
    }

    /// Sends the first unacknowledged packet and the last one again: if the peer has the last one, it
    /// reports every other one that it misses.
    pub(super) fn resend_ends(&mut self, now: Time) {
        // As the tail loss probe of RFC 8985, 7: a lost last packet leaves no gap that the peer
        // would report.
        for psn in [self.una, self.next.wrapping_sub(1)] {
            let Some(psn) = self.first_of_request(psn) else {
                continue;
            };
            // The timer has expired, so its repetition is lost, too, however late that was sent.
            self.missing.resent.retain(|(sent, _)| *sent != psn);
            self.queue_missing(psn);
        }
        self.retransmit_at = self.retransmit_time(now);
    }

    /// Requests the responses again that are missing before `to`, because the peer has answered a
    /// packet after them.
    pub(super) fn request_missing(&mut self, now: Time, to: Psn) {
        let ahead = to.distance_from(self.una);
        let examined = self.examined.distance_from(self.una);
        if ahead > examined {
            // By index, because `resend_at` borrows all of the requester.
            for at in 0..self.outstanding_reads.len() {
                let Some(piece) = self.outstanding_reads.get(at).copied() else {
                    break;
                };
                let begins = self.ahead_of_una(piece.first).max(examined);
                let ends = (self.ahead_of_una(piece.last) + 1).min(ahead);
                let missing = (begins..ends)
                    .map(|ahead| self.una.wrapping_add(ahead))
                    // Only the first gap of each piece: when it is closed, the next one blocks
                    // `una`, and is requested then.
                    .find(|psn| !self.arrivals.contains(*psn));
                if let Some(psn) = missing {
                    self.resend_at(now, psn);
                }
            }
            // Each PSN is examined once. Otherwise each packet after a late response would request
            // it again.
            self.examined = to;
        }
        // Its repetition may be lost, too.
        self.resend(now, self.una);
    }

    /// The distance of a PSN from `una`, or 0 if it is before it.
    fn ahead_of_una(&self, psn: Psn) -> u32 {
        let ahead = psn.distance_from(self.una);
        if ahead < PSN_WINDOW { ahead } else { 0 }
    }

    /// The packet whose repetition answers `psn`: for a READ, its request, or a request for the first
    /// response that is missing. `None` if none is.
    fn first_of_request(&self, psn: Psn) -> Option<Psn> {
        let Some(piece) = self.piece_of(psn) else {
            return Some(psn);
        };
        let begins = self.ahead_of_una(piece.first);
        (begins..=self.ahead_of_una(piece.last))
            .map(|ahead| self.una.wrapping_add(ahead))
            .find(|psn| !self.arrivals.contains(*psn))
    }

    /// Returns whether the response at `psn` may be the first of a request, and whether it may be
    /// another.
    pub(super) fn may_begin(&self, psn: Psn) -> &'static [bool] {
        match self.piece_of(psn) {
            Some(piece) if piece.first == psn => &[true],
            // After a retransmission, responses to either of the two requests may arrive.
            Some(piece) if piece.repeated => &[true, false],
            _ if self.restarted_at == Some(psn) => &[true, false],
            _ => &[false],
        }
    }

    /// Returns whether the response at `psn` may be the last of a request, and whether it may be
    /// another.
    pub(super) fn may_end(&self, psn: Psn) -> &'static [bool] {
        match self.piece_of(psn) {
            Some(piece) if piece.last == psn => &[true],
            Some(piece) if piece.repeated => &[true, false],
            _ => &[false],
        }
    }

    /// The READ request packet or atomic that `psn` belongs to.
    fn piece_of(&self, psn: Psn) -> Option<ReadPiece> {
        let includes = |piece: &&ReadPiece| {
            psn.distance_from(piece.first) <= piece.last.distance_from(piece.first)
        };
        self.outstanding_reads.iter().find(includes).copied()
    }

    /// Takes the next packet to be sent again. A response may have arrived since it was queued.
    fn next_missing(&mut self) -> Option<Psn> {
        loop {
            let psn = self.missing.queue.pop_front()?;
            if !self.arrivals.contains(psn) {
                return Some(psn);
            }
        }
    }

    /// How many responses of a READ request are missing from `psn` on, up to one that is placed.
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
            // What was queued has arrived since.
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
                // The first transmission may be lost. So this one, too, says that it may be one of
                // more atomics than the program permits.
                headers.bth.filled = self.is_of_own_kind && wqe.is_atomic();
                (headers, wqe.response_request_payload())
            }
            None => {
                // The window stands still until it is acknowledged, so the answer must not wait for
                // other packets.
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
