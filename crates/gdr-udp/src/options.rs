//! How the sockets of a device are opened.

use std::net::SocketAddr;

/// The UDP port from which a queue pair sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SourcePort {
    /// Always the port of the address of its device. Packets from another port of that address are dropped.
    OfAddress,
    /// Any port, as of network cards and Linux's rxe.
    Any,
}

/// Whether other devices of this host use the UDP port of a soft device at the same address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortUse {
    /// No other device does.
    #[default]
    Exclusive,
    /// Up to 64 devices with one shard do, in one or more processes of one user, if all open it with this.
    ///
    /// The kernel passes a datagram to the device that owns the number of the queue pair: the upper
    /// 6 of its 24 bits are the device's slot in the group. Devices come and go without effect on
    /// the others, also if their process is killed. Each shared device holds 64 descriptors and one
    /// more thread, which is idle.
    ///
    /// A datagram whose queue pair belongs to another device is dropped and counted, and its sender
    /// retries. That happens if a network interface merges datagrams for several devices (GRO).
    Shared,
}

/// How many shards a device gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shards {
    /// As many as the kernel permits, up to this number. At a [shared port](PortUse::Shared) it is one
    /// from the device on that finds no more than three quarters of the slots free.
    AtMost(usize),
    /// This number.
    Exactly(usize),
}

impl Shards {
    /// The greatest number.
    pub const fn most(self) -> usize {
        match self {
            Self::AtMost(most) | Self::Exactly(most) => most,
        }
    }

    /// The smallest number.
    pub const fn fewest(self) -> usize {
        match self {
            Self::AtMost(_) => 1,
            Self::Exactly(number) => number,
        }
    }
}

/// How to open the sockets of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketOptions {
    /// Where they receive; port 0 takes a free one.
    pub address: SocketAddr,
    /// Whether other devices use the port.
    pub port_use: PortUse,
    /// How many bytes of received packets the kernel is asked to queue for each socket.
    pub receive_buffer: usize,
    /// The ports from which connections send.
    pub source_port: SourcePort,
}
