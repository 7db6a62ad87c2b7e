//! Completions of requests, and events of queue pairs.

use std::fmt;
use std::num::NonZeroU64;

use crate::ids::{Immediate, Qpn, Rkey, WrId};

/// The result of a request, as in `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcStatus {
    /// The request was executed.
    Success,
    /// `LOC_LEN_ERR`: the message is longer than the segments of the receive.
    LocalLength,
    /// `LOC_PROT_ERR`: a local segment is not in registered memory.
    LocalProtection,
    /// `WR_FLUSH_ERR`: the request was not executed, because the queue pair had already failed.
    WrFlushed,
    /// `BAD_RESP_ERR`: the response does not match the request.
    BadResponse,
    /// `REM_INV_REQ_ERR`: the request is invalid for the peer: longer than the receive, not permitted, or an atomic at
    /// an unaligned address.
    RemoteInvalidRequest,
    /// `REM_ACCESS_ERR`: wrong key, range or permission for the memory of the peer.
    RemoteAccess,
    /// `REM_OP_ERR`: the peer could not execute the request.
    RemoteOperation,
    /// `RETRY_EXC_ERR`: the peer did not respond.
    RetryExceeded,
    /// `RNR_RETRY_EXC_ERR`: the peer had no receive posted for the message.
    RnrRetryExceeded,
    /// `MW_BIND_ERR`: the memory window belongs to another queue pair, or is bound already.
    WindowBind,
    /// `LOC_QP_OP_ERR`, `GENERAL_ERR` and other errors of a hardware or kernel device. This crate's
    /// [`QueuePair`](crate::QueuePair) reports it for bytes that [did not reach their
    /// destination](crate::QueuePair::fail_placement).
    LocalOperation,
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Success => "success",
            Self::LocalLength => "local length error: the message is longer than the receive",
            Self::LocalProtection => "local protection error: a segment is not registered memory",
            Self::WrFlushed => "flushed: the queue pair failed before",
            Self::BadResponse => "bad response: the peer broke the protocol",
            Self::RemoteInvalidRequest => "remote invalid request: the peer does not allow it",
            Self::RemoteAccess => "remote access error: wrong key, range or permission",
            Self::RemoteOperation => "remote operation error: the peer failed",
            Self::RetryExceeded => "retries exceeded: the peer does not respond",
            Self::RnrRetryExceeded => "receiver not ready: the peer posted no receive",
            Self::WindowBind => "memory window bind error: it is bound, or of another queue pair",
            Self::LocalOperation => "local operation error: the device failed",
        })
    }
}

/// The operation of a completion, as in `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "the names say it")]
pub enum WcOpcode {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    AtomicWrite,
    Flush,
    BindWindow,
    Invalidate,
    /// A receive that a SEND has filled, or a receive that failed.
    Recv,
    /// A receive that a WRITE with immediate has consumed. Its segments are unchanged.
    RecvWriteImmediate,
}

impl WcOpcode {
    /// Returns whether the request was on the receive queue.
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImmediate)
    }
}

/// The completion of a request. Requests on one queue complete in posting order, except in a
/// [`SharedReceiveQueue`](crate::SharedReceiveQueue).
///
/// The meaning of success depends on the operation. SEND and WRITE: the peer has acknowledged the whole message. READ
/// and atomic: the result is in local memory. Receive: the message is in local memory. Datagram: it was sent, no more.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The identifier of the request.
    pub id: WrId,
    /// The result. Unless it is success, only `id`, `status`, `qpn` and the queue are valid.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Number of bytes sent, read or received, or written by the peer for a WRITE with immediate.
    pub byte_len: u32,
    /// The immediate data of the received message.
    pub immediate: Option<Immediate>,
    /// The key of the memory window that the received message invalidated.
    pub invalidated: Option<Rkey>,
    /// When it was added to its completion queue, in nanoseconds of the queue owner's clock. This crate sets `None`.
    pub time: Option<NonZeroU64>,
    /// Whether the sender set [`SendFlags::SOLICITED`](crate::SendFlags::SOLICITED).
    pub solicited: bool,
    /// The queue pair of the request.
    pub qpn: Qpn,
    /// The source queue pair of a received datagram. If set, `byte_len` includes the [`Grh`](crate::wire::Grh) in front
    /// of the payload.
    pub source_qpn: Option<Qpn>,
    /// `IBV_WC_GRH`: the message arrived with a network header. True for every received message except raw packet
    /// frames.
    pub has_network_header: bool,
    /// `IBV_WC_IP_CSUM_OK`: the IPv4 checksum and the TCP or UDP checksum of a received frame were verified.
    pub ip_checksum_ok: bool,
}

/// An asynchronous event of a queue pair, as in `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// `COMM_EST`: the first packet arrived in RTR.
    CommunicationEstablished,
    /// `QP_REQ_ERR`: the peer sent an invalid request; the queue pair is in ERR.
    InvalidRequest,
    /// `QP_ACCESS_ERR`: the peer sent a request with a wrong key, range or permission; the queue pair is in ERR.
    AccessViolation,
    /// `QP_LAST_WQE_REACHED`: a queue pair with a [`SharedReceiveQueue`](crate::SharedReceiveQueue) is in ERR and will
    /// consume no more receives.
    LastWqeReached,
    /// `SQ_DRAINED`: the queue pair is in SQD, and every started request is complete.
    SendQueueDrained,
    /// `QP_FATAL`: this side could not execute a request; the queue pair is in ERR.
    Fatal,
}
