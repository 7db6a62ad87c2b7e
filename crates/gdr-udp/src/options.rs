//! Options for opening a device's sockets.

use std::net::SocketAddr;

/// The UDP source port of a queue pair's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePort {
    /// Always the port of the device's address. Packets from another port of that address are dropped.
    OfAddress,
    /// Any port, as with network cards and Linux's rxe.
    Any,
}

/// Whether other devices of this host share a device's address and UDP port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortUse {
    /// The device has the port to itself.
    #[default]
    Exclusive,
    /// Up to 64 devices with one shard each share the port, in one or more processes of one user, if all of them open
    /// it this way.
    ///
    /// The kernel delivers a datagram to the device that owns the destination queue pair number, whose upper 6 of 24
    /// bits are the device's slot in the group. Devices come and go without disturbing the others, even if their
    /// process is killed. Each shared device holds 64 descriptors and one more, mostly idle, thread.
    ///
    /// A datagram that reaches the wrong device is dropped and counted, and its sender retries. That happens when a
    /// network interface coalesces datagrams for several devices (GRO).
    Shared,
}

/// The number of shards of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// As many as the kernel permits, up to this number. At a [shared port](PortUse::Shared), a device gets only one
    /// once no more than three quarters of the slots are free.
    AtMost(usize),
    /// Exactly this number.
    Exactly(usize),
}

impl Shards {
    /// Returns the upper bound.
    pub const fn most(self) -> usize {
        match self {
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }

    /// Returns the lower bound.
    pub const fn fewest(self) -> usize {
        match self {
            Self::AtMost(_) => 1,
            Self::Exactly(number) => number,
        }
    }
}

/// How to open a device's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// The local address; port 0 picks a free port.
    pub address: SocketAddr,
    /// Whether other devices share the port.
    pub port_use: PortUse,
    /// The receive buffer size to request for each socket, in bytes.
    pub receive_buffer: usize,
    /// The source ports of connections.
    pub source_port: SourcePort,
}
