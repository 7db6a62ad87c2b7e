//! Devices of the software NIC.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_nic::{Deadline, Device};
use gdr_roce::Mtu;

use super::domain::NicDomain;
use crate::error::Result;
use crate::provider::{CompletionQueueOps, DeviceOps, DomainOps};
use crate::types::{AsyncEvent, Counters, Domain, Integrity, Provider};

impl DeviceOps for Device {
    fn provider(&self) -> Provider {
        Provider::Soft
    }

    fn name(&self) -> &str {
        self.name()
    }

    fn address(&self) -> SocketAddr {
        self.address()
    }

    fn integrity(&self) -> Integrity {
        self.integrity()
    }

    fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        Ok(self.path_mtu(peer)?)
    }

    fn receive_buffer(&self) -> usize {
        self.receive_buffer()
    }

    fn shards(&self) -> usize {
        self.shard_count()
    }

    fn counters(&self) -> Counters {
        self.counters()
    }

    fn check_process(&self) -> Result<()> {
        Ok(self.check_process()?)
    }

    fn progress(&self) -> bool {
        self.progress()
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.poll_event()
    }

    fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        self.wait_event(deadline)
    }

    fn nic(&self) -> Option<&Device> {
        Some(self)
    }

    fn create_domain(self: Arc<Self>, id: Domain) -> Arc<dyn DomainOps> {
        Arc::new(NicDomain::new(self.as_ref().clone(), id))
    }

    fn create_completion_queue(self: Arc<Self>, capacity: usize) -> Arc<dyn CompletionQueueOps> {
        Arc::new(self.completion_queue(capacity, None))
    }
}
