//! Errors of calls to a queue pair.

use crate::attributes::State;

/// Why a request was not posted. The queue is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair is not connected.
    #[error("post: the queue pair is in {0:?}; connect it first")]
    State(State),
    /// The queue has reached its size in [`Capabilities`](crate::Capabilities).
    #[error("post: the queue is full at {0} requests; poll completions, or create it larger")]
    Full(u32),
    /// The message is longer than [`MAX_MESSAGE`](crate::MAX_MESSAGE).
    #[error("post: a message of {0} bytes is too long; split it ({max} at most)", max = crate::MAX_MESSAGE)]
    TooLong(u64),
    /// There are more inline bytes than [`max_inline`](crate::Capabilities::max_inline).
    #[error("post: {len} inline bytes are more than {max}; use segments")]
    #[allow(missing_docs, reason = "the names say it")]
    InlineTooLong { len: usize, max: u32 },
    /// READ and atomic requests need a buffer to write to; inline data is not allowed.
    #[error("post: a READ or atomic cannot store its result in inline data; use segments")]
    InlineResponse,
    /// The segments of an atomic request are not eight bytes long.
    #[error("post: an atomic returns 8 bytes, but the segments have {0}; post 8 bytes")]
    AtomicLength(u64),
    /// The queue pair takes its receives from a [`SharedReceiveQueue`](crate::SharedReceiveQueue).
    #[error("post: the queue pair has no receive queue of its own; post to the shared one")]
    SharedReceives,
    /// The queue pair is connected with a `max_rd_atomic` of 0.
    #[error("post: no READ or atomic may be outstanding; connect with max_rd_atomic above zero")]
    NoReads,
}

/// The requested state transition is not allowed; the queue pair stays in `from`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "modify queue pair: {from:?} cannot change to {to:?}; the order is RESET, INIT, RTR, RTS, SQD"
)]
#[allow(missing_docs, reason = "the names say it")]
pub struct StateError {
    pub from: State,
    pub to: State,
}
