//! Source ports: transmit-only sockets that let queue pairs send from different ports.
//!
//! A *flow* is all datagrams with the same addresses and ports. Routers spread flows over equal-cost paths (ECMP),
//! network interfaces over receive queues, and the kernel coalesces datagrams of one flow only (GRO). RoCEv2 leaves the
//! source port to the sender for this purpose (IBTA A17.9); peers reply to the device's own port regardless.
//!
//! A flow carries packets for a single shard of a peer, as the peer's kernel delivers coalesced datagrams to the socket
//! of the first one. A flow's socket is bound when a queue pair that needs it first connects, and stays open until the
//! device closes. A shard has at most [`MOST`] flows.

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

/// Flows for each shard of a peer: one for even queue pair numbers, one for odd.
const PER_SHARD: usize = 2;
/// The maximum number of source ports, and thus of descriptors, of a shard.
pub(crate) const MOST: usize = MOST_SHARDS * PER_SHARD;
/// The range of source ports: the first, and their number (`IB_ROCE_UDP_ENCAP_VALID_PORT_MIN` and `_MAX` of Linux's
/// rdma/ib_verbs.h).
const FIRST_PORT: u16 = 0xc000;
const PORTS: u16 = 0x4000;
/// The number of consecutive ports to try.
const TRIES: u16 = 64;

/// The source ports of a shard.
pub(crate) struct Flows {
    flows: [OnceLock<Flow>; MOST],
    /// The flow whose last send would have blocked, or [`MOST`].
    blocked: AtomicUsize,
}

/// A socket with its own source port.
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

    /// Binds the source port for packets to queue pair `peer`, unless it is bound. The port is derived from both queue
    /// pair numbers; if it is taken, the next free one is used.
    ///
    /// `prepare` sets options on the new socket.
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
            // If another thread has bound a socket in the meantime, this one is closed.
            flow.get_or_init(|| opened);
        }
        Ok(())
    }

    /// Returns the flow of a packet; `None` if no queue pair is connected to the destination's shard.
    pub(crate) fn of(&self, packet: &[u8]) -> Option<&Flow> {
        self.flows[place(packet)?].get()
    }

    /// Returns the descriptor to poll for writability, if the last send blocked on a flow.
    pub(crate) fn blocked(&self) -> Option<BorrowedFd<'_>> {
        let flow = self
            .flows
            .get(self.blocked.load(Ordering::Relaxed))?
            .get()?;
        Some(flow.socket.as_fd())
    }

    /// Records the packet on which the last send blocked, or that it did not block.
    pub(crate) fn set_blocked(&self, packet: Option<&[u8]>) {
        let place = packet.and_then(place).unwrap_or(MOST);
        self.blocked.store(place, Ordering::Relaxed);
    }
}

impl Flow {
    /// Returns the socket and the kernel features found for it.
    pub(crate) fn socket(&self) -> (&ProcessFd, &UdpSocketState) {
        (&self.socket, &self.state)
    }

    /// Returns the address that it sends from.
    pub(crate) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Binds a socket at the address of `local`, to `port` or the first free port after it.
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
        // Drops everything that arrives: peers reply to the device's port.
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

/// Returns the index of a packet's flow, by its destination.
fn place(packet: &[u8]) -> Option<usize> {
    let word = packet.get(Slot::OFFSET as usize..)?.first_chunk()?;
    Some(index(u32::from_be_bytes(*word)))
}

/// Returns the index of the flow to a queue pair. No two shards of a peer share one.
fn index(qpn: u32) -> usize {
    let shard = (qpn & QPN_MASK) >> SHARD_SHIFT;
    (shard as usize % MOST_SHARDS) * PER_SHARD + qpn as usize % PER_SHARD
}

/// Returns the source port of a connection, computed like Linux's `rdma_get_udp_sport`.
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
        // The byte above the queue pair number belongs to other header fields.
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
        // For 0x56e * 0x100 = 0x5_6e00, folding leaves port bits 0x2e00 ^ 0x15.
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
        // The same queue pair, and another one on its flow, keep the port.
        let before = port(&first);
        let (own, peer_of_it) = (Qpn::new(0x99), Qpn::new(0x79));
        first.open(HERE, own, peer_of_it, |_| Ok(())).unwrap();
        assert_eq!(port(&first), before);
        assert!(first.of(&packet(Qpn::new(0x78))).is_none());
        assert!(first.of(&[0; 7]).is_none());
    }
}
