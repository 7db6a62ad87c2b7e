//! Send queues while the engine is locked.

use crate::retained::RetainedList;
use crate::service::Service;
use crate::shard::posted_requests::PostedRequests;
use crate::shard::qp_context::QpContext;
use crate::shard::ring_writer::RingWriter;

/// The send queue of a queue pair whose engine is locked. `push` posts the requests of its service.
pub struct SendQueue<'a, S: Service> {
    pub(crate) protocol: &'a mut S::State,
    pub(crate) requests: &'a mut PostedRequests,
    /// Writes requests to a ring, until one has to wait for its turn.
    pub(crate) ring: Option<RingWriter<'a>>,
    /// It has written any.
    pub(crate) has_written: bool,
}

impl<'a, S: Service> SendQueue<'a, S> {
    /// Returns the send queue of a queue pair, if it has this service.
    pub(crate) fn of(qp: &'a mut QpContext) -> Option<Self> {
        Some(Self {
            protocol: S::of(&mut qp.transport)?,
            requests: &mut qp.requests,
            ring: None,
            has_written: false,
        })
    }

    /// Keeps the owners of the memory of the last posted request alive until it completes.
    pub fn retain(&mut self, retained: RetainedList) {
        self.requests.retain_send(retained);
    }

    /// Runs `post`, and withdraws everything it posted if it fails: none of that is sent or completes, and the queue is
    /// unchanged.
    ///
    /// # Errors
    /// Returns the error of `post`.
    pub fn all_or_none<E>(
        &mut self,
        post: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        // Nothing is sent meanwhile, as what was sent could not be withdrawn.
        let ring = self.ring.take();
        let before = self.requests.mark();
        let outcome = post(self);
        if outcome.is_err() {
            let count = self.requests.withdraw_sends(before);
            S::withdraw_sends(self.protocol, count);
        }
        self.ring = ring;
        outcome
    }
}
