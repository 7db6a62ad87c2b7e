//! Measuring GPU memory mappings, and proving them sound.
//!
//! - [`sanity`]: named checks that the memory behind a mapping is the memory that the GPU sees,
//!   that it is refused where it must be, and that nothing is left behind.
//! - [`copybw`], [`copylat`], [`apiperf`], [`pplat`]: what GDRCopy's tools of these names
//!   measure, as functions that return reports.
//! - [`stats`], [`sizes`], [`timer`], [`report`]: what they are made of.
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

mod error;
mod patience;
mod rally;
pub mod report;
pub mod sanity;
mod site;

pub use error::{Error, Result};
pub use rally::Place;
pub use site::Site;
