//! One end of the wire over UDP.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use gdr_roce::Qpn;

use super::peer_filter::PeerFilter;
use super::rx::{Datagram, Rx};
use super::socket::Socket;
use super::tx::{Batch, Sent, SentDatagrams};
use crate::error::Result;

/// The end of an engine: its sockets, whose packets they pass, and the packets on the way in and out. How
/// many packets share a system call, and which may, is known here alone.
pub struct UdpWire {
    socket: Arc<Socket>,
    peers: PeerFilter,
    rx: Rx,
    batch: Batch,
    /// The kernel has no room for the batch.
    blocked: bool,
}

impl UdpWire {
    /// The end at a socket.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self {
            peers: PeerFilter::default(),
            rx: Rx::new(&socket),
            batch: Batch::new(socket.local()),
            blocked: false,
            socket,
        }
    }

    /// The socket.
    pub fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Receives what has arrived, without waiting; returns whether there was anything.
    pub fn receive(&mut self) -> Result<bool> {
        let peers = &self.peers;
        self.rx
            .receive(&self.socket, |address| peers.is_peer(address))
    }

    /// As if nothing had arrived.
    pub fn skip(&mut self) {
        self.rx.clear();
    }

    /// Whether the last [`UdpWire::receive`] received anything.
    pub fn has_received(&self) -> bool {
        self.rx.has_any()
    }

    /// What the last [`UdpWire::receive`] received.
    pub fn received(&self) -> impl Iterator<Item = Datagram<'_>> {
        self.rx.datagrams(&self.socket)
    }

    /// What was sent so far.
    pub fn sent(&self) -> SentDatagrams {
        self.batch.sent()
    }

    /// Whether the kernel has no room for what is to be sent.
    pub fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// As if the kernel had no room.
    pub fn block(&mut self) {
        self.blocked = true;
    }

    /// Room for one packet.
    pub fn room(&mut self) -> &mut [u8] {
        self.batch.room()
    }

    /// Takes the `len` bytes just written to [`UdpWire::room`] as a packet to `to`. It leaves with others,
    /// at the latest by [`UdpWire::send`]. While the wire is blocked, it takes none.
    pub fn push(&mut self, to: SocketAddr, len: usize) {
        let sent = self.batch.push(&self.socket, to, len);
        self.blocked = sent == Sent::Blocked;
    }

    /// As [`UdpWire::push`], of a packet whose check sum is wrong. It leaves alone.
    pub fn push_corrupt(&mut self, to: SocketAddr, len: usize) {
        let packet = self.batch.room()[..len].to_vec();
        self.send();
        if self.blocked {
            // It is lost either way.
            return;
        }
        self.batch.room()[..len].copy_from_slice(&packet);
        self.push(to, len);
        self.batch.corrupt_last();
        self.send();
    }

    /// Sends what was pushed, unless the kernel has no room.
    pub fn send(&mut self) {
        while !self.blocked && !self.batch.is_empty() {
            // Another round sends a packet that was carried over.
            self.blocked = self.batch.send(&self.socket) == Sent::Blocked;
        }
    }

    /// Tries again to send what the kernel had no room for; returns whether it has some now.
    pub fn unblock(&mut self) -> bool {
        if !self.blocked {
            return false;
        }
        self.blocked = self.batch.send(&self.socket) == Sent::Blocked;
        !self.blocked
    }

    /// Passes packets from a peer.
    pub fn add_peer(&mut self, address: IpAddr) -> Result<()> {
        self.peers.add_peer(&self.socket, address)
    }

    /// Reverses one [`UdpWire::add_peer`].
    pub fn remove_peer(&mut self, address: IpAddr) {
        self.peers.remove_peer(&self.socket, address);
    }

    /// Passes packets for a queue pair from any address; returns whether it did not before.
    pub fn open_to_all(&mut self, qpn: Qpn) -> Result<bool> {
        self.peers.open_to_all(&self.socket, qpn)
    }

    /// Reverses [`UdpWire::open_to_all`].
    pub fn close_to_all(&mut self, qpn: Qpn) {
        self.peers.close_to_all(&self.socket, qpn);
    }
}
