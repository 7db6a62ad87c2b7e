//! What became of a request, and of the queue pair.

use std::fmt;

use crate::key::{Immediate, Qpn, WrId};

/// How a request ended, in the words of `enum ibv_wc_status`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WcStatus {
    /// Done.
    Success,
    /// `LOC_LEN_ERR`: a message was longer than the receive's segments.
    LocalLength,
    /// `LOC_PROT_ERR`: one of this side's segments is not in registered memory.
    LocalProtection,
    /// `WR_FLUSH_ERR`: not done, since the queue pair had failed before.
    WrFlushed,
    /// `BAD_RESP_ERR`: the peer answered what was not asked.
    BadResponse,
    /// `REM_INV_REQ_ERR`: the peer found the request invalid: too long for its receive, an
    /// operation it does not allow, an atomic on an odd address.
    RemoteInvalidRequest,
    /// `REM_ACCESS_ERR`: the peer's memory may not be accessed so.
    RemoteAccess,
    /// `REM_OP_ERR`: the peer could not do it, for reasons of its own.
    RemoteOperation,
    /// `RETRY_EXC_ERR`: the peer did not answer.
    RetryExceeded,
    /// `RNR_RETRY_EXC_ERR`: the peer had no receive for the message.
    RnrRetryExceeded,
    /// `LOC_QP_OP_ERR`, `GENERAL_ERR` and others that a device of the kernel gives: it could not
    /// do its part. gdr's own engine never does.
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
            Self::RetryExceeded => "retries exceeded: the peer does not answer",
            Self::RnrRetryExceeded => "receiver not ready: the peer posted no receive",
            Self::LocalOperation => "local operation error: the device failed",
        })
    }
}

/// What a completion is about, in the words of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs)] // The names say it all.
pub enum WcOpcode {
    Send,
    Write,
    Read,
    FetchAdd,
    CompareSwap,
    /// A receive took a SEND; also of a receive that failed.
    Recv,
    /// A receive was taken by a WRITE with an immediate: the bytes are where the peer chose.
    RecvWriteImmediate,
}

impl WcOpcode {
    /// Whether it is about the receive queue.
    pub const fn is_receive(self) -> bool {
        matches!(self, Self::Recv | Self::RecvWriteImmediate)
    }
}

/// The end of a request. Requests of one queue end in the order in which they were posted.
///
/// Success of a SEND or WRITE says that the peer acknowledged every byte of it, of a READ or
/// atomic that the answer is in this side's memory, of a receive that the message is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Completion {
    /// The request's.
    pub id: WrId,
    /// How it ended. Of one that failed, only `id`, `status`, `qpn` and the queue are meaningful.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// How many bytes were sent, read, received or (for an immediate) written by the peer.
    pub byte_len: u32,
    /// What came with the message.
    pub immediate: Option<Immediate>,
    /// Whether the sender asked for the receiver to be woken.
    pub solicited: bool,
    /// Whose request.
    pub qpn: Qpn,
}

/// Something that happened to the queue pair itself, in the words of `enum ibv_event_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// `COMM_EST`: the first packet came while still in RTR.
    CommunicationEstablished,
    /// `QP_REQ_ERR`: the peer sent an invalid request; the queue pair is in ERR.
    InvalidRequest,
    /// `QP_ACCESS_ERR`: the peer's request may not access that memory; the queue pair is in ERR.
    AccessViolation,
    /// `QP_FATAL`: this side could not do its part; the queue pair is in ERR.
    Fatal,
}
