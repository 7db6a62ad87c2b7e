//! What a device of the soft provider offers to the public types.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_roce::Mtu;

use super::address;
use super::completion_queue::SoftCompletionQueue;
use super::device::SoftDevice;
use super::protection_domain::SoftDomain;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::provider::{CompletionQueueOps, DeviceOps, DomainOps};
use crate::types::{AsyncEvent, Counters, DomainId, Integrity, Provider};

impl DeviceOps for SoftDevice {
    fn provider(&self) -> Provider {
        Provider::Soft
    }

    fn name(&self) -> &str {
        self.device_name()
    }

    fn address(&self) -> SocketAddr {
        self.local()
    }

    fn integrity(&self) -> Integrity {
        SoftDevice::integrity(self)
    }

    fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        address::path_mtu_to(self.address().ip(), peer)
    }

    fn receive_buffer(&self) -> usize {
        SoftDevice::receive_buffer(self)
    }

    fn shards(&self) -> usize {
        SoftDevice::shards(self)
    }

    fn counters(&self) -> Counters {
        SoftDevice::counters(self)
    }

    fn check_process(&self) -> Result<()> {
        SoftDevice::check_process(self)
    }

    fn progress(&self) -> bool {
        SoftDevice::progress(self)
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.check_process().ok()?;
        SoftDevice::events(self).pop()
    }

    fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        SoftDevice::events(self).pop_wait(deadline)
    }

    fn create_domain(self: Arc<Self>, id: DomainId) -> Arc<dyn DomainOps> {
        Arc::new(SoftDomain::new(self, id))
    }

    fn create_completion_queue(self: Arc<Self>, capacity: usize) -> Arc<dyn CompletionQueueOps> {
        Arc::new(SoftCompletionQueue::new(self, capacity))
    }
}
