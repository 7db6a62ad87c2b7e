//! Receive queues that queue pairs of a front end share.

use std::sync::Arc;

use gdr_roce::{PostError, RecvRequest};

use crate::device::Device;
use crate::error::Result;
use crate::retained::RetainedList;
use crate::shard::srq_context::SrqContext;
use crate::shard::xrc_context::Registration;
use crate::types::{Domain, SrqNumber};

/// A receive queue that several queue pairs share (SRQ). A clone is the same queue, and it lives as
/// long as a queue pair uses it.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    device: Device,
    context: Arc<SrqContext>,
    /// Its place in an XRC domain.
    registration: Option<Arc<Registration>>,
}

impl Device {
    /// Makes a shared receive queue of at most `max_wr` requests.
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

    /// The queue that was made in an XRC domain.
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

    /// Whether it was made for this domain of this device.
    pub(crate) fn is_of(&self, device: &Device, domain: Domain) -> bool {
        self.device.is_same(device) && self.context.domain() == domain
    }

    /// Its number, which its events carry.
    pub fn number(&self) -> SrqNumber {
        self.context.number()
    }

    /// Posts a request. The engine is not locked for it. Returns the error of the queue within, as
    /// [`RecvQueue::push`](super::RecvQueue::push) does.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn post(&self, request: &RecvRequest<'_>) -> Result<std::result::Result<(), PostError>> {
        self.device.check_process()?;
        Ok(self.context.post(request, RetainedList::new))
    }

    /// Like [`SharedReceiveQueue::post`]; a request that is posted retains what `retained` returns.
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

    /// Changes how many requests it holds, unless more than `max_wr` are queued; returns whether it did.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn resize(&self, max_wr: u32) -> Result<bool> {
        self.device.check_process()?;
        Ok(self.context.roce().resize(max_wr))
    }

    /// Arms the limit; [`AsyncEvent::SharedReceiveQueueLimit`](crate::AsyncEvent) is raised once,
    /// when fewer than `limit` requests are queued, immediately if that is so now. 0 disarms it.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.device.check_process()?;
        self.device.shards().arm_limit(&self.context, limit);
        Ok(())
    }

    /// The armed limit; 0 if there is none, or its event was raised.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn limit(&self) -> Result<u32> {
        self.device.check_process()?;
        Ok(self.context.roce().limit())
    }
}
