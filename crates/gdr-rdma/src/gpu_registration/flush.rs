//! Flushes of a device's writes into GPU memory.

use std::sync::{Arc, Mutex, Weak};

use gdr_cuda::DeviceBuffer;
use gdr_roce::WrId;

use super::self_loopback::SelfLoopback;
use crate::error::{Error, FlushError, LoopbackError, Result};
use crate::memory_region::{MemoryRegion, WeakMemoryRegion};
use crate::protection_domain::ProtectionDomain;
use crate::provider::RdmaWriteFlush;
use crate::work_request::SendRequest;
use gdr_process::lock::lock;

/// A flush by the driver. It needs an allocation of the GPU that is still alive.
pub(super) struct DriverFlush(Weak<DeviceBuffer>);

impl DriverFlush {
    pub(super) fn new(memory: &Arc<DeviceBuffer>) -> Self {
        Self(Arc::downgrade(memory))
    }
}

impl RdmaWriteFlush for DriverFlush {
    fn flush(&self) -> std::result::Result<(), FlushError> {
        match self.0.upgrade() {
            Some(memory) => memory.flush_remote_writes().map_err(FlushError::Driver),
            // Freed memory needs no flush.
            None => Ok(()),
        }
    }
}

/// A connection of a device to itself, over which it reads a byte of GPU memory. A PCI device's read does not pass its
/// earlier writes to the same location (PCI Express Base Specification, "Transaction Ordering"), so the writes are
/// visible once the read has completed.
pub(super) struct ReadBack {
    /// `None` after a failure: the request may still be in progress and use the region.
    link: Mutex<Option<SelfLoopback>>,
    region: WeakMemoryRegion,
}

impl ReadBack {
    pub(super) fn new(domain: &ProtectionDomain, region: &MemoryRegion) -> Result<Self> {
        Ok(Self {
            link: Mutex::new(Some(SelfLoopback::new(domain)?)),
            region: region.downgrade(),
        })
    }
}

impl RdmaWriteFlush for ReadBack {
    fn flush(&self) -> std::result::Result<(), FlushError> {
        let Some(region) = self.region.upgrade() else {
            // The region has ended, so its bytes no longer matter.
            return Ok(());
        };
        let mut slot = lock(&self.link);
        let Some(link) = &*slot else {
            return Err(FlushError::ReadBackFailedBefore);
        };
        let request = SendRequest::write(WrId(0), link.host.remote().at(0));
        let read = region
            .segment(0, 1)
            .map_err(|error: Error| LoopbackError::Refused(Box::new(error)))
            .and_then(|byte| link.transfer(request.segment(byte)));
        read.map_err(|error| {
            *slot = None;
            FlushError::ReadBack(error)
        })
    }
}
