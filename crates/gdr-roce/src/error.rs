//! What can go wrong before a packet is sent.

use crate::queue_pair::State;

/// Why a request was not taken. Nothing was queued.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair is not yet connected.
    #[error("post: the queue pair is in {0:?}; connect it first")]
    State(State),
    /// The queue holds as many requests as it was made for.
    #[error("post: the queue is full at {0} requests; poll completions, or make it larger")]
    Full(u32),
    /// More bytes than a message can have.
    #[error("post: a message of {0} bytes is too long; split it ({max} at most)", max = crate::MAX_MESSAGE)]
    TooLong(u64),
    /// More inline bytes than the queue was made for.
    #[error("post: {len} inline bytes are more than {max}; use segments")]
    InlineTooLong {
        /// How many were given.
        len: usize,
        /// How many are possible.
        max: u32,
    },
    /// READ and atomics fill memory, inline bytes are none.
    #[error("post: an answer cannot go to inline bytes; use segments")]
    InlineAnswer,
    /// An atomic's answer has eight bytes.
    #[error("post: an atomic answers eight bytes, the segments hold {0}; give it eight")]
    AtomicLength(u64),
    /// The queue pair was connected with no READs or atomics allowed.
    #[error("post: no READ or atomic may be outstanding; connect with max_rd_atomic above zero")]
    NoReads,
}

/// Why a queue pair did not change its state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("modify queue pair: {from:?} does not lead to {to:?}; go RESET, INIT, RTR, RTS")]
pub struct StateError {
    /// The state it is in, still.
    pub from: State,
    /// The state that was asked for.
    pub to: State,
}
