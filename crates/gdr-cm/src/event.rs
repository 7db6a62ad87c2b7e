//! What a [`Manager`](super::Manager) reports.

use std::net::IpAddr;

use super::message::{CommId, RejectReason, Rep, Req, SidrRep, SidrReq};

/// What happened to a connection or an exchange, which its name identifies.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum CmEvent {
    /// A peer asks for a connection to a service that this side listens for. To be accepted or rejected.
    Requested {
        id: CommId,
        from: IpAddr,
        req: Box<Req>,
    },
    /// The peer accepted. The connection exists once this side confirms it.
    Accepted { id: CommId, rep: Box<Rep> },
    /// The peer confirmed a connection that this side accepted.
    Established { id: CommId },
    /// The peer refused, or gave up.
    Rejected {
        id: CommId,
        reason: RejectReason,
        private_data: Box<[u8]>,
    },
    /// The peer does not answer.
    Unreachable { id: CommId },
    /// The connection ended.
    Disconnected { id: CommId },
    /// No packet of the connection is under way any more.
    TimeWaitOver { id: CommId },
    /// A peer asks for the queue pair of a datagram service that this side listens for.
    Resolving {
        id: CommId,
        from: IpAddr,
        req: Box<SidrReq>,
    },
    /// The answer of a datagram service.
    Resolved { id: CommId, rep: Box<SidrRep> },
}
