//! Requests and completions.

use smallvec::SmallVec;

use crate::checksum::Checksum;
use crate::finding::StackId;

/// A segment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address that the request names.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The local key.
    pub lkey: u32,
}

/// The segments of a request.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// What a request of a send queue does with its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The device reads them: SEND and WRITE.
    Gathers,
    /// The data was copied when the request was posted.
    Inline,
    /// The device writes to them: READ and atomics.
    Scatters,
    /// It has none that count: a bind, an invalidation.
    Other,
}

/// Whether the end of a request gives a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It gives one.
    Signaled,
    /// Only an error gives one.
    Unsignaled,
}

/// A request of a send queue.
#[derive(Clone, Debug)]
pub struct Send<'a> {
    /// The number that the program gave it.
    pub id: u64,
    /// What it does.
    pub operation: Operation,
    /// Whether `IBV_SEND_SIGNALED` is set.
    pub signal: Signal,
    /// Its segments.
    pub segments: &'a [Segment],
    /// Where it was posted.
    pub stack: StackId,
}

/// A receive.
#[derive(Clone, Debug)]
pub struct Receive<'a> {
    /// The number that the program gave it.
    pub id: u64,
    /// Its segments.
    pub segments: &'a [Segment],
    /// Where it was posted.
    pub stack: StackId,
}

/// A completion that the program polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the request.
    pub id: u64,
    /// The number of the queue pair.
    pub qpn: u32,
    /// The value of `enum ibv_wc_status`.
    pub status: u32,
    /// Whether it is one of a receive; `None` where the device does not say so, as with an error.
    pub is_receive: Option<bool>,
}

/// `IBV_WC_SUCCESS` of infiniband/verbs.h.
pub(crate) const SUCCESS: u32 = 0;
/// `IBV_WC_LOC_PROT_ERR`.
pub(crate) const LOCAL_PROTECTION: u32 = 4;
/// `IBV_WC_WR_FLUSH_ERR`.
pub(crate) const FLUSHED: u32 = 5;
/// `IBV_WC_REM_ACCESS_ERR`.
pub(crate) const REMOTE_ACCESS: u32 = 10;

/// A request that its program has not seen the end of.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) signal: Signal,
    pub(crate) segments: Segments,
    /// The sum of the bytes that the device reads, if the CPU can read them.
    pub(crate) sum: Option<Checksum>,
    /// How many receives the program had polled when it posted this.
    pub(crate) receives_before: u64,
    pub(crate) stack: StackId,
}

impl Outstanding {
    /// The number of bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|it| u64::from(it.len)).sum()
    }

    /// Returns whether the device reads the segments until the end.
    pub(crate) fn uses_memory(&self) -> bool {
        matches!(self.operation, Operation::Gathers | Operation::Scatters)
    }
}
