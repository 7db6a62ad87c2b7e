//! One end of the UDP wire.

use std::sync::Arc;

use crate::peer_filter::PeerFilter;
use crate::rx::Rx;
use crate::socket::Socket;
use crate::tx::Batch;

/// The UDP end of an engine: its sockets, its peer filter, and the packets in both directions. Its users do not need to
/// know how many packets share a system call, or which may.
pub struct UdpWire {
    /// The device's sockets.
    pub socket: Arc<Socket>,
    /// The senders whose packets the sockets accept.
    pub peers: PeerFilter,
    /// Received packets.
    pub rx: Rx,
    /// Packets to send.
    pub batch: Batch,
}

impl UdpWire {
    /// Returns the end at a socket.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self {
            peers: PeerFilter::new(Arc::clone(&socket)),
            rx: Rx::new(Arc::clone(&socket)),
            batch: Batch::new(Arc::clone(&socket)),
            socket,
        }
    }
}
