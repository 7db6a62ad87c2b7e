//! Selective retransmission: only the packets that the peer misses are sent again.

use std::collections::VecDeque;

use super::{ReadPiece, Requester};
use crate::connection::{Connection, ConnectionFailed, Notifications, emit};
use crate::memory::Memory;
use crate::psn::Psn;
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
        if !self.queue.is_empty() || !self.resent.is_empty() {
            self.queue.retain(|psn| psn.distance_from(first) >= packets);
            self.resent
                .retain(|(psn, _)| psn.distance_from(first) >= packets);
        }
    }

    /// Whether nothing is to be sent again.
    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Whether a packet that was sent again is not acknowledged.
    pub(super) fn is_under_way(&self) -> bool {
        !self.resent.is_empty()
    }
}

impl Requester {
    /// Sends the packet at `psn` again, because the peer misses it. A packet that was sent again less
    /// than a round trip ago may still be under way.
    pub(super) fn resend(&mut self, now: Time, psn: Psn) {
        if psn.distance_from(self.una) >= self.next.distance_from(self.una) {
            return;
        }
        let psn = self.first_of_request(psn);
        let smoothed = self.round_trip.smoothed().unwrap_or_default();
        let resent = self
            .missing
            .resent
            .iter()
            .position(|(sent, _)| *sent == psn);
        if let Some(index) = resent {
            let on_its_way = |(_, at): &(Psn, Time)| now.saturating_since(*at) < smoothed;
            if self.missing.resent.get(index).is_some_and(on_its_way) {
                return;
            }
            self.missing.resent.remove(index);
        }
        // What is behind a gap is acknowledged when the gap is closed, not after a round trip.
        self.timed = None;
        if self.queue_missing(psn) {
            let outstanding = self.next.distance_from(self.una);
            self.congestion.lose(now, outstanding, &self.round_trip);
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
        for psn in [self.una, self.next.wrapping_sub(1)] {
            let psn = self.first_of_request(psn);
            self.missing.resent.retain(|(sent, _)| *sent != psn);
            self.queue_missing(psn);
        }
        self.retransmit_at = self.retransmit_time(now);
    }

    /// The packet whose repetition answers `psn`: of a READ, its request, or the rest of it.
    fn first_of_request(&self, psn: Psn) -> Psn {
        let piece = self.piece_of(psn);
        piece.map_or(psn, |piece| {
            let begun =
                self.una.distance_from(piece.first) <= piece.last.distance_from(piece.first);
            if begun { self.una } else { piece.first }
        })
    }

    /// The READ request packet or atomic that `psn` belongs to.
    fn piece_of(&self, psn: Psn) -> Option<ReadPiece> {
        let includes = |piece: &&ReadPiece| {
            psn.distance_from(piece.first) <= piece.last.distance_from(piece.first)
        };
        self.outstanding_reads.iter().find(includes).copied()
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
        let Some(psn) = self.missing.queue.pop_front() else {
            return Ok(None);
        };
        let piece = self.piece_of(psn);
        let found = self.send_queue.iter_mut().enumerate().find(|(_, wqe)| {
            let first = wqe.first.map(|first| psn.distance_from(first));
            first.is_some_and(|index| index < wqe.packets)
        });
        let Some((cursor, wqe)) = found else {
            return Ok(None);
        };
        let index = wqe.first.map_or(0, |first| psn.distance_from(first));
        let (headers, payload, packets) = match piece {
            Some(piece) => {
                let packets = piece.last.distance_from(psn) + 1;
                if psn == self.una {
                    self.restarted_at = Some(psn);
                }
                (
                    wqe.read_request(connection, psn, index, packets),
                    0,
                    packets,
                )
            }
            None => {
                let ack_request = true;
                let (headers, payload) = wqe.request_packet(connection, psn, index, ack_request);
                (headers, payload, 1)
            }
        };
        let offset = index * connection.mtu.bytes() as u32;
        let fill = |payload: &mut [u8]| wqe.payload.fill(memory, offset, payload);
        let Ok(len) = emit(&headers, payload, out, fill) else {
            return self.cannot_send_at(cursor, notifications);
        };
        if self.timed.is_some_and(|(timed, _)| timed == psn) {
            self.timed = None;
        }
        self.missing.resent.push_back((psn, now));
        self.congestion.sent(now, packets, &self.round_trip);
        Ok(Some(len))
    }
}
