//! Receive queues that queue pairs of a front end share.

use std::sync::Arc;

use gdr_roce::{PostError, RecvRequest};

use super::device::Device;
use super::region::Domain;
use crate::error::Result;
use crate::provider::soft::srq_context::SrqContext;
use crate::types::SrqNumber;

/// A receive queue that several queue pairs share (SRQ). A clone is the same queue, and it lives as
/// long as a queue pair uses it.
#[derive(Clone, Debug)]
pub struct SharedReceiveQueue {
    device: Device,
    context: Arc<SrqContext>,
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
    pub(super) fn new(device: &Device, domain: Domain, max_wr: u32) -> Self {
        Self {
            device: device.clone(),
            context: Arc::new(SrqContext::new(domain.0, max_wr)),
        }
    }

    pub(super) fn context(&self) -> &Arc<SrqContext> {
        &self.context
    }

    /// Whether it was made for this domain of this device.
    pub(super) fn is_of(&self, device: &Device, domain: Domain) -> bool {
        self.device.is_same(device) && self.context.domain() == domain.0
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
        Ok(self.context.post_raw(request))
    }

    /// Changes how many requests it holds, unless more than `max_wr` are queued; returns whether it did.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn resize(&self, max_wr: u32) -> Result<bool> {
        self.device.check_process()?;
        Ok(self.context.roce().resize(max_wr))
    }

    /// Arms the limit; see [`crate::SharedReceiveQueue::arm_limit`].
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn arm_limit(&self, limit: u32) -> Result<()> {
        self.device.check_process()?;
        self.device.soft().arm_limit(&self.context, limit);
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
