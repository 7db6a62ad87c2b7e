//! One side of a connection, by whichever provider.

use std::net::IpAddr;

use gdr_rdma::{AtomicOp, Deadline, Mtu};

/// What a side must know of its peer to connect.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// Where it receives.
    pub ip: IpAddr,
    /// The number of its queue pair.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
    /// Address of the first byte of its memory.
    pub addr: u64,
    /// The key of its memory.
    pub rkey: u32,
}

/// What both sides agree upon.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Payload of a packet.
    pub mtu: Mtu,
    /// 4.096 us times two to the power of this, before something is sent again.
    pub timeout: u8,
    /// How often, without progress in between.
    pub retries: u8,
    /// How often to a receiver that is not ready; 7 is for ever.
    pub rnr_retries: u8,
}

impl Settings {
    /// 134 ms, seven times: under translation a vCPU may be away for tens of milliseconds.
    pub const fn new(mtu: Mtu) -> Self {
        Self {
            mtu,
            timeout: 15,
            retries: 7,
            rnr_retries: 7,
        }
    }
}

/// What is posted to a send queue. `local` is an offset in this side's memory, `remote` one in the
/// peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// SEND, with an immediate or without.
    Send {
        /// From where.
        local: u64,
        /// How many bytes.
        len: u32,
        /// Arrives in the receive's completion.
        immediate: Option<u32>,
    },
    /// RDMA WRITE, with an immediate or without.
    Write {
        /// From where.
        local: u64,
        /// How many bytes.
        len: u32,
        /// Where to.
        remote: u64,
        /// Arrives in the receive's completion.
        immediate: Option<u32>,
    },
    /// RDMA READ.
    Read {
        /// Where to.
        local: u64,
        /// How many bytes.
        len: u32,
        /// From where.
        remote: u64,
    },
    /// An atomic operation; the value before goes to `local`.
    Atomic {
        /// Where the value before goes.
        local: u64,
        /// On which eight bytes.
        remote: u64,
        /// What.
        op: AtomicOp,
    },
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// As it should.
    Success,
    /// The peer refuses the access.
    RemoteAccess,
    /// The peer cannot make sense of the request.
    RemoteInvalidRequest,
    /// The peer cannot do it, for reasons of its own.
    RemoteOperation,
    /// No answer.
    RetryExceeded,
    /// The peer had no receive posted.
    RnrRetryExceeded,
    /// An earlier request failed.
    Flushed,
    /// The number of any other `ibv_wc_status`.
    Other(i64),
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// As posted.
    pub id: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Of receives and READs.
    pub bytes: u32,
    /// What came with the message.
    pub immediate: Option<u32>,
}

/// One side: a queue pair, its completion queue, and one stretch of registered memory that the
/// peer may do everything to. Failures of set-up are the guest's and panic.
pub trait End {
    /// For messages of failed tests.
    fn name(&self) -> String;
    /// What the other side must know.
    fn peer(&self) -> Peer;
    /// To RTS.
    fn connect(&mut self, peer: &Peer, settings: &Settings);
    /// Writes this side's own memory, as a program does.
    fn fill(&self, at: u64, bytes: &[u8]);
    /// Reads it.
    fn bytes(&self, at: u64, len: usize) -> Vec<u8>;
    /// Posts a receive of `len` bytes at `at`.
    fn receive(&self, id: u64, at: u64, len: u32);
    /// Posts a request, signalled.
    fn post(&self, id: u64, work: Work);
    /// The next completion of either queue.
    fn wait(&self, deadline: Deadline) -> Option<Done>;
}
