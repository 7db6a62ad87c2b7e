//! One end of the wire over UDP.

use std::sync::Arc;

use crate::peer_filter::PeerFilter;
use crate::rx::Rx;
use crate::socket::Socket;
use crate::tx::Batch;

/// The end of an engine: its sockets, whose packets they pass, and the packets on the way in and out. How
/// many packets share a system call, and which may, is known to these alone.
pub struct UdpWire {
    /// The sockets.
    pub socket: Arc<Socket>,
    /// Whose packets they pass.
    pub peers: PeerFilter,
    /// What was received.
    pub rx: Rx,
    /// What is to be sent.
    pub batch: Batch,
}

impl UdpWire {
    /// The end at a socket.
    pub fn new(socket: Arc<Socket>) -> Self {
        Self {
            peers: PeerFilter::new(Arc::clone(&socket)),
            rx: Rx::new(Arc::clone(&socket)),
            batch: Batch::new(Arc::clone(&socket)),
            socket,
        }
    }
}
