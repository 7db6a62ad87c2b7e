//! Source ports: sockets that only send, so that queue pairs send from several ports.
//!
//! Datagrams of one pair of addresses and ports are a *flow*. Routers spread flows over paths of equal
//! cost (ECMP), network interfaces over their receive queues, and the kernel merges only datagrams of
//! one flow (GRO). RoCEv2 leaves the source port to the sender for this (IBTA A17.9), and peers send to
//! the port of the device's address whatever it is.
//!
//! A flow has packets for one shard of a peer only, as the kernel there passes what it merged to the
//! socket of the first datagram. A socket is bound when the first queue pair is connected that needs
//! its flow, and stays until the device closes: a shard has at most [`MOST`] of them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use gdr_roce::Qpn;
use libc::{BPF_K, BPF_RET};
use quinn_udp::{UdpSockRef, UdpSocketState};
use rustix::net::sockopt;

use crate::filter;
use crate::process_fd::ProcessFd;
use crate::qpn_range::{MOST_SHARDS, SHARD_SHIFT};
use crate::reuseport;
use crate::slot::{QPN_MASK, Slot};

/// How many flows there are for each shard of a peer: queue pairs of even and of odd numbers.
const PER_SHARD: usize = 2;
/// The most source ports, and so descriptors, of a shard.
pub(crate) const MOST: usize = MOST_SHARDS * PER_SHARD;
/// The first source port, and how many there are (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN` and `_MAX` of
/// Linux's rdma/ib_verbs.h).
const FIRST_PORT: u16 = 0xc000;
const PORTS: u16 = 0x4000;
/// How many ports are tried until one is free.
const TRIES: u16 = 64;

/// The source ports of a shard.
pub(crate) struct Flows {
    flows: [OnceLock<Flow>; MOST],
    /// The flow for which the kernel had no room at the last send, or [`MOST`].
    blocked: AtomicUsize,
}

/// A socket with a source port of its own.
pub(crate) struct Flow {
    socket: ProcessFd,
    state: UdpSocketState,
    local: SocketAddr,
}

impl Flows {
    pub(crate) fn new() -> Self {
        Self {
            flows: [const { OnceLock::new() }; MOST],
            blocked: AtomicUsize::new(MOST),
        }
    }

    /// Binds the source port for packets to a queue pair, unless one is bound. The port follows from the
    /// numbers of both queue pairs, or is the next one that is free.
    ///
    /// `prepare` sets options of the new socket.
    pub(crate) fn open(
        &self,
        local: SocketAddr,
        own: Qpn,
        peer: Qpn,
        prepare: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let flow = &self.flows[index(peer.get())];
        if flow.get().is_none() {
            let opened = Flow::bind(local, source_port(own, peer))?;
            prepare(opened.socket.as_fd())?;
            // Another thread may have bound one meanwhile; this one is closed then.
            flow.get_or_init(|| opened);
        }
        Ok(())
    }

    /// The flow of a packet; `None` if no queue pair is connected to its destination's shard.
    pub(crate) fn of(&self, packet: &[u8]) -> Option<&Flow> {
        self.flows[place(packet)?].get()
    }

    /// The descriptor that is waited for until it can send again, if it is one of these.
    pub(crate) fn blocked(&self) -> Option<BorrowedFd<'_>> {
        let flow = self
            .flows
            .get(self.blocked.load(Ordering::Relaxed))?
            .get()?;
        Some(flow.socket.as_fd())
    }

    /// Records the packet for which the kernel had no room at the last send, if there was one.
    pub(crate) fn set_blocked(&self, packet: Option<&[u8]>) {
        let place = packet.and_then(place).unwrap_or(MOST);
        self.blocked.store(place, Ordering::Relaxed);
    }
}

impl Flow {
    /// Its socket, and what the kernel offers for it.
    pub(crate) fn socket(&self) -> (&ProcessFd, &UdpSocketState) {
        (&self.socket, &self.state)
    }

    /// The address from which it sends.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Binds a socket at the address of `local`, to `port` or to one after it.
    fn bind(mut local: SocketAddr, port: u16) -> io::Result<Self> {
        let mut refused = io::Error::from(io::ErrorKind::AddrInUse);
        for step in 0..TRIES {
            local.set_port(FIRST_PORT | (port.wrapping_add(step) & (PORTS - 1)));
            match reuseport::bind_alone(local) {
                Ok(socket) => return Self::new(socket, local),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    fn new(socket: ProcessFd, local: SocketAddr) -> io::Result<Self> {
        // Nothing is received: peers send to the port of the device.
        filter::attach(socket.as_fd(), &[filter::statement(BPF_RET | BPF_K, 0)])?;
        sockopt::set_socket_recv_buffer_size(&socket, 1)?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self {
            socket,
            state,
            local,
        })
    }
}

/// The flow of a packet, by its destination.
fn place(packet: &[u8]) -> Option<usize> {
    let word = packet.get(Slot::OFFSET as usize..)?.first_chunk()?;
    Some(index(u32::from_be_bytes(*word)))
}

/// The flow of packets to a queue pair: no two shards of a peer share one.
fn index(qpn: u32) -> usize {
    let shard = (qpn & QPN_MASK) >> SHARD_SHIFT;
    (shard as usize % MOST_SHARDS) * PER_SHARD + qpn as usize % PER_SHARD
}

/// The source port of a connection, as Linux's `rdma_get_udp_sport` has it.
fn source_port(own: Qpn, peer: Qpn) -> u16 {
    let mut label = u64::from(own.get()) * u64::from(peer.get());
    label ^= label >> 20;
    label ^= label >> 40;
    let label = label & 0xf_ffff;
    let low = (label ^ label >> 14) & u64::from(PORTS - 1);
    FIRST_PORT | low as u16
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use super::*;
    use crate::qpn_range::QpnRange;

    const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 4791);

    fn packet(to: Qpn) -> Vec<u8> {
        // The byte above the number has other bits of the header.
        [[0xff; 4], (0xa500_0000 | to.get()).to_be_bytes()].concat()
    }

    #[test]
    fn no_flow_has_packets_for_two_shards() {
        let mut shards = [None; MOST];
        for shard in 0..MOST_SHARDS as u8 {
            for number in 0..10 {
                let qpn = QpnRange::Shard(shard).qpn(0x12_7ffb + number);
                let of = &mut shards[index(qpn.get())];
                assert_eq!(*of.get_or_insert(shard), shard);
            }
        }
        assert!(shards.iter().all(Option::is_some), "{shards:?}");
    }

    #[test]
    fn source_ports_are_those_of_roce_and_differ() {
        let mut ports = HashSet::new();
        for own in 0x20..0x40 {
            for peer in 0x1000..0x1010 {
                let port = source_port(Qpn::new(own), Qpn::new(peer));
                assert!(port >= FIRST_PORT);
                ports.insert(port);
            }
        }
        assert!(ports.len() > 300, "{}", ports.len());
        // The label is 0x5_6e00 of 0x5_6e00, the port 0x2e00 ^ 0x15 of its bits.
        let port = source_port(Qpn::new(0x56e), Qpn::new(0x100));
        assert_eq!(port, 0xc000 | (0x2e00 ^ 0x15));
    }

    #[test]
    fn a_port_that_is_taken_is_left_for_the_next_one() {
        let (own, peer) = (Qpn::new(0x31), Qpn::new(0x77));
        let (first, second) = (Flows::new(), Flows::new());
        first.open(HERE, own, peer, |_| Ok(())).unwrap();
        second.open(HERE, own, peer, |_| Ok(())).unwrap();
        let port = |flows: &Flows| flows.of(&packet(peer)).unwrap().local().port();
        assert!(port(&first) >= FIRST_PORT && port(&second) >= FIRST_PORT);
        assert_ne!(port(&first), port(&second));
        // The same queue pair, and another of its flow, have the same port.
        let before = port(&first);
        let (own, peer_of_it) = (Qpn::new(0x99), Qpn::new(0x79));
        first.open(HERE, own, peer_of_it, |_| Ok(())).unwrap();
        assert_eq!(port(&first), before);
        assert!(first.of(&packet(Qpn::new(0x78))).is_none());
        assert!(first.of(&[0; 7]).is_none());
    }
}
