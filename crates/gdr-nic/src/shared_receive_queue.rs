//! Receive queues that several queue pairs share.

use std::sync::Arc;

use gdr_roce::{PostError, RecvRequest};

use crate::device::Device;
use crate::error::Result;
use crate::retained::RetainedList;
use crate::shard::srq_context::SrqContext;
use crate::shard::xrc_context::Registration;
use crate::types::{Domain, SrqNumber};

/// A receive queue that several queue pairs share (SRQ). A clone refers to the same queue, which lives as long as
/// a queue pair uses it.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    device: Device,
    context: Arc<SrqContext>,
    /// Its place in an XRC domain.
    registration: Option<Arc<Registration>>,
}

impl Device {
    /// Creates a shared receive queue for at most `max_wr` requests.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn shared_receive_queue(&self, domain: Domain, max_wr: u32) -> Result<SharedReceiveQueue> {
        self.check_process()?;
        Ok(SharedReceiveQueue::new(self, domain, max_wr))
    }
}

impl SharedReceiveQueue {
    pub(crate) fn new(device: &Device, domain: Domain, max_wr: u32) -> Self {
        Self {
            device: device.clone(),
            context: Arc::new(SrqContext::new(domain, max_wr, 0)),
            registration: None,
        }
    }

    /// Returns the queue that was created in an XRC domain.
    pub(crate) fn registered(device: &Device, registration: Registration) -> Self {
        Self {
            device: device.clone(),
            context: Arc::clone(registration.receives()),
            registration: Some(Arc::new(registration)),
        }
    }

    pub(crate) fn registration(&self) -> Option<&Registration> {
        self.registration.as_deref()
    }

    pub(crate) fn context(&self) -> &Arc<SrqContext> {
        &self.context
    }

    /// Returns whether it was created for this domain of this device.
    pub(crate) fn is_of(&self, device: &Device, domain: Domain) -> bool {
        self.device.is_same(device) && self.context.domain() == domain
    }

    /// Returns the queue's number, which its events carry.
    pub fn number(&self) -> SrqNumber {
        self.context.number()
    }

    /// Posts a request without locking the engine. The inner result says whether the queue accepted it, as for
    /// [`RecvQueue::push`](super::RecvQueue::push).
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn post(&self, request: &RecvRequest<'_>) -> Result<std::result::Result<(), PostError>> {
        self.device.check_process()?;
        Ok(self.context.post(request, RetainedList::new))
    }

    /// Like [`SharedReceiveQueue::post`], but a posted request retains what `retained` returns.
    ///
    /// # Errors
    /// Same as [`SharedReceiveQueue::post`].
    pub fn post_retaining(
        &self,
        request: &RecvRequest<'_>,
        retained: impl FnOnce() -> RetainedList,
    ) -> Result<std::result::Result<(), PostError>> {
        self.device.check_process()?;
        Ok(self.context.post(request, retained))
    }

    /// Changes how many requests the queue can hold, unless more than `max_wr` are queued. Returns whether it did.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn resize(&self, max_wr: u32) -> Result<bool> {
        self.device.check_process()?;
        Ok(self.context.roce().resize(max_wr))
    }

    /// Arms the limit: [`AsyncEvent::SharedReceiveQueueLimit`](crate::AsyncEvent) is raised once when fewer than
    /// `limit` requests are queued, or immediately if that is already the case. 0 disarms it.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.device.check_process()?;
        self.device.shards().arm_limit(&self.context, limit);
        Ok(())
    }

    /// Returns the armed limit, or 0 if none is armed or its event was raised.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn limit(&self) -> Result<u32> {
        self.device.check_process()?;
        Ok(self.context.roce().limit())
    }
}
