//! Requests and completions.

use smallvec::SmallVec;

use crate::checksum::Checksum;
use crate::finding::StackId;

/// A segment of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The address named by the request.
    pub address: u64,
    /// Its length in bytes.
    pub len: u32,
    /// The local key.
    pub lkey: u32,
}

/// The segments of a request.
pub(crate) type Segments = SmallVec<[Segment; 2]>;

/// What a send request does with its segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Read by the device: SEND and WRITE.
    Gathers,
    /// Copied when the request was posted.
    Inline,
    /// Written by the device: READ and atomics.
    Scatters,
    /// No relevant segments: a bind or an invalidation.
    Other,
}

/// Whether a request generates a completion on success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// It does.
    Signaled,
    /// Only an error generates one.
    Unsignaled,
}

/// A send request.
#[derive(Clone, Debug)]
pub struct Send<'a> {
    /// The work request identifier.
    pub id: u64,
    /// The operation.
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
    /// The work request identifier.
    pub id: u64,
    /// Its segments.
    pub segments: &'a [Segment],
    /// Where it was posted.
    pub stack: StackId,
}

/// A completion that the program polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The work request identifier.
    pub id: u64,
    /// The queue pair number.
    pub qpn: u32,
    /// The value of `enum ibv_wc_status`.
    pub status: u32,
    /// Whether it belongs to a receive; `None` where the device does not specify it, as with errors.
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

/// A request whose end the program has not seen.
#[derive(Debug)]
pub(crate) struct Outstanding {
    pub(crate) id: u64,
    pub(crate) operation: Operation,
    pub(crate) signal: Signal,
    pub(crate) segments: Segments,
    /// The checksum of the bytes that the device reads, if the CPU can read them.
    pub(crate) sum: Option<Checksum>,
    /// How many receives the program had polled when posting it.
    pub(crate) receives_before: u64,
    pub(crate) stack: StackId,
}

impl Outstanding {
    /// Returns the total length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.segments.iter().map(|it| u64::from(it.len)).sum()
    }

    /// Returns whether the device uses the segments until the request ends.
    pub(crate) fn uses_memory(&self) -> bool {
        matches!(self.operation, Operation::Gathers | Operation::Scatters)
    }
}
