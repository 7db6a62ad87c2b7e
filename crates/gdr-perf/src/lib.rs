//! Measuring GPU memory mappings, and proving them sound.
//!
//! - [`sanity`]: named checks that the memory behind a mapping is the memory that the GPU sees,
//!   that it is refused where it must be, and that nothing is left behind.
//! - [`loopback`]: RDMA into GPU memory, proved to have arrived.
//! - [`copybw`], [`copylat`], [`apiperf`], [`pplat`]: what GDRCopy's tools of these names
//!   measure, as functions that return reports.
//! - [`against`]: the same bytes by `cuMemcpy`, to compare with.
//! - [`stats`], [`sizes`], [`timer`], [`report`], [`target`]: what they are made of.
//!
//! Nothing here prints or reads arguments. Every report says whether it was `simulated`.
//!
//! ```
//! use std::ops::ControlFlow;
//! use std::sync::Arc;
//!
//! use gdr_copy::{BackendKind, Context};
//! use gdr_cuda::{Gpu, Ordinal, SimDriver};
//! use gdr_perf::{Site, sanity};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = SimDriver::new(1);
//! let gpu = Gpu::open(driver.clone(), Ordinal(0))?;
//! let context = Context::builder().simulated(driver).backend(BackendKind::Sim).open()?;
//! let site = Site::new(gpu, Arc::new(context));
//!
//! let checks = sanity::named(&["basic_cumemalloc"])?;
//! let report = sanity::run(&site, &checks, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(report.passed, 1);
//! assert!(report.subject.simulated);
//! # Ok(())
//! # }
//! ```

#![deny(unsafe_code)]

pub mod against;
pub mod apiperf;
pub mod copybw;
pub mod copylat;
mod error;
pub mod loopback;
mod page_locked;
mod patience;
pub mod pplat;
mod rally;
pub mod report;
pub mod sanity;
mod site;
pub mod sizes;
pub mod stats;
pub mod target;
pub mod timer;

pub use error::{Error, Result};
pub use rally::Place;
pub use site::Site;
