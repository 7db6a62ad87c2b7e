//! The engine of one address.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

use gdr_roce::{Access, Mtu};

use crate::buffer::Buffer;
use crate::completion_queue::CompletionQueue;
use crate::device_shards::DeviceShards;
use crate::device_state::OnEvent;
use crate::error::Result;
use crate::memory_window::MemoryWindow;
use crate::region::{Memory, Region};
use crate::shard::cq_entries::OnCompletion;
use crate::types::{AsyncEvent, Counters, Domain, SoftOptions};
use gdr_udp::Deadline;
use gdr_udp::address;
use gdr_udp::{Integrity, ProcessFd};
use gdr_udp::{LinkCondition, LinkState};

/// A device of the software NIC, at one address. A clone refers to the same device; objects created from it keep
/// it open.
#[derive(Clone, Debug)]
pub struct Device(Arc<DeviceShards>);

impl Device {
    /// Opens a device, which calls `on_event` for each asynchronous event. Without `on_event`, a limited number
    /// of events is queued for [`Device::poll_event`].
    ///
    /// # Errors
    /// [`SocketError::PortInUse`](crate::SocketError::PortInUse), [`SocketError::PortSharing`](crate::SocketError::PortSharing), [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal),
    /// [`SocketError::AddressNotUnicast`](crate::SocketError::AddressNotUnicast), [`Error::ShardCount`](crate::Error::ShardCount), [`SocketError::Os`](crate::SocketError::Os).
    pub fn open(options: &SoftOptions, on_event: Option<OnEvent>) -> Result<Self> {
        let device = DeviceShards::open(options, on_event)?;
        Ok(Self(Arc::new(device)))
    }

    /// Returns a handle that does not keep the device open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    #[cfg(test)]
    pub(crate) fn of(shards: DeviceShards) -> Self {
        Self(Arc::new(shards))
    }

    pub(crate) fn shards(&self) -> &Arc<DeviceShards> {
        &self.0
    }

    /// Returns whether both refer to the same device.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Fails in a child of the process that opened the device.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn check_process(&self) -> Result<()> {
        self.0.check_process()
    }

    /// Returns the socket for packets to the management queue pair (number 1), which exists for all devices on a
    /// shared port.
    ///
    /// # Errors
    /// [`SocketError::PortNotShared`](crate::SocketError::PortNotShared) unless the device was opened with
    /// [`PortUse::Shared`](crate::PortUse::Shared); [`Error::ForkedChild`](crate::Error::ForkedChild),
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn management_socket(&self) -> Result<ProcessFd> {
        self.check_process()?;
        Ok(self.shards().first().socket().management_socket()?)
    }

    /// Returns the address and port at which the device receives.
    pub fn address(&self) -> SocketAddr {
        self.0.local()
    }

    /// Limits the total rate at which the device sends to all peers, over UDP and through shared memory, in bytes per
    /// second. Requests, responses to the peers' READs, and acknowledgements count, with their headers. After a pause,
    /// a burst of 10 ms at this rate, and at least 64 KiB, may be sent at once. Frames of raw packet queue pairs do
    /// not count.
    pub fn limit_sending(&self, bytes_per_second: Option<NonZeroU64>) {
        self.0.state().send_limit.set(bytes_per_second);
    }

    /// Returns the largest path MTU of the route to a peer.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`SocketError::NoRoute`](crate::SocketError::NoRoute), [`SocketError::MtuTooSmall`](crate::SocketError::MtuTooSmall), [`SocketError::Os`](crate::SocketError::Os).
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        Ok(address::path_mtu_to(self.address().ip(), peer)?)
    }

    /// Returns the device's counters.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Receives and sends what is due, without waiting. Returns whether there was anything to do.
    pub fn progress(&self) -> bool {
        self.0.progress()
    }

    /// Lets the progress thread drive the engine from here on. Call this before waiting for a completion or an
    /// event without polling, because while a program polls, that thread checks the engine only once per
    /// millisecond.
    pub fn leave_to_thread(&self) {
        if self.check_process().is_ok() {
            self.0.leave_to_thread();
        }
    }

    /// Returns the device's name, such as `soft-127.0.0.1`.
    pub fn name(&self) -> &str {
        self.0.device_name()
    }

    /// Returns how thoroughly received packets are checked.
    pub fn integrity(&self) -> Integrity {
        self.0.integrity()
    }

    /// Returns how many bytes of received packets the kernel queues for each shard, including its bookkeeping.
    pub fn receive_buffer(&self) -> usize {
        self.0.receive_buffer()
    }

    /// Returns the number of shards ([`SoftOptions::shards`]): engines with their own lock and thread.
    pub fn shard_count(&self) -> usize {
        self.0.shards()
    }

    /// Returns the next asynchronous event; `None` if the device calls a function for each event, and in a
    /// forked child.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.check_process().ok()?;
        self.0.events().pop()
    }

    /// Waits for the next asynchronous event; `None` after the deadline.
    pub fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        self.0.events().pop_wait(deadline)
    }

    /// Returns the state of its interface and address, with the faults of the scenario applied.
    pub fn link_with_faults(&self, mut link: LinkState) -> LinkState {
        if let Some(faults) = &self.0.state().chaos {
            if faults.is_down() {
                link.condition = LinkCondition::NoCarrier;
            }
            link.has_address &= !faults.has_no_address();
        }
        link
    }

    /// Registers memory of this process; the range may be empty.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if addresses overflow; [`Error::ForkedChild`](crate::Error::ForkedChild),
    /// [`SocketError::Os`](crate::SocketError::Os).
    ///
    /// # Safety
    /// Until the region is dropped, the memory must be valid for reads and, if `access` has any right but
    /// `REMOTE_READ`, for writes. Rust code may access it only with atomic or volatile accesses, or while
    /// neither a request nor a peer does.
    pub unsafe fn register(
        &self,
        domain: Domain,
        memory: Memory,
        access: Access,
    ) -> Result<Region> {
        self.check_process()?;
        // SAFETY: the caller's promises.
        unsafe { Region::of_memory(&self.0, domain, memory, access) }
    }

    /// Registers `len` bytes at `offset` in a buffer, at addresses that start at `iova` in requests.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::ForkedChild`](crate::Error::ForkedChild), [`SocketError::Os`](crate::SocketError::Os).
    pub fn register_buffer(
        &self,
        domain: Domain,
        (buffer, offset, len): (Buffer, u64, u64),
        iova: u64,
        access: Access,
    ) -> Result<Region> {
        self.check_process()?;
        Region::of_buffer(&self.0, domain, (buffer, offset, len), iova, access)
    }

    /// Creates a memory window, which is not bound yet.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild), [`SocketError::Os`](crate::SocketError::Os).
    pub fn memory_window(&self, domain: Domain) -> Result<MemoryWindow> {
        self.check_process()?;
        MemoryWindow::new(&self.0, domain)
    }

    /// Creates a completion queue, which calls `on_completion` after each completion that it has stored.
    pub fn completion_queue(
        &self,
        capacity: usize,
        on_completion: Option<OnCompletion>,
    ) -> CompletionQueue {
        CompletionQueue::new(self.clone(), capacity, on_completion)
    }
}

/// A device that may have been closed. The default is one that was never open.
#[derive(Clone, Debug, Default)]
pub struct WeakDevice(Weak<DeviceShards>);

impl WeakDevice {
    /// Returns the device, if it is still open.
    pub fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}
