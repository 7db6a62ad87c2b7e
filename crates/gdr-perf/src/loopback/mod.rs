//! Transfers from an RDMA device into GPU memory, with proof that the bytes arrived.
//!
//! Each iteration:
//!
//! 1. A kernel fills the target with *pattern A*, and another kernel verifies it.
//! 2. Memory at the other device, host or GPU memory, is filled with *pattern B*, and RDMA WRITE transfers it to the
//!    target. The last message carries an immediate, so that both ends get a completion.
//! 3. The target is compared by a kernel launched after the completion, by a copy to the host, and by loads through a
//!    CPU mapping. The bytes around it must be unchanged.
//! 4. RDMA READ transfers the target back into other memory of the same kind, where it is compared.
//!
//! A run passes only if every part of it does, because successful calls alone prove nothing. Every wait has a deadline.
//! A failed run has a [`Cause`], which says whether nothing arrived, only a part, or wrong bytes, or whether a
//! completion is missing, and what to do.
//!
//! [`sweep`] instead measures latency and bandwidth by size, direct and staged. [`pipeline`] measures both modes up to
//! the result of a kernel.
//!
//! [`run`] runs both ends in one process; [`listen`] and [`connect`] are one end each. The listening end owns the GPU
//! memory.

pub(crate) mod compare;
pub(crate) mod connection;
mod device;
mod device_memory;
mod device_select;
mod diagnose;
mod event;
mod gpu;
mod host_port;
mod in_process;
mod iterations;
pub mod pipeline;
mod protocol;
pub(crate) mod registration;
mod report;
mod requester;
mod settings;
pub(crate) mod staging;
mod sweep;
mod two_process;

pub use crate::memory_facts::{Memory, TransferMode};
pub use device::{open_both, open_connector, open_listener};
pub use device_select::{
    Chosen, DeviceName, DevicePair, InvalidDeviceName, NicDistance, ProviderPreference,
};
pub use event::{Event, Step};
pub use host_port::{HostPort, InvalidHostPort, SETUP_PORT, is_this_host};
pub use in_process::run;
pub use protocol::SERVICE;
pub use report::{
    Cause, CauseKind, Checks, Difference, End, Ended, Iteration, Outcome, PacketCounts, Packets,
    Path, Report, Throughput, Verdict,
};
pub use settings::{Destination, Fault, Settings, TransferPreference};
pub use sweep::{DirectRatio, Operation, PathKind, Row, Sweep, SweepEvent, SweepSettings, sweep};
pub use two_process::{ListeningEnd, Timeouts, connect, listen};
