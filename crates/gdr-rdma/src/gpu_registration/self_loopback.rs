//! Two queue pairs of one device that are connected to each other, for transfers of one cache line.

use std::time::Duration;

use gdr_roce::{Access, AckTimeout, RetryCount, WcStatus};

use super::is_device_gone;
use crate::completion_queue::CompletionQueue;
use crate::error::{Error, LoopbackError, Result};
use crate::memory_region::MemoryRegion;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::{QueuePair, QueuePairOptions};
use crate::types::ConnectionOptions;
use crate::work_request::SendRequest;
use gdr_nic::Buffer;
use gdr_nic::Deadline;

/// Length of its host memory in bytes: one cache line.
pub(super) const LINE: u64 = 64;

/// Deadline of a transfer, which takes microseconds.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection of a device to itself.
pub(super) struct SelfLoopback {
    near: QueuePair,
    /// Responds while it exists.
    _far: QueuePair,
    queue: CompletionQueue,
    /// Host memory that the device can access.
    pub(super) host: MemoryRegion,
}

impl SelfLoopback {
    pub(super) fn new(domain: &ProtectionDomain) -> Result<Self> {
        let device = domain.device();
        let queue = device.completion_queue(8);
        let make = || domain.queue_pair(&QueuePairOptions::new(&queue));
        let (near, far) = (make()?, make()?);
        let options = ConnectionOptions {
            timeout: AckTimeout::new(14),
            retry_count: RetryCount::new(7),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            ..ConnectionOptions::new(device.path_mtu(device.address().ip())?)
        };
        near.connect(&far.endpoint(), &options)?;
        far.connect(&near.endpoint(), &options)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let host = domain.register(&Buffer::host(LINE as usize)?, access)?;
        Ok(Self {
            near,
            _far: far,
            queue,
            host,
        })
    }

    /// Makes a transfer and waits for its completion.
    pub(super) fn transfer(&self, request: SendRequest) -> std::result::Result<(), LoopbackError> {
        self.near.post_send(request).map_err(|error| {
            let is_gone = is_device_gone(&error);
            let error = Box::new(error);
            match is_gone {
                true => LoopbackError::Device(error),
                false => LoopbackError::Refused(error),
            }
        })?;
        match self.queue.wait(Deadline::after(LIMIT)) {
            Ok(completion) if completion.status == WcStatus::Success => Ok(()),
            Ok(completion) => Err(LoopbackError::Status(completion.status)),
            Err(Error::Deadline(_)) => Err(LoopbackError::TimedOut(LIMIT)),
            Err(error) => Err(LoopbackError::Device(Box::new(error))),
        }
    }
}
