//! Measures GPU memory mappings and RDMA, and checks that they are correct.
//!
//! - [`sanity`]: named checks that a mapping shows the memory that the GPU sees, that invalid
//!   requests are refused, and that nothing leaks.
//! - [`loopback`]: RDMA into GPU memory, with proof that the bytes arrived.
//! - [`transfer`]: bandwidth and latency of every RDMA operation between two processes.
//! - [`mesh`]: transfers between all pairs of many processes, and which of them are slow.
//! - [`copybw`], [`copylat`], [`apiperf`], [`pplat`]: the measurements of the GDRCopy tools with
//!   these names, as functions that return reports.
//! - [`copysweep`]: all copy paths side by side, and the planner's choice among them.
//! - [`baseline`]: the same copies by `cuMemcpy`, as a baseline.
//! - [`stats`], [`sizes`], [`timer`], [`report`], [`mapped_buffer`]: the parts they share.
//!
//! This crate prints nothing and has no command line. Every report has a `simulated` field. An error
//! carries a [`Remedy`] if the caller can do something about it.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use gdr_copy::{BackendKind, Context};
//! use gdr_cuda::{Gpu, Ordinal, SimDriver};
//! use gdr_perf::{BenchTarget, sanity};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = SimDriver::new(1);
//! let gpu = Gpu::open(driver.clone(), Ordinal(0))?;
//! let context = Context::builder().simulated(driver).backend(BackendKind::Sim).open()?;
//! let target = BenchTarget::new(gpu, Arc::new(context));
//!
//! let checks = sanity::named(&["basic_cumemalloc"])?;
//! let report = sanity::run(&target, &checks, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(report.passed, 1);
//! assert!(report.subject.simulated);
//! # Ok(())
//! # }
//! ```

#![warn(clippy::disallowed_methods)]
#![deny(unsafe_code)]

pub mod apiperf;
mod arrivals;
pub mod baseline;
mod bench_target;
mod conversation;
mod copy_library;
pub mod copybw;
pub mod copylat;
pub mod copysweep;
mod error;
mod expected;
pub mod loopback;
pub mod mapped_buffer;
mod memory_facts;
pub mod mesh;
mod page_locked;
mod peer_message;
mod ping_pong;
mod poll;
pub mod pplat;
mod registered_buffer;
pub mod report;
pub mod sanity;
pub mod sizes;
pub mod stats;
pub mod timer;
pub mod transfer;
mod wire;

pub use bench_target::BenchTarget;
pub use copy_library::CopyLibrary;
pub use error::{Error, PeerError, Remedy, Result, SettingsError, TransferFailure};
pub use expected::{ChosenPart, Expected};
pub use ping_pong::MemoryLocation;
pub use wire::Wire;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
