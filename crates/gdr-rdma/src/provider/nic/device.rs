//! Devices of the software NIC.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_nic::{Deadline, Device, SoftOptions};
use gdr_roce::Mtu;

use super::completion_queue::NicCompletionQueue;
use super::domain::NicDomain;
use crate::error::Result;
use crate::provider::{CompletionQueueOps, DeviceOps, DomainOps};
use crate::types::{AsyncEvent, Counters, Domain, Integrity, Provider};

/// A device of the software NIC.
#[derive(Debug)]
pub(crate) struct NicDevice(Device);

impl NicDevice {
    pub(crate) fn open(options: &SoftOptions) -> Result<Self> {
        Ok(Self(Device::open(options, None)?))
    }
}

impl DeviceOps for NicDevice {
    fn provider(&self) -> Provider {
        Provider::Soft
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn address(&self) -> SocketAddr {
        self.0.address()
    }

    fn integrity(&self) -> Integrity {
        self.0.integrity()
    }

    fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        Ok(self.0.path_mtu(peer)?)
    }

    fn receive_buffer(&self) -> usize {
        self.0.receive_buffer()
    }

    fn shards(&self) -> usize {
        self.0.shard_count()
    }

    fn counters(&self) -> Counters {
        self.0.counters()
    }

    fn check_process(&self) -> Result<()> {
        Ok(self.0.check_process()?)
    }

    fn progress(&self) -> bool {
        self.0.progress()
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.0.poll_event()
    }

    fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        self.0.wait_event(deadline)
    }

    fn nic(&self) -> Option<&Device> {
        Some(&self.0)
    }

    fn create_domain(self: Arc<Self>, id: Domain) -> Arc<dyn DomainOps> {
        Arc::new(NicDomain::new(self.0.clone(), id))
    }

    fn create_completion_queue(self: Arc<Self>, capacity: usize) -> Arc<dyn CompletionQueueOps> {
        let queue = self.0.completion_queue(capacity, None);
        Arc::new(NicCompletionQueue(queue))
    }
}
