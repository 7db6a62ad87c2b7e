//! The fast path: a request whose only packet is written to a ring as it is posted.

use std::mem;

use gdr_roce::{Qpn, SendRequest};

use super::{Engine, MOST_DEFERRED, start_timer, time};
use crate::device_state::DeviceState;
use crate::send_queue::SendQueue;
use crate::service::Service;
use crate::shard::qp_context::{Acknowledgement, IntakeUse, QpContext};
use crate::shard::qp_table::schedule;
use crate::shard::ring_writer::{RingWriter, ShardRegions};
use crate::wire::memory::{RingId, Rings};

/// Whether a request that was posted and sent at once is published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SentAtOnce {
    /// Not yet. A poll, which outstanding requests require anyway, will publish the packet with others.
    Hidden,
    /// Yes.
    Shown,
}

impl Engine {
    /// Posts a request of a connection at `now` and writes its only packet to a ring. Returns `None`, with nothing posted, unless
    /// that is possible, and the same as posting and sending it.
    pub(crate) fn post_and_transmit(
        &mut self,
        qpn: Qpn,
        request: &SendRequest<'_>,
        now: u64,
        regions: ShardRegions<'_>,
    ) -> Option<SentAtOnce> {
        let qp = self.qps.qps.get_mut(&qpn.get())?;
        let ring = writable_ring(qp, &self.device)?;
        let has_outstanding = qp.transport.has_outstanding();
        let mut writer = RingWriter {
            rings: &mut self.rings,
            ring,
            counters: &mut self.counters,
            regions,
            domain: qp.domain,
            now: time(now),
        };
        let len = writer.write(&mut SendQueue::of(qp)?, request)?;
        let owes = qp.transport.owes_only_acknowledgement();
        match owes {
            true => self.rings.push_with_next(len),
            false => self.rings.push(len),
        }
        // The peer gets the acknowledgement and what is most likely the program's reply to its message in one poll.
        if owes && let Some(len) = write_acknowledgement(qp, ring, &mut self.rings, &mut self.held)
        {
            self.counters.count_sent_by_memory(len as u64);
        }
        qp.answers.send(self.polls);
        // With others outstanding, the timer runs already.
        if !has_outstanding {
            start_timer(&mut self.timers, qp);
        }
        if let IntakeUse::Open { unused, .. } = &mut qp.intake {
            *unused += 1;
        }
        // The ring had no room for the acknowledgement, so that a poll sends it.
        if qp.may_transmit() {
            schedule(&mut self.qps.ready, qp);
        }
        let may_hide = has_outstanding && !owes && self.sleep.is_none();
        if may_hide && qp.requests.deferred < MOST_DEFERRED {
            return Some(SentAtOnce::Hidden);
        }
        qp.requests.deferred = 0;
        self.rings.flush();
        Some(SentAtOnce::Shown)
    }

    /// Returns the send queue of a queue pair, which writes the requests of a list to a ring at `now` if possible.
    pub(crate) fn send_queue<'a, S: Service>(
        &'a mut self,
        qpn: Qpn,
        now: u64,
        regions: ShardRegions<'a>,
    ) -> Option<SendQueue<'a, S>> {
        let qp = self.qps.qps.get_mut(&qpn.get())?;
        let (ring, domain) = (writable_ring(qp, &self.device), qp.domain);
        let mut queue = SendQueue::of(qp)?;
        queue.ring = ring.map(|ring| RingWriter {
            rings: &mut self.rings,
            ring,
            counters: &mut self.counters,
            regions,
            domain,
            now: time(now),
        });
        Some(queue)
    }

    /// Sends an acknowledgement that is owed along with the list of requests that was just written to a ring.
    pub(crate) fn follow_list(&mut self, qpn: Qpn) {
        let Some(qp) = self.qps.qps.get_mut(&qpn.get()) else {
            return;
        };
        qp.answers.send(self.polls);
        if qp.transport.owes_only_acknowledgement()
            && let Some(ring) = qp.ring
            && let Some(len) = write_acknowledgement(qp, ring, &mut self.rings, &mut self.held)
        {
            self.counters.count_sent_by_memory(len as u64);
        }
    }
}

/// Returns the ring to which requests of a queue pair may be written as they are posted.
#[inline(always)]
fn writable_ring(qp: &QpContext, device: &DeviceState) -> Option<RingId> {
    let ring = qp.ring?;
    let is_hindered = qp.chaos.is_some()
        || qp.is_left_to_thread()
        || device.send_limit.rate().is_some()
        || device.failure().is_some()
        || !Engine::leaves_room(qp);
    (!is_hindered).then_some(ring)
}

/// Writes the acknowledgement that a connection owes to its ring, if there is room. Returns its length.
fn write_acknowledgement(
    qp: &mut QpContext,
    ring: RingId,
    rings: &mut Rings,
    held: &mut Vec<u32>,
) -> Option<usize> {
    let roce = qp.transport.connection()?;
    let qpn = roce.qpn().get();
    let len = roce.transmit_acknowledgement(rings.room_to_copy(ring)?)?;
    rings.push(len);
    let before = mem::replace(&mut qp.acknowledgement, Acknowledgement::Due);
    if before == Acknowledgement::Kept {
        held.retain(|held| *held != qpn);
    }
    Some(len)
}
