//! How to open a device.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use gdr_roce::PacketBudget;
use gdr_roce::wire::UDP_PORT;

use gdr_udp::{MOST_SHARDS, PortUse, SocketOptions, SourcePort};

/// Options for opening a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct SoftOptions {
    pub(crate) address: SocketAddr,
    pub(crate) port_use: PortUse,
    pub(crate) busy_poll: Duration,
    pub(crate) receive_buffer: usize,
    pub(crate) reorder_buffer: usize,
    pub(crate) shards: Option<usize>,
    pub(crate) wires: Option<Wires>,
    source_port: Option<SourcePort>,
}

impl SoftOptions {
    /// The maximum number of shards of a device.
    pub const MAX_SHARDS: usize = MOST_SHARDS;

    /// Opens at `address`, on RoCE's UDP port 4791.
    pub const fn new(address: IpAddr) -> Self {
        Self {
            address: SocketAddr::new(address, UDP_PORT),
            port_use: PortUse::Exclusive,
            busy_poll: Duration::from_micros(50),
            receive_buffer: 8 << 20,
            reorder_buffer: PacketBudget::DEFAULT,
            shards: None,
            wires: None,
            source_port: None,
        }
    }

    /// Uses another port; 0 picks a free one. RDMA NICs and the kernel only send to 4791; other peers are given the
    /// port when they connect.
    pub const fn port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// Sets whether other devices, in this process or another, may use the same address and port. All of them
    /// must open it with [`PortUse::Shared`].
    pub const fn port_use(mut self, port_use: PortUse) -> Self {
        self.port_use = port_use;
        self
    }

    /// Sets how long waiting threads (the progress thread, and threads in
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait)) poll after the last packet before they sleep; the
    /// default is 50 us. A longer time lowers latency, as a wake-up takes several microseconds, but uses more CPU
    /// time.
    pub const fn busy_poll(mut self, busy_poll: Duration) -> Self {
        self.busy_poll = busy_poll;
        self
    }

    /// Sets the number of shards, from 1 to [`MAX_SHARDS`](Self::MAX_SHARDS); other values are clamped. Each shard has
    /// its own socket, engine and thread, and each queue pair belongs to one shard, so that the queue pairs of a device
    /// can use several CPUs. A shard without work sleeps.
    ///
    /// By default the environment variable `GDR_SHARDS` decides; a value out of range is an error. If it is not set,
    /// there is one shard for every two CPUs of this process at a loopback address, and a single shard at other
    /// addresses. There, the kernel may merge datagrams for several shards if the peer sends all of them from one port,
    /// and datagrams that reach the wrong shard have to be sent again ([`source_ports`](Self::source_ports)). With
    /// [`PortUse::Shared`], where each shard takes one of the few slots of the port, there are two shards at a loopback
    /// address if this process has eight CPUs and most slots are free, and otherwise a single one.
    ///
    /// A thread that polls or waits for a completion queue drives the shard of its queue pairs itself, if all of them
    /// belong to the same shard. Otherwise the threads of the shards do. The two default shards at a shared port
    /// therefore never split the queue pairs of a completion queue, unless a queue pair uses two of them.
    pub const fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets which wires the packets of connections may take. By default the environment variable `GDR_WIRE` decides
    /// (`udp` or `all`; any other value is an error), and otherwise all are used. With shared memory a device has one
    /// more thread, which is mostly idle.
    pub const fn wires(mut self, wires: Wires) -> Self {
        self.wires = Some(wires);
        self
    }

    /// Sets the UDP ports from which connections send. [`SourcePort::OfAddress`], the default at a loopback address, is
    /// the port at which the device receives. With [`SourcePort::Any`], the default at other addresses, the port (49152
    /// to 65535) depends on the numbers of the queue pairs, so that routers and the peer's network interface spread
    /// connections over paths and receive queues, and the peer's kernel does not merge datagrams for several shards.
    /// Each shard binds up to 16 ports, two for each shard of the peers. While no port is free, packets are sent from
    /// the device's own port.
    pub const fn source_ports(mut self, source_port: SourcePort) -> Self {
        self.source_port = Some(source_port);
        self
    }

    /// How its sockets are opened.
    pub(crate) fn socket(&self) -> SocketOptions {
        let by_default = match self.address.ip().is_loopback() {
            true => SourcePort::OfAddress,
            false => SourcePort::Any,
        };
        SocketOptions {
            address: self.address,
            port_use: self.port_use,
            receive_buffer: self.receive_buffer,
            source_port: self.source_port.unwrap_or(by_default),
        }
    }

    /// Sets how many bytes of received packets the kernel should queue for each shard; the default is 8 MiB.
    /// [`Device::receive_buffer`](crate::Device::receive_buffer) returns what it has granted.
    pub const fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = bytes;
        self
    }

    /// Sets how many bytes of packets the device keeps, for all its queue pairs together, while an earlier packet is
    /// missing; the default is 64 MiB. Each packet counts with its length plus 64 bytes, and a single queue pair keeps at
    /// most half of the total. A packet beyond the limit is dropped, and its sender sends it again, so a smaller limit
    /// only costs speed when packets are lost. The kept packets are dropped when the connection ends, or if the missing
    /// packet does not arrive within two seconds.
    pub const fn reorder_buffer(mut self, bytes: usize) -> Self {
        self.reorder_buffer = bytes;
        self
    }
}

impl Default for SoftOptions {
    /// Opens at 127.0.0.1.
    fn default() -> Self {
        Self::new(IpAddr::V4(Ipv4Addr::LOCALHOST))
    }
}

/// The wires that packets of connections may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wires {
    /// Shared memory to devices of the same host and user that are also opened with this, and UDP to all others.
    #[default]
    All,
    /// UDP to every peer.
    Udp,
}
