//! How to open a device.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use gdr_roce::PacketBudget;
use gdr_roce::wire::UDP_PORT;

use gdr_udp::{MOST_SHARDS, PortUse, SocketOptions, SourcePort};

/// How to open a device.
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
    /// How many shards a device has at most.
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

    /// Uses another port; 0 takes a free one. Network cards and the kernel send to 4791 only;
    /// other peers learn the port when they connect.
    pub const fn port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// Sets whether other devices, also of other processes, may use the same address and port. All of
    /// them open it with [`PortUse::Shared`].
    pub const fn port_use(mut self, port_use: PortUse) -> Self {
        self.port_use = port_use;
        self
    }

    /// Sets how long threads that wait, the progress thread and those in
    /// [`CompletionQueue::wait`](crate::CompletionQueue::wait), poll after the last packet before
    /// they sleep; 50 us by default. A longer time lowers latency (a wake-up takes some
    /// microseconds) and uses more CPU time.
    pub const fn busy_poll(mut self, busy_poll: Duration) -> Self {
        self.busy_poll = busy_poll;
        self
    }

    /// Sets how many shards the device has, 1 to [`MAX_SHARDS`](Self::MAX_SHARDS); a value outside is
    /// clamped. Each shard has a socket,
    /// an engine and a thread of its own, and each queue pair belongs to one, so that the queue pairs
    /// of a device use several processors. A shard without work sleeps.
    ///
    /// By default the environment variable `GDR_SHARDS` decides, and a value outside is an error. Without it the number
    /// depends on the address. At a loopback address it is one for every two processors of this process, or with
    /// [`PortUse::Shared`], where each shard takes one of the few slots of the port, two if the process has eight processors and most
    /// slots are free. At other addresses it is one: there the kernel may merge datagrams for several shards if the peer
    /// sends all of them from one port, and those that reach a wrong one are sent again ([`source_ports`](Self::source_ports)).
    ///
    /// A thread that polls or waits for a completion queue drives the shard of its queue pairs itself if
    /// all of them belong to one shard. Otherwise the threads of the shards do. The two shards at a shared port
    /// therefore never split the queue pairs of one completion queue, unless their send and receive queues complete in
    /// different ones.
    pub const fn shards(mut self, shards: usize) -> Self {
        self.shards = Some(shards);
        self
    }

    /// Sets which wires the packets of connections may take. By default the environment variable `GDR_WIRE`
    /// decides (`udp` or `all`, and any other value is an error), else all. With shared memory a device has one
    /// more thread, which is idle.
    pub const fn wires(mut self, wires: Wires) -> Self {
        self.wires = Some(wires);
        self
    }

    /// Sets the UDP ports from which connections send. [`SourcePort::OfAddress`] is the one at which the
    /// device receives, and the default at a loopback address. With [`SourcePort::Any`], the default at
    /// others, the port follows from the numbers of the queue pairs, 49152 to 65535: routers and the
    /// peer's network interface then spread them over paths and receive queues, and the kernel there
    /// does not merge datagrams for several shards. Each shard binds up to 16 ports, two for each shard of the
    /// peers; while no port is free, packets leave from the one of the device.
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

    /// Sets how many bytes of received packets the kernel is asked to queue for each shard; 8 MiB by
    /// default.
    /// [`Device::receive_buffer`](crate::Device::receive_buffer) returns what it granted.
    pub const fn receive_buffer(mut self, bytes: usize) -> Self {
        self.receive_buffer = bytes;
        self
    }

    /// Sets how many bytes of packets that arrived after a missing one the device keeps, for all its queue
    /// pairs together; 64 MiB by default. Each packet counts its length and 64 bytes, and a queue pair alone
    /// keeps at most half of it. A packet beyond that is dropped, and its sender sends it again: so less of it
    /// costs speed where packets are lost, and nothing else. What is kept is let go when the connection ends,
    /// and after two seconds in which the missing packet did not arrive.
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
    /// Shared memory to devices of the same host and user that are opened with this, and UDP to all others.
    #[default]
    All,
    /// UDP, to every peer.
    Udp,
}
