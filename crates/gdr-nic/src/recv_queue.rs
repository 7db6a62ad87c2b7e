//! Receive queues while the engine is locked.

use gdr_roce::{PostError, RecvRequest};

use crate::retained::RetainedList;
use crate::shard::posted_requests::PostedRequests;
use crate::shard::qp_context::QpContext;
use crate::shard::transport::Transport;

/// The receive queue of a queue pair whose engine is locked.
pub struct RecvQueue<'a> {
    transport: &'a mut Transport,
    requests: &'a mut PostedRequests,
}

impl<'a> RecvQueue<'a> {
    pub(crate) fn of(qp: &'a mut QpContext) -> Self {
        Self {
            transport: &mut qp.transport,
            requests: &mut qp.requests,
        }
    }

    /// Posts a request.
    ///
    /// # Errors
    /// [`PostError`]; the request was not posted.
    pub fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        let numbered = RecvRequest {
            id: self.requests.next(),
            ..*request
        };
        self.transport.post_recv(&numbered)?;
        self.requests.add_receive(request.id);
        Ok(())
    }

    /// Keeps the owners of the memory of the last posted request alive until it completes.
    pub fn retain(&mut self, retained: RetainedList) {
        self.requests.retain_receive(retained);
    }
}
