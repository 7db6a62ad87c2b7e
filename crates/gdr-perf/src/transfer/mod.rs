//! Measures bandwidth and latency of RDMA operations between two processes as perftest does, with host or GPU memory at
//! each end.
//!
//! [`serve`] waits for a peer. [`measure`] connects to it with a [`Plan`] and returns a [`TransferReport`], which the
//! serving end gets too. Every wait has a deadline. With [`Verification::On`], every byte of every message is compared
//! where it arrived. Consecutive messages in the same place have different patterns, so leftover bytes do not pass.
//!
//! - *Bandwidth*: several requests are in flight, and the time runs from the first request to the last completion. The
//!   latencies of a row are measured under this load, on requests with a completion. With [`Striping::On`], one message
//!   is in flight, in parts over all queue pairs, and a latency covers the whole message.
//! - *Latency*: WRITE and SEND go back and forth, and a sample is half of a round trip. READs and atomic operations are
//!   posted one by one, and a sample is the time from one to the next.

mod endpoint;
mod memory;
mod pipeline;
mod plan;
mod protocol;
mod queue_pairs;
mod report;
mod round_trips;
mod run;
mod threshold;
mod verb;

pub use crate::memory_facts::MemoryFacts;
pub use crate::registered_buffer::TransferMemory;
pub use endpoint::TransferEndpoint;
pub use memory::{LocalEnd, Reach};
pub use plan::{
    Amount, AtomicKind, Direction, MOST_BYTES, Plan, PlanError, Repetition, Request, Role,
    Striping, Verification,
};
pub use protocol::SERVICE;
pub use report::{
    CpuSeconds, LatencyDistribution, TransferEnd, TransferEvent, TransferReport, TransferRow,
};
pub use run::{measure, serve};
pub use threshold::{InvalidThreshold, LatencyFigure, MaximumLatency, MinimumRate, Thresholds};
pub use verb::{Metric, UnknownVerb, Verb};
