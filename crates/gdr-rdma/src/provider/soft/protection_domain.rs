//! Protection domains of the soft provider.

use std::sync::Arc;

use gdr_roce::{Lkey, Rkey};

use super::device::SoftDevice;
use super::queue_pair::SoftQueuePair;
use super::region_table::{Region, RegionTable};
use super::shared_receive_queue::SoftSharedReceiveQueue;
use super::ud_queue_pair::SoftUdQueuePair;
use crate::error::Result;
use crate::memory_region::{MemoryRange, Registration, RejectedMethods};
use crate::provider::{
    DomainOps, QueuePairInit, QueuePairOps, SharedReceiveQueueOps, UdQueuePairInit, UdQueuePairOps,
};
use crate::types::{DomainId, RegistrationMethod};

/// A protection domain. The engine knows its regions and queue pairs by the domain's identifier.
#[derive(Debug)]
pub(super) struct SoftDomain {
    device: Arc<SoftDevice>,
    id: DomainId,
}

impl SoftDomain {
    pub(super) fn new(device: Arc<SoftDevice>, id: DomainId) -> Self {
        Self { device, id }
    }
}

impl DomainOps for SoftDomain {
    fn register(
        self: Arc<Self>,
        range: &MemoryRange,
        _: &mut RejectedMethods,
    ) -> Result<Registration> {
        let entry = RegionTable::insert(self.device.regions(), Region::new(self.id, range))?;
        Ok(Registration {
            lkey: Lkey(entry.key()),
            rkey: Rkey(entry.key()),
            method: RegistrationMethod::Engine,
            _guard: Box::new(entry),
        })
    }

    fn create_queue_pair(
        self: Arc<Self>,
        init: &QueuePairInit<'_>,
    ) -> Result<Box<dyn QueuePairOps>> {
        let pair = SoftQueuePair::new(&self.device, self.id, init)?;
        Ok(Box::new(pair))
    }

    fn create_shared_receive_queue(
        self: Arc<Self>,
        max_wr: u32,
    ) -> Result<Arc<dyn SharedReceiveQueueOps>> {
        self.device.check_process()?;
        let device = Arc::clone(&self.device);
        Ok(Arc::new(SoftSharedReceiveQueue::new(
            device, self.id, max_wr,
        )))
    }

    fn create_ud_queue_pair(
        self: Arc<Self>,
        init: &UdQueuePairInit<'_>,
    ) -> Result<Box<dyn UdQueuePairOps>> {
        let pair = SoftUdQueuePair::new(&self.device, self.id, init)?;
        Ok(Box::new(pair))
    }
}
