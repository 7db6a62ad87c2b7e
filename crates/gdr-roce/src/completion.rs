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
    /// `REM_INV_REQ_ERR`: the request is invalid for the peer: longer than the receive, an
    /// operation that is not allowed, or an atomic at an unaligned address.
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
    /// `LOC_QP_OP_ERR`, `GENERAL_ERR` and other errors of a hardware or kernel device. The
    /// [`QueuePair`](crate::QueuePair) of this crate returns it for bytes that
    /// [did not get to their place](crate::QueuePair::fail_placement).
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

/// The completion of a request. Requests in one queue complete in the order in which they were posted, except in
/// a [`SharedReceiveQueue`](crate::SharedReceiveQueue).
///
/// Success means, for a SEND or WRITE, that the peer has acknowledged all of it; for a READ or atomic, that the
/// result is in local memory; for a receive, that the message is in local memory; and for a datagram, only that
/// it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The identifier of the request.
    pub id: WrId,
    /// The result. If it is not success, only `id`, `status`, `qpn` and the queue are valid.
    pub status: WcStatus,
    /// The operation.
    pub opcode: WcOpcode,
    /// Number of bytes sent, read or received, or written by the peer for a WRITE with immediate.
    pub byte_len: u32,
    /// The immediate data of the received message.
    pub immediate: Option<Immediate>,
    /// The key of the memory window that the received message has invalidated.
    pub invalidated: Option<Rkey>,
    /// When it was added to its completion queue, in nanoseconds of a clock of the queue's owner; this crate sets
    /// `None`.
    pub time: Option<NonZeroU64>,
    /// Whether the sender set [`SendFlags::SOLICITED`](crate::SendFlags::SOLICITED).
    pub solicited: bool,
    /// The queue pair of the request.
    pub qpn: Qpn,
    /// The queue pair that sent a received datagram. If it is set, `byte_len` includes the
    /// [`Grh`](crate::wire::Grh) in front of the payload.
    pub source_qpn: Option<Qpn>,
    /// `IBV_WC_GRH`: the message arrived in packets with a network header, like every received message except
    /// the frames of a raw packet queue pair.
    pub has_network_header: bool,
    /// `IBV_WC_IP_CSUM_OK`: the checksums of IPv4 and of TCP or UDP in a received frame were
    /// verified, and are correct.
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
    /// `QP_ACCESS_ERR`: the peer sent a request with a wrong key, range or permission; the queue
    /// pair is in ERR.
    AccessViolation,
    /// `QP_LAST_WQE_REACHED`: a queue pair with a
    /// [`SharedReceiveQueue`](crate::SharedReceiveQueue) is in ERR, and takes no more receives.
    LastWqeReached,
    /// `SQ_DRAINED`: the queue pair is in SQD, and all requests that it had begun are complete.
    SendQueueDrained,
    /// `QP_FATAL`: this side could not execute a request; the queue pair is in ERR.
    Fatal,
}
