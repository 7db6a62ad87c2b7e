//! The fast path: a request whose only packet is written to a ring as it is posted.

use std::mem;
use std::ops::Deref;

use gdr_roce::{AccessError, Data, Qpn, SendRequest};

use super::{Engine, MOST_DEFERRED, start_timer, time};
use crate::send_queue::SendQueue;
use crate::shard::memory::read_host;
use crate::shard::qp_context::{Acknowledgement, IntakeUse};
use crate::shard::qp_table::schedule;
use crate::shard::region_table::Regions;

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
    pub(crate) fn post_and_transmit<R: Deref<Target = Regions>>(
        &mut self,
        qpn: Qpn,
        request: &SendRequest<'_>,
        now: u64,
        regions: impl FnOnce() -> R,
    ) -> Option<SentAtOnce> {
        let qp = self.qps.qps.get_mut(&qpn.get())?;
        let ring = qp.ring?;
        let is_hindered = qp.chaos.is_some()
            || qp.is_left_to_thread()
            || self.device.send_limit.rate().is_some()
            || self.device.failure().is_some()
            || !Self::leaves_room(qp);
        if is_hindered {
            return None;
        }
        let domain = qp.domain;
        let has_outstanding = qp.transport.has_outstanding();
        let mut queue = SendQueue::of(qp)?;
        let len = queue.push_and_transmit(
            request,
            time(now),
            |to| match request.data {
                Data::Inline(bytes) => {
                    to.copy_from_slice(bytes);
                    Ok(())
                }
                Data::Segments([segment]) => read_host(&regions(), domain, segment, to),
                Data::Segments(_) => Err(AccessError::Failed),
            },
            self.rings.room_to_copy(ring)?,
        )?;
        self.counters.count_sent_by_memory(len as u64);
        let owes = qp.transport.owes_only_acknowledgement();
        match owes {
            true => self.rings.push_with_next(len),
            false => self.rings.push(len),
        }
        // The peer gets the acknowledgement and what is most likely the program's reply to its message in one poll.
        if owes
            && let Some(room) = self.rings.room_to_copy(ring)
            && let Some(roce) = qp.transport.connection()
            && let Some(len) = roce.transmit_acknowledgement(room)
        {
            self.counters.count_sent_by_memory(len as u64);
            self.rings.push(len);
            let before = mem::replace(&mut qp.acknowledgement, Acknowledgement::Due);
            if before == Acknowledgement::Kept {
                self.held.retain(|held| *held != qpn.get());
            }
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
}
