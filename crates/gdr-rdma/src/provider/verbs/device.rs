//! A kernel device, as a device of the provider.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_roce::Mtu;
use gdr_roce::wire::UDP_PORT;

use super::completion_queue::VerbsCompletionQueue;
use super::context::{Context, sleep_on};
use super::protection_domain::VerbsDomain;
use crate::error::{NicError, Result};
use crate::provider::{CompletionQueueOps, DeviceOps, DomainOps, GpuDma};
use crate::types::{AsyncEvent, ChosenGid, Domain, Integrity, Lid, Provider};
use gdr_nic::Deadline;

impl DeviceOps for Context {
    fn provider(&self) -> Provider {
        Provider::Verbs
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.gid.entry.address(), UDP_PORT)
    }

    fn integrity(&self) -> Integrity {
        Integrity::Icrc
    }

    fn path_mtu(&self, _: IpAddr) -> Result<Mtu> {
        Ok(self.mtu)
    }

    fn lid(&self) -> Option<Lid> {
        self.lid
    }

    fn gid(&self) -> Option<&ChosenGid> {
        Some(&self.gid)
    }

    /// Fails in a child of the process that opened the device. Parent and child share the device's descriptor and its
    /// queues in memory, and a lock may be held by a thread that exists only in the parent.
    fn check_process(&self) -> Result<()> {
        if self.origin.is_current_fast() {
            Ok(())
        } else {
            Err(NicError::ForkedChild.into())
        }
    }

    fn poll_event(&self) -> Option<AsyncEvent> {
        self.check_process().ok()?;
        self.take_events();
        self.events.pop()
    }

    fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        loop {
            if let Some(event) = self.poll_event() {
                return Some(event);
            }
            if deadline.has_passed() {
                return None;
            }
            sleep_on(self.async_fd(), deadline);
        }
    }

    fn create_domain(self: Arc<Self>, _: Domain) -> Arc<dyn DomainOps> {
        Arc::new(VerbsDomain::new(self))
    }

    fn create_completion_queue(self: Arc<Self>, capacity: usize) -> Arc<dyn CompletionQueueOps> {
        Arc::new(VerbsCompletionQueue::new(self, capacity))
    }

    fn gpu_dma(&self) -> Option<GpuDma<'_>> {
        Some(GpuDma {
            verification: self.verification,
            flushes: &self.flushes,
        })
    }
}
