//! Receive queues that several queue pairs share.

use crate::error::{Feature, Result};
use crate::protection_domain::ProtectionDomain;
use crate::provider::nic::work_request::{keyed, take_recv};
use crate::types::SrqNumber;
use crate::work_request::RecvRequest;

/// A receive queue that several queue pairs share (SRQ). A clone refers to the same queue.
///
/// Each message uses the oldest request, whichever queue pair it arrives at, so requests may complete
/// in a different order than they were posted. The completion goes to the completion queue of that
/// queue pair. If the queue is empty, the peer on a reliable connection waits and tries again, while a
/// datagram is lost.
///
/// When a queue pair goes to ERR, only the request that it is using is flushed. The others stay for the
/// remaining queue pairs, and [`Event::LastWqeReached`](crate::Event::LastWqeReached) reports that the
/// queue pair will use no more requests.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    queue: gdr_nic::SharedReceiveQueue,
    domain: ProtectionDomain,
}

impl ProtectionDomain {
    /// Creates a shared receive queue for at most `max_wr` requests (`ibv_create_srq`).
    ///
    /// # Errors
    /// [`Error::NotOffered`](crate::Error::NotOffered) with the verbs provider;
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild).
    pub fn shared_receive_queue(&self, max_wr: u32) -> Result<SharedReceiveQueue> {
        let nic = self.device().nic(Feature::SharedReceiveQueues)?;
        Ok(SharedReceiveQueue {
            queue: nic.shared_receive_queue(self.id(), max_wr)?,
            domain: self.clone(),
        })
    }
}

impl SharedReceiveQueue {
    /// Returns the queue's number, which its events carry.
    pub fn number(&self) -> SrqNumber {
        self.queue.number()
    }

    /// Returns the domain that the regions in its requests must belong to.
    pub fn domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Posts a receive (`ibv_post_srq_recv`).
    ///
    /// # Errors
    /// [`NicError::Post`](crate::NicError::Post), [`NicError::Foreign`](crate::NicError::Foreign),
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild); the request was not posted.
    pub fn post_recv(&self, mut request: RecvRequest) -> Result<()> {
        self.domain.check_segments(&request.segments)?;
        let segments = keyed(&request.segments);
        let by_key = gdr_roce::RecvRequest {
            id: request.id,
            segments: &segments,
        };
        let posted = self
            .queue
            .post_retaining(&by_key, || take_recv(&mut request))?;
        Ok(posted?)
    }

    /// Arms the event [`AsyncEvent::SharedReceiveQueueLimit`](crate::AsyncEvent), which is raised once when
    /// fewer than `limit` requests are queued, or immediately if that is already the case. 0 disarms it.
    ///
    /// # Errors
    /// [`NicError::ForkedChild`](crate::NicError::ForkedChild).
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        Ok(self.queue.arm_limit(limit)?)
    }

    /// Returns the armed limit, or 0 if none is armed or its event was raised.
    pub fn limit(&self) -> u32 {
        self.queue.limit().unwrap_or(0)
    }

    pub(crate) fn nic(&self) -> &gdr_nic::SharedReceiveQueue {
        &self.queue
    }
}
