//! One side of a connection, independent of its provider.

use std::net::IpAddr;

use gdr_rdma::{AtomicOp, Deadline, Mtu};

/// The parameters of the peer of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// The IP address.
    pub ip: IpAddr,
    /// The queue pair number.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
    /// The address of its memory.
    pub addr: u64,
    /// The remote key of its memory.
    pub rkey: u32,
}

/// The parameters that both sides share.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// The path MTU.
    pub mtu: Mtu,
    /// The exponent of the ACK timeout: 4.096 us x 2^n.
    pub timeout: u8,
    /// The number of retries without progress.
    pub retries: u8,
    /// The number of retries after RNR NAKs; 7 means unlimited.
    pub rnr_retries: u8,
}

impl Settings {
    /// Seven retries after 134 ms: under TCG a vCPU may not run for tens of milliseconds.
    pub const fn new(mtu: Mtu) -> Self {
        Self {
            mtu,
            timeout: 15,
            retries: 7,
            rnr_retries: 7,
        }
    }
}

/// A request for the send queue. `local` is an offset in the local memory, `remote` one in the memory
/// of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Work {
    /// A SEND, with or without immediate.
    Send {
        local: u64,
        len: u32,
        immediate: Option<u32>,
    },
    /// An RDMA WRITE, with or without immediate.
    Write {
        local: u64,
        len: u32,
        remote: u64,
        immediate: Option<u32>,
    },
    /// An RDMA READ.
    Read { local: u64, len: u32, remote: u64 },
    /// An atomic operation; the original value is stored at `local`.
    Atomic {
        local: u64,
        remote: u64,
        op: AtomicOp,
    },
}

/// The status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Success.
    Success,
    /// `IBV_WC_REM_ACCESS_ERR`.
    RemoteAccess,
    /// `IBV_WC_REM_INV_REQ_ERR`.
    RemoteInvalidRequest,
    /// `IBV_WC_REM_OP_ERR`.
    RemoteOperation,
    /// `IBV_WC_RETRY_EXC_ERR`.
    RetryExceeded,
    /// `IBV_WC_RNR_RETRY_EXC_ERR`.
    RnrRetryExceeded,
    /// `IBV_WC_WR_FLUSH_ERR`.
    Flushed,
    /// Any other `ibv_wc_status`.
    Other(i64),
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the request.
    pub id: u64,
    /// The status.
    pub status: Status,
    /// The length in bytes, for receives and READs.
    pub bytes: u32,
    /// The immediate data of the message.
    pub immediate: Option<u32>,
    /// The queue pair that sent a datagram.
    pub source_qpn: Option<u32>,
}

/// One side of a connection: a queue pair, its completion queue, and a memory region with all access
/// rights. Failures of the set-up panic.
pub trait Endpoint {
    /// A name for messages of failed tests.
    fn name(&self) -> String;
    /// The parameters for the peer.
    fn peer(&self) -> Peer;
    /// Connects the queue pair to the peer.
    fn connect(&mut self, peer: &Peer, settings: &Settings);
    /// Writes to the local memory.
    fn fill(&self, at: u64, bytes: &[u8]);
    /// Reads from the local memory.
    fn bytes(&self, at: u64, len: usize) -> Vec<u8>;
    /// Posts a receive of `len` bytes at `at`.
    fn receive(&self, id: u64, at: u64, len: u32);
    /// Posts a signalled request.
    fn post(&self, id: u64, work: Work);
    /// Waits for the next completion of either queue.
    fn wait(&self, deadline: Deadline) -> Option<Completion>;
}
