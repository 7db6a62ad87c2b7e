//! Maps GPU memory into the CPU's address space, and copies to and from it.
//!
//! A [`Context`] selects a backend, [`Context::pin`] pins a range of GPU memory, and [`Pinned::map`] maps it for the
//! CPU. On x86 the mapping is write-combined and goes over PCIe: stores are posted and fast (64 bytes in about 0.1 us),
//! while loads take a PCIe round trip for every 64 bytes (about 1 us).
//!
//! | backend | how | requires |
//! |---|---|---|
//! | `gdrdrv` | NVIDIA's GDRCopy kernel module | the module, loaded |
//! | `dmabuf` | mmap of a dma-buf that CUDA exported | driver 610 or later, CUDA 13.3 |
//! | `rm` | the stock driver's own memory-mapping calls | nothing but the stock driver |
//! | `sim` | mmap of the simulated GPU's memfd | nothing; reports `simulated` |
//!
//! No backend requires privileges, and only `gdrdrv` requires a kernel module.
//!
//! ```
//! use gdr_copy::{BackendKind, Context};
//! use gdr_cuda::{Gpu, MemoryKind, Ordinal, SimDriver};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let driver = SimDriver::new(1);
//! let buffer = Gpu::open(driver.clone(), Ordinal(0))?.allocate(MemoryKind::Plain, 1 << 20)?;
//!
//! let context = Context::builder().simulated(driver).backend(BackendKind::Sim).open()?;
//! let mapping = context.pin(buffer.ptr(), buffer.len())?.map()?;
//! mapping.write_at(100, b"hello")?;
//!
//! let mut seen = [0; 5];
//! buffer.read(100, &mut seen)?; // a cudaMemcpy
//! assert_eq!(&seen, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Properties of a mapping
//!
//! - **Persistent**: the memory stays allocated while it is pinned, even after `cudaFree`, and is
//!   not reused for another allocation. The exception is `gdrdrv` in its non-persistent mode, which
//!   [`Pinned::invalidated`] reports.
//! - **Not inherited**: a forked child does not have the mapping; calls return [`Error::ForkedChild`].
//! - **Not Rust memory**: the GPU and the network may write to it at any time, so this crate never
//!   creates a `&[u8]` to it.
//!
//! To pin memory from another library (PyTorch, cudarc, NCCL), wrap it in a
//! [`DeviceBuffer`](gdr_cuda::DeviceBuffer::from_owner), which keeps the owner alive, and pass that to
//! [`Context::pin_buffer`].
//!
//! The order of loads and stores is documented at [`cpu`].
//!
//! # Long copies
//!
//! Loads and stores are the fastest path only for short copies. A [`Copier`] uses the fastest path for each copy: the
//! calling thread, several threads, or the GPU's copy engine, as [`plan`] chooses.

#![warn(clippy::disallowed_methods)]

mod backend;
mod backend_kind;
mod bar_mapping;
mod context;
mod copier;
pub mod cpu;
mod engine_reads;
mod error;
mod flag;
mod machine;
mod mapping;
mod options;
mod pin_state;
mod pinned;
pub mod plan;
mod profile_store;
mod report;

pub use backend::rm::driver_evidence;
pub use backend::rm::status::RmStatus;
pub use backend_kind::{BackendChoice, BackendKind, ParseBackendError, Rejected};
pub use context::{Context, ContextBuilder};
pub use copier::{Allocations, Copier, Transfer};
pub use cpu::Caching;
pub use engine_reads::{EngineReads, Lease};
pub use error::{Error, Result};
pub use flag::{Flag, FlagWord};
pub use gdr_process::{PerProcess, ProcessId};
pub use machine::{default_threads, driver_version, profile_key};
pub use mapping::{Mapping, Slice};
pub use options::{Bus, MapOptions, PinGranularity, PinOptions};
pub use pinned::Pinned;
pub use profile_store::{
    CalibrationSource, ProfileError, ProfileStore, built_in_calibration, calibration_for,
};
pub use report::{Attributes, Bar1, ModuleVersion, PinInfo, Route, RouteReport};

#[cfg(doctest)]
mod compile_fail;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
