//! The remote end of a connection.

use std::net::SocketAddr;

use gdr_roce::LossRecovery;

use gdr_udp::SourcePort;

/// The remote end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address at which it receives.
    pub address: SocketAddr,
    /// The UDP port from which it sends.
    pub source_port: SourcePort,
    /// How the connection recovers losses.
    pub loss_recovery: LossRecovery,
}

impl Peer {
    /// Returns whether a packet from `source` can be the peer's.
    pub(crate) fn sends_from(&self, source: SocketAddr) -> bool {
        match self.source_port {
            SourcePort::OfAddress => {
                (self.address.ip(), self.address.port()) == (source.ip(), source.port())
            }
            SourcePort::Any => self.address.ip() == source.ip(),
        }
    }
}

impl From<SocketAddr> for Peer {
    /// Any device at this address: it may send from every port, and needs only go-back-N.
    fn from(address: SocketAddr) -> Self {
        Self {
            address,
            source_port: SourcePort::Any,
            loss_recovery: LossRecovery::GoBackN,
        }
    }
}
