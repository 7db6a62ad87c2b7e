//! GPU memory as CPU memory: pin, map, copy.
//!
//! A [`Context`] chooses a backend, [`Context::pin`] pins a range of GPU memory, and
//! [`Pinned::map`] maps it for the CPU. On x86 the mapping is write-combined and goes over PCIe:
//! stores are posted and fast (64 bytes in about 0.1 us), loads take a PCIe round trip for each 64
//! bytes (about 1 us).
//!
//! | backend | how | requires |
//! |---|---|---|
//! | `gdrdrv` | NVIDIA's GDRCopy kernel module | the module, loaded |
//! | `dmabuf` | mmap of a dma-buf that CUDA exported | driver 610 or later, CUDA 13.3 |
//! | `rm` | the stock driver's own memory-mapping calls | the stock driver only |
//! | `sim` | a memfd behind the simulated GPU | nothing; reports `simulated` |
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
//! - **Persistent**: the memory stays allocated while it is pinned, also after `cudaFree`, and is
//!   not given to another allocation. [`Pinned::invalidated`] reports the exception, `gdrdrv` in
//!   its non-persistent mode.
//! - **Not inherited**: a forked child has no mapping; calls return [`Error::ForkedChild`].
//! - **Not Rust memory**: the GPU and the network write to it at any time, so this crate never
//!   makes a `&[u8]` of it.
//!
//! Memory that another library allocated (PyTorch, cudarc, NCCL) is pinned as a
//! [`DeviceBuffer`](gdr_cuda::DeviceBuffer::from_owner) that keeps its owner:
//! [`Context::pin_buffer`].
//!
//! The order of loads and stores is documented at [`cpu`].
//!
//! # Long copies
//!
//! Loads and stores are the fastest path for short copies only. A [`Copier`] takes the fastest one for
//! each: the calling thread, several threads, or the GPU's copy engine, as [`plan`] chooses.

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
