//! Events reported by a [`Manager`](super::Manager).

use std::net::IpAddr;

use super::message::{CommId, RejectReason, Rep, Req, SidrRep, SidrReq};

/// An event of the connection or exchange with this ID.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum CmEvent {
    /// A peer requests a connection to a service that this side listens for. It must be accepted or rejected.
    Requested {
        id: CommId,
        from: IpAddr,
        req: Box<Req>,
    },
    /// The peer accepted. The connection is established once this side confirms it.
    Accepted { id: CommId, rep: Box<Rep> },
    /// The peer confirmed a connection that this side accepted.
    Established { id: CommId },
    /// The peer refused, or gave up.
    Rejected {
        id: CommId,
        reason: RejectReason,
        private_data: Box<[u8]>,
    },
    /// The peer did not answer.
    Unreachable { id: CommId },
    /// The connection ended.
    Disconnected { id: CommId },
    /// Packets of the connection can no longer be in flight.
    TimeWaitOver { id: CommId },
    /// A peer requests the queue pair of a datagram service that this side listens for.
    Resolving {
        id: CommId,
        from: IpAddr,
        req: Box<SidrReq>,
    },
    /// The reply of a datagram service.
    Resolved { id: CommId, rep: Box<SidrRep> },
}
