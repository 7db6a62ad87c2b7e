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

/// An RDMA device. A clone is the same device.
///
/// Everything made from a device holds it. It closes when the last of them is dropped: its threads
/// end and its sockets close before that drop returns.
///
/// Every method of this crate may be called from any thread, and two threads may post to and poll
/// the same queues. Each shard of a device has one lock around its engine: threads that post at the
/// same time to its queue pairs wait for each other for the time of a few packets.
///
/// A device and everything made from it stay with the process that opened it. In a forked child
/// every operation fails at once with [`NicError::ForkedChild`](crate::NicError::ForkedChild), or does nothing if it returns no
/// error: dropping handles there changes nothing in the parent. The child may open devices of its
/// own. (It inherits the parent's sockets, as every descriptor, unused, so their port is free again
/// when both processes have ended.)
#[derive(Clone)]
pub struct Device(Arc<dyn DeviceOps>);

impl Device {
    /// Opens a device of the soft provider at `address`, an address of this host, on UDP port
    /// 4791. Each device of a host needs its own address, as 127.0.0.0/8 has many; or all of an
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

    /// The address of this host from which packets to `peer` leave: where to open a device of the soft
    /// provider to reach it. Nothing is sent.
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
    /// [`Error::Verbs`]: no library, no device, no such device, a port that is down, no GID that
    /// routes.
    pub fn verbs(options: &VerbsOptions) -> Result<Self> {
        Ok(Self(Arc::new(Context::open(options)?)))
    }

    /// The addresses of this host at which a device of the soft provider can be opened.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn list_soft() -> Result<Vec<SoftAddress>> {
        Ok(gdr_nic::addresses()?)
    }

    /// The kernel devices that libibverbs lists, by name, with their ports and GIDs, including those
    /// that cannot be used. No device stays open. Only the library of `options` is used.
    ///
    /// # Errors
    /// [`VerbsError::Load`](crate::VerbsError::Load) in [`Error::Verbs`]: no library, a library that
    /// is not libibverbs, or no device.
    pub fn list_verbs(options: &VerbsOptions) -> Result<Vec<VerbsDevice>> {
        Ok(verbs::discover(options.library)?)
    }

    /// The GID that a kernel device uses, and why; `None` for the soft provider.
    pub fn gid(&self) -> Option<&ChosenGid> {
        self.0.gid()
    }

    /// Its name, e.g. `soft-127.0.0.1`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// What moves the bytes.
    pub fn provider(&self) -> Provider {
        self.0.provider()
    }

    /// The address to which peers send.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// The LID of the port in its InfiniBand subnet; `None` on Ethernet and for the soft provider.
    pub fn lid(&self) -> Option<Lid> {
        self.0.lid()
    }

    /// How thoroughly arriving packets are checked.
    pub fn integrity(&self) -> Integrity {
        self.0.integrity()
    }

    /// How many bytes of received packets the kernel queues for the device, its bookkeeping
    /// included; 0 for a kernel device, which has queues of its own. It is twice what
    /// [`SoftOptions::receive_buffer`] requests, or twice `net.core.rmem_max` if that is less
    /// and this process has no CAP_NET_ADMIN. The packets that a queue pair of this device may
    /// have in flight are limited to half of it, assuming that the peer has as much.
    pub fn receive_buffer(&self) -> usize {
        self.0.receive_buffer()
    }

    /// How many shards it has ([`SoftOptions::shards`]); 1 for a kernel device. Queue pairs are spread
    /// over them, so a transfer over as many queue pairs ([`Stripe`](crate::Stripe)) uses all of them.
    pub fn shards(&self) -> usize {
        self.0.shards()
    }

    /// What was sent, received and dropped. All counters are 0 for a kernel device, and in a
    /// forked child.
    pub fn counters(&self) -> Counters {
        self.0.counters()
    }

    /// The largest path MTU that the route to `peer` carries without fragments, as far as this host
    /// knows.
    ///
    /// # Errors
    /// [`SocketError::AddressFamily`](crate::SocketError::AddressFamily), [`SocketError::NoRoute`](crate::SocketError::NoRoute), [`SocketError::MtuTooSmall`](crate::SocketError::MtuTooSmall), [`SocketError::Os`](crate::SocketError::Os).
    pub fn path_mtu(&self, peer: IpAddr) -> Result<Mtu> {
        self.0.path_mtu(peer)
    }

    /// Limits what it sends to all peers together, over UDP and by shared memory, to a number of bytes in a second, or
    /// ends the limit: requests, answers to READs of peers, and acknowledgements, with their headers. After a pause,
    /// 10 ms of the rate may leave at once, and at least 64 KiB.
    ///
    /// # Errors
    /// [`Error::NotOffered`] for a kernel device, whose hardware answers READs.
    pub fn limit_sending(&self, bytes_per_second: Option<NonZeroU64>) -> Result<()> {
        self.nic(Feature::SendLimit)?
            .limit_sending(bytes_per_second);
        Ok(())
    }

    /// The provider's device.
    pub(crate) fn ops(&self) -> Arc<dyn DeviceOps> {
        Arc::clone(&self.0)
    }

    /// The next asynchronous event, if there is one. Up to 1024 events are kept; further ones are
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

    /// Receives what has arrived and sends what is due, without waiting; returns whether there was
    /// anything to do.
    ///
    /// Calling this is optional: the device's own thread does the same. A program that watches
    /// memory in a loop gains by calling it in that loop, since no other thread must run then.
    pub fn progress(&self) -> bool {
        self.0.progress()
    }

    /// Fails in a child of the process that opened the device.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.0.check_process()
    }

    /// The device of the software NIC, which has this feature.
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
