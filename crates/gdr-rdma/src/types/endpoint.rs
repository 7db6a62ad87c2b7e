//! Endpoints of connections.

use std::net::SocketAddr;

use gdr_nic::SourcePort;
use gdr_roce::{LossRecovery, Psn, Qkey, Qpn};

use super::Lid;

/// What a peer needs to know to connect to a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The address at which its device receives.
    pub address: SocketAddr,
    /// The number of the queue pair.
    pub qpn: Qpn,
    /// The first PSN it will send.
    pub psn: Psn,
    /// The LID of its port in an InfiniBand subnet; `None` on Ethernet.
    pub lid: Option<Lid>,
    /// The UDP port from which it sends.
    pub source_port: SourcePort,
    /// How it can recover from losses. Both ends use selective retransmission if both support it.
    pub loss_recovery: LossRecovery,
}

/// What a sender needs to know to send to a queue pair for datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdEndpoint {
    /// The address at which its device receives.
    pub address: SocketAddr,
    /// The number of the queue pair.
    pub qpn: Qpn,
    /// The queue key that it accepts. In a request, a key with the highest bit set stands for the sending queue pair's
    /// key (IBTA 10.2.5).
    pub qkey: Qkey,
}
