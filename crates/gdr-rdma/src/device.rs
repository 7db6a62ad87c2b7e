//! Devices.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU64;
use std::sync::Arc;

use gdr_roce::Mtu;
use gdr_roce::wire::UDP_PORT;

use crate::error::{Awaited, Error, Feature, Result, SocketError};
use crate::provider::verbs::{self, Context, VerbsDevice};
use crate::provider::{DeviceOps, GpuDma};
use crate::types::{
    AsyncEvent, ChosenGid, Counters, Integrity, Lid, Provider, SoftOptions, VerbsOptions,
};
use gdr_nic::{Deadline, SoftAddress};

/// An RDMA device. A clone refers to the same device.
///
/// Everything created from a device keeps it open. The device closes when the last of these objects is
/// dropped: its threads have ended and its sockets are closed before that drop returns.
///
/// Every method of this crate may be called from any thread, and several threads may post to and poll
/// the same queues. Each shard of a device has a lock around its engine, so threads that post to its
/// queue pairs at the same time wait for each other, for the time that a few packets take.
///
/// A device and everything created from it belong to the process that opened the device. In a forked
/// child every operation fails at once with [`NicError::ForkedChild`](crate::NicError::ForkedChild), or
/// does nothing if it cannot return an error; dropping handles there does not affect the parent. The
/// child may open its own devices. (Like every descriptor, the parent's sockets are inherited by the
/// child, so their port becomes free only when both processes have ended.)
#[derive(Clone)]
pub struct Device(Arc<dyn DeviceOps>);

impl Device {
    /// Opens a device of the soft provider at `address`, an address of this host, on UDP port 4791.
    /// Each device on a host needs its own address (127.0.0.0/8 has many), unless all devices at an
    /// address are opened with [`PortUse::Shared`](crate::PortUse::Shared).
    ///
    /// # Errors
    /// Same as [`Device::soft_with`].
    pub fn soft(address: IpAddr) -> Result<Self> {
        Self::soft_with(SoftOptions::new(address))
    }

    /// Like [`Device::soft`], with options.
    ///
    /// # Errors
    /// [`SocketError::PortInUse`](crate::SocketError::PortInUse), [`SocketError::PortSharing`](crate::SocketError::PortSharing), [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal),
    /// [`SocketError::AddressNotUnicast`](crate::SocketError::AddressNotUnicast), [`SocketError::Os`](crate::SocketError::Os).
    pub fn soft_with(options: SoftOptions) -> Result<Self> {
        Ok(Self(Arc::new(gdr_nic::Device::open(&options, None)?)))
    }

    /// Returns the address of this host from which packets to `peer` are sent, which is where to open a
    /// soft device to reach that peer. Sends nothing.
    ///
    /// # Errors
    /// [`SocketError::NoRoute`](crate::SocketError::NoRoute).
    pub fn soft_address_towards(peer: IpAddr) -> Result<IpAddr> {
        let any: SocketAddr = match peer {
            IpAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            IpAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        // Connecting a UDP socket sends nothing; the kernel looks the route up.
        let local = UdpSocket::bind(any).and_then(|socket| {
            socket.connect((peer, UDP_PORT))?;
            socket.local_addr()
        });
        let failed = |source| SocketError::NoRoute { peer, source };
        Ok(local.map_err(failed)?.ip())
    }

    /// Opens a kernel device through libibverbs, which is loaded at run time (`libibverbs.so.1`,
    /// or the library that `GDR_LIBIBVERBS` names).
    ///
    /// # Errors
    /// [`Error::Verbs`] if there is no library, no device or no device with this name, if the port is
    /// down, or if it has no routable GID.
    pub fn verbs(options: &VerbsOptions) -> Result<Self> {
        Ok(Self(Arc::new(Context::open(options)?)))
    }

    /// Lists the addresses of this host at which a device of the soft provider can be opened.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn list_soft() -> Result<Vec<SoftAddress>> {
        Ok(gdr_nic::addresses()?)
    }

    /// Lists the kernel devices that libibverbs reports, by name, with their ports and GIDs, including
    /// those that cannot be used. No device stays open. Of `options`, only the library is used.
    ///
    /// # Errors
    /// [`VerbsError::Load`](crate::VerbsError::Load) in [`Error::Verbs`] if there is no library, the
    /// library is not libibverbs, or there is no device.
    pub fn list_verbs(options: &VerbsOptions) -> Result<Vec<VerbsDevice>> {
        Ok(verbs::discover(options.library)?)
    }

    /// Returns the GID that a kernel device uses, and why; `None` for the soft provider.
    pub fn gid(&self) -> Option<&ChosenGid> {
        self.0.gid()
    }

    /// Returns the device's name, such as `soft-127.0.0.1`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Returns the provider, which moves the bytes.
    pub fn provider(&self) -> Provider {
        self.0.provider()
    }

    /// Returns the address that peers send to.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Returns the LID of the port in its InfiniBand subnet; `None` on Ethernet and for the soft provider.
    pub fn lid(&self) -> Option<Lid> {
        self.0.lid()
    }

    /// Returns how thoroughly received packets are checked.
    pub fn integrity(&self) -> Integrity {
        self.0.integrity()
    }

    /// Returns how many bytes of received packets the kernel queues for the device, including its
    /// bookkeeping; 0 for a kernel device, which has its own queues. This is twice the size that
    /// [`SoftOptions::receive_buffer`] requests, or twice `net.core.rmem_max` if that is less and this
    /// process lacks CAP_NET_ADMIN. A queue pair limits its packets in flight to half of this size, on
    /// the assumption that the peer's buffer has the same size.
    pub fn receive_buffer(&self) -> usize {
        self.0.receive_buffer()
    }

    /// Returns the number of shards ([`SoftOptions::shards`]); 1 for a kernel device. Queue pairs are
    /// spread over the shards, so a transfer over that many queue pairs ([`Stripe`](crate::Stripe)) uses
    /// all of them.
    pub fn shards(&self) -> usize {
        self.0.shards()
    }

    /// Returns counters of what was sent, received and dropped. All of them are 0 for a kernel device,
    /// and in a forked child.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// Returns the largest path MTU that the route to `peer` carries without fragmentation, as far as this
    /// host knows.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`SocketError::NoRoute`](crate::SocketError::NoRoute), [`SocketError::MtuTooSmall`](crate::SocketError::MtuTooSmall), [`SocketError::Os`](crate::SocketError::Os).
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        self.0.path_mtu(peer)
    }

    /// Limits the total rate at which the device sends to all peers, over UDP and through shared memory, or removes the
    /// limit. Requests, responses to the peers' READs, and acknowledgements count, with their headers. After a pause,
    /// a burst of 10 ms at this rate, and at least 64 KiB, may be sent at once.
    ///
    /// # Errors
    /// [`Error::NotOffered`] for a kernel device, whose hardware answers READs.
    pub fn limit_sending(&self, bytes_per_second: Option<NonZeroU64>) -> Result<()> {
        self.nic(Feature::SendLimit)?
            .limit_sending(bytes_per_second);
        Ok(())
    }

    /// Returns the provider's device.
    pub(crate) fn ops(&self) -> Arc<dyn DeviceOps> {
        Arc::clone(&self.0)
    }

    /// Returns the next asynchronous event, if there is one. Up to 1024 events are kept; further ones are
    /// lost, and counted in [`Counters::events_lost`].
    pub fn poll_event(&self) -> Option<AsyncEvent> {
        self.0.poll_event()
    }

    /// Waits for the next asynchronous event.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`NicError::ForkedChild`](crate::NicError::ForkedChild).
    pub fn wait_event(&self, deadline: Deadline) -> Result<AsyncEvent> {
        self.check_process()?;
        let event = self.0.wait_event(deadline);
        event.ok_or(Error::Deadline(Awaited::Event))
    }

    /// Receives what has arrived and sends what is due, without waiting. Returns whether there was
    /// anything to do.
    ///
    /// Calling this is optional, because the device's own thread does the same. A program that polls
    /// memory should call it in its polling loop, so that it need not wait for that thread to run.
    pub fn progress(&self) -> bool {
        self.0.progress()
    }

    /// Fails in a child of the process that opened the device.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.0.check_process()
    }

    /// Returns the device of the software NIC, which has this feature.
    pub(crate) fn nic(&self, feature: Feature) -> Result<&gdr_nic::Device> {
        self.0.nic().ok_or(Error::NotOffered(feature))
    }

    pub(crate) fn gpu_dma(&self) -> Option<GpuDma<'_>> {
        self.0.gpu_dma()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}
