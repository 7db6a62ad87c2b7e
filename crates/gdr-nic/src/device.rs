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

/// The engine of one address. A clone is the same one; what is made from it holds it.
#[derive(Clone, Debug)]
pub struct Device(Arc<DeviceShards>);

impl Device {
    /// Opens an engine, which calls `on_event` for each asynchronous event. Without it, events wait for
    /// [`Device::poll_event`], a limited number of them.
    ///
    /// # Errors
    /// [`SocketError::PortInUse`](crate::SocketError::PortInUse), [`SocketError::PortSharing`](crate::SocketError::PortSharing), [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal),
    /// [`SocketError::AddressNotUnicast`](crate::SocketError::AddressNotUnicast), [`Error::ShardCount`](crate::Error::ShardCount), [`SocketError::Os`](crate::SocketError::Os).
    pub fn open(options: &SoftOptions, on_event: Option<OnEvent>) -> Result<Self> {
        let device = DeviceShards::open(options, on_event)?;
        Ok(Self(Arc::new(device)))
    }

    /// A handle that does not keep it open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    pub(crate) fn shards(&self) -> &Arc<DeviceShards> {
        &self.0
    }

    /// Whether both are the same engine.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Fails in a child of the process that opened it.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild).
    pub fn check_process(&self) -> Result<()> {
        self.0.check_process()
    }

    /// The socket for packets to the management queue pair (number 1), which all devices of a shared port have.
    ///
    /// # Errors
    /// [`SocketError::PortNotShared`](crate::SocketError::PortNotShared) unless the device was opened with
    /// [`PortUse::Shared`](crate::PortUse::Shared); [`Error::ForkedChild`](crate::Error::ForkedChild),
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn management_socket(&self) -> Result<ProcessFd> {
        self.check_process()?;
        Ok(self.shards().first().socket().management_socket()?)
    }

    /// The address and port at which it receives.
    pub fn address(&self) -> SocketAddr {
        self.0.local()
    }

    /// Limits what it sends to all peers together, over UDP and by shared memory, to a number of bytes in a second:
    /// requests, answers to READs of peers, and acknowledgements, with their headers. After a pause, 10 ms of the rate
    /// may leave at once, and at least 64 KiB. Frames of raw packet queue pairs do not count.
    pub fn limit_sending(&self, bytes_per_second: Option<NonZeroU64>) {
        self.0.state().send_limit.set(bytes_per_second);
    }

    /// The largest path MTU of the route to a peer.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`SocketError::NoRoute`](crate::SocketError::NoRoute), [`SocketError::MtuTooSmall`](crate::SocketError::MtuTooSmall), [`SocketError::Os`](crate::SocketError::Os).
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        Ok(address::path_mtu_to(self.address().ip(), peer)?)
    }

    /// What the engine has counted.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Receives and sends what is due, without waiting; returns whether there was anything.
    pub fn progress(&self) -> bool {
        self.0.progress()
    }

    /// Lets the progress thread drive the engine from here on. To be called before the program waits
    /// for a completion or an event without polling: while a program polls, that thread looks after
    /// the engine once in a millisecond only.
    pub fn leave_to_thread(&self) {
        if self.check_process().is_ok() {
            self.0.leave_to_thread();
        }
    }

    /// Its name, e.g. `soft-127.0.0.1`.
    pub fn name(&self) -> &str {
        self.0.device_name()
    }

    /// How thoroughly arriving packets are checked.
    pub fn integrity(&self) -> Integrity {
        self.0.integrity()
    }

    /// How many bytes of received packets the kernel queues for each shard, its bookkeeping included.
    pub fn receive_buffer(&self) -> usize {
        self.0.receive_buffer()
    }

    /// How many shards it has ([`SoftOptions::shards`]): engines with a lock and a thread of their own.
    pub fn shard_count(&self) -> usize {
        self.0.shards()
    }

    /// The next asynchronous event; `None` for an engine that calls a function for each, and in a forked
    /// child.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.check_process().ok()?;
        self.0.events().pop()
    }

    /// Waits for the next asynchronous event; `None` after the deadline.
    pub fn wait_event(&self, deadline: Deadline) -> Option<AsyncEvent> {
        self.0.events().pop_wait(deadline)
    }

    /// What is known of its interface and address, with what the scenario of faults makes of it.
    pub fn link_with_faults(&self, mut link: LinkState) -> LinkState {
        if let Some(faults) = &self.0.state().chaos {
            if faults.is_down() {
                link.condition = LinkCondition::NoCarrier;
            }
            link.has_address &= !faults.has_no_address();
        }
        link
    }

    /// Registers memory of this process, or no bytes of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if addresses overflow; [`Error::ForkedChild`](crate::Error::ForkedChild),
    /// [`SocketError::Os`](crate::SocketError::Os).
    ///
    /// # Safety
    /// Until the region is dropped, the memory is valid for reads, and for writes if `access` has
    /// any right but `REMOTE_READ`. Rust code accesses it only by atomic or volatile accesses, or
    /// while no request and no peer does.
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

    /// Registers `len` bytes at `offset` in a buffer, which requests name by addresses from `iova`
    /// on.
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

    /// Makes a memory window, which is not bound.
    ///
    /// # Errors
    /// [`Error::ForkedChild`](crate::Error::ForkedChild), [`SocketError::Os`](crate::SocketError::Os).
    pub fn memory_window(&self, domain: Domain) -> Result<MemoryWindow> {
        self.check_process()?;
        MemoryWindow::new(&self.0, domain)
    }

    /// Makes a completion queue, which calls `on_completion` after each completion that it stored.
    pub fn completion_queue(
        &self,
        capacity: usize,
        on_completion: Option<OnCompletion>,
    ) -> CompletionQueue {
        CompletionQueue::new(self.clone(), capacity, on_completion)
    }
}

/// An engine that may be closed. The default is one that was never open.
#[derive(Clone, Debug, Default)]
pub struct WeakDevice(Weak<DeviceShards>);

impl WeakDevice {
    /// The engine, if it is still open.
    pub fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}
