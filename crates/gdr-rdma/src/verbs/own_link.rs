//! A device that is connected to itself, for transfers of one line.

use std::time::Duration;

use gdr_roce::{Access, AckTimeout, RetryCount, WcStatus};

use super::error::VerbsError;
use crate::buffer::Buffer;
use crate::completion::CompletionQueue;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::queue_pair::{ConnectionOptions, QueuePair, QueuePairOptions};
use crate::region::{MemoryRegion, ProtectionDomain};
use crate::request::SendRequest;

/// Bytes of its host memory: one cache line.
pub(super) const LINE: u64 = 64;

/// How long a transfer may take. It is a microsecond's work.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection of a device with itself.
pub(super) struct OwnLink {
    near: QueuePair,
    /// Answers as long as it is there.
    _far: QueuePair,
    queue: CompletionQueue,
    /// Host memory that the device reaches.
    pub(super) host: MemoryRegion,
}

impl OwnLink {
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

    /// Why the transfer failed, if it did.
    pub(super) fn transfer(&self, request: SendRequest) -> Result<Option<String>> {
        match self.near.post_send(request) {
            Ok(()) => {}
            Err(error @ Error::Verbs(VerbsError::DeviceGone { .. })) => return Err(error),
            Err(error) => return Ok(Some(format!("is refused: {error}"))),
        }
        match self.queue.wait(Deadline::after(LIMIT)) {
            Ok(completion) if completion.status == WcStatus::Success => Ok(None),
            Ok(completion) => Ok(Some(format!("fails: {}", completion.status))),
            Err(Error::Deadline { .. }) => Ok(Some("does not end".to_owned())),
            Err(error) => Err(error),
        }
    }
}
