//! Protection domains of the software NIC.

use std::sync::Arc;

use gdr_nic::Device;
use gdr_roce::{Lkey, Rkey};

use super::queue_pair::connection;
use crate::error::Result;
use crate::memory_region::{MemoryRange, Registration, RejectedMethods};
use crate::provider::{DomainOps, QueuePairInit, QueuePairOps};
use crate::types::{Domain, RegistrationMethod};

/// A protection domain, which the NIC knows by its identifier.
#[derive(Debug)]
pub(super) struct NicDomain {
    device: Device,
    id: Domain,
}

impl NicDomain {
    pub(super) fn new(device: Device, id: Domain) -> Self {
        Self { device, id }
    }
}

impl DomainOps for NicDomain {
    fn register(
        self: Arc<Self>,
        range: &MemoryRange,
        _: &mut RejectedMethods,
    ) -> Result<Registration> {
        let part = (range.buffer.clone(), range.offset, range.len);
        let region = self
            .device
            .register_buffer(self.id, part, range.address(), range.access)?;
        Ok(Registration {
            lkey: Lkey(region.key()),
            rkey: Rkey(region.key()),
            method: RegistrationMethod::Engine,
            _guard: Box::new(region),
        })
    }

    fn create_queue_pair(
        self: Arc<Self>,
        init: &QueuePairInit<'_>,
    ) -> Result<Box<dyn QueuePairOps>> {
        Ok(Box::new(connection(&self.device, self.id, init)?))
    }
}
