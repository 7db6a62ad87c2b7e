//! The engine of one address.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Weak};

use gdr_roce::{Access, Mtu};

use super::completion_queue::CompletionQueue;
use super::region::{Domain, Memory, Region};
use crate::buffer::Buffer;
use crate::error::Result;
use crate::provider::DeviceOps;
use crate::provider::soft::cq_entries::OnCompletion;
use crate::provider::soft::device::SoftDevice;
use crate::provider::soft::device_state::OnEvent;
use crate::types::{AsyncEvent, Counters, SoftOptions};

/// The engine of one address. A clone is the same one; what is made from it holds it.
#[derive(Clone, Debug)]
pub struct Device(Arc<SoftDevice>);

impl Device {
    /// Opens an engine, which calls `on_event` for each asynchronous event. Without it, events wait for
    /// [`Device::poll_event`], a limited number of them.
    ///
    /// # Errors
    /// As [`crate::Device::soft_with`].
    pub fn open(options: &SoftOptions, on_event: Option<OnEvent>) -> Result<Self> {
        let device = SoftDevice::open_watched(options, on_event)?;
        Ok(Self(Arc::new(device)))
    }

    /// A handle that does not keep it open.
    pub fn downgrade(&self) -> WeakDevice {
        WeakDevice(Arc::downgrade(&self.0))
    }

    pub(super) fn soft(&self) -> &Arc<SoftDevice> {
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

    /// The address and port at which it receives.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The largest path MTU of the route to a peer.
    ///
    /// # Errors
    /// As [`crate::Device::path_mtu`].
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        self.0.path_mtu(peer)
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

    /// The next asynchronous event; `None` for an engine that calls a function for each.
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.0.poll_event()
    }

    /// Registers memory of this process, or no bytes of it.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) if addresses overflow; [`Error::ForkedChild`](crate::Error::ForkedChild),
    /// [`Error::Os`](crate::Error::Os).
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
    /// [`Error::OutOfRange`](crate::Error::OutOfRange), [`Error::ForkedChild`](crate::Error::ForkedChild), [`Error::Os`](crate::Error::Os).
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
pub struct WeakDevice(Weak<SoftDevice>);

impl WeakDevice {
    /// The engine, if it is still open.
    pub fn upgrade(&self) -> Option<Device> {
        self.0.upgrade().map(Device)
    }
}
