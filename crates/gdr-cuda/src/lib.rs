//! The CUDA driver, loaded at run time, and a simulated GPU with the same interface.
//!
//! The [`Driver`] trait covers the GPU operations that this workspace uses. [`Cuda`] implements it with NVIDIA's
//! `libcuda.so.1`, which is loaded at run time; a missing library is an [`Error`]. [`SimDriver`] implements it with
//! memory of this process, and with threads for streams, so that everything above can be developed and tested without a
//! GPU.
//!
//! This is not a general CUDA binding: it has no user kernels, textures, graphs or peer copies. It supports all kinds
//! of memory, queries about addresses, handles to share memory with other devices and processes, and a few kernels
//! ([`Launch`]) that verify data.
//!
//! [`open_driver`] opens the driver that the environment selects. A [`Gpu`] is one of its devices, and creates
//! [`DeviceBuffer`]s, [`HostBuffer`]s and [`Stream`]s, which own their memory and check every range.
//! [`DeviceBuffer::from_owner`] wraps memory from other libraries (PyTorch, cudarc, NCCL). Only `unsafe` functions take
//! raw addresses ([`DevicePtr`]).
//!
//! ```
//! use std::time::Duration;
//!
//! use gdr_cuda::{Gpu, MemoryKind, Ordinal, PointerKind, SimDriver};
//!
//! # fn main() -> gdr_cuda::Result<()> {
//! // `open_driver()?` in a program: NVIDIA's driver, or with GDR_BACKEND=sim the simulation.
//! let gpu = Gpu::open(SimDriver::new(1), Ordinal(0))?;
//! let buffer = gpu.allocate(MemoryKind::Plain, 1 << 20)?;
//! assert_eq!(gpu.driver().pointer_info(buffer.ptr())?.kind, PointerKind::Device);
//!
//! let (stream, limit) = (gpu.stream()?, Duration::from_secs(10));
//! stream.fill_pattern(&buffer, 0, 1 << 18, 7, limit)?;
//! buffer.write(4096, b"overwritten")?;
//!
//! let report = stream.verify_pattern(&buffer, 0, 1 << 18, 7, limit)?;
//! assert_eq!((report.mismatches, report.first), (3, 1024));
//! # Ok(())
//! # }
//! ```

#![warn(clippy::disallowed_methods)]

// `tests/sealed/outsider.rs`, which tests of this crate include, refers to this crate by name as other crates do.
#[cfg(test)]
extern crate self as gdr_cuda;

mod buffer;
mod concrete_driver;
mod cuda;
mod device;
mod device_export;
mod driver;
mod environment;
mod error;
mod gather;
mod gpu;
mod guarded_copy;
mod host_buffer;
mod imported_memory;
mod kernel;
mod pointer;
mod pooled_host_buffer;
mod rdma_write_ordering;
mod sim;
mod stream;
mod sum64;
pub mod volatile;

pub use buffer::DeviceBuffer;
pub use concrete_driver::ConcreteDriver;
pub use cuda::export::RetainedAllocation;
pub use cuda::probe_alloc::ProbeAllocator;
pub use cuda::{CaptureGuard, Cuda};
pub use device::{CudaVersion, DeviceInfo, Ordinal};
pub use device_export::{DeviceExport, ExportedMemory};
pub use driver::{
    DmaBuf, Driver, DriverKind, HostCall, HostMemoryOrigin, MemoryKind, RawAllocation,
    RawHostAllocation, RawImport, RawStream, StreamState,
};
pub use environment::open_driver;
pub use error::{CuResult, Error, Result};
pub use gather::Gather;
pub use gdr_pci::{Bdf, ParseBdfError};
pub use gpu::Gpu;
pub use guarded_copy::{GuardedCopy, GuardedState};
pub use host_buffer::HostBuffer;
pub use imported_memory::ImportedMemory;
pub use kernel::{Direction, Launch, PushRequest, VerifyReport, pattern_word};
pub use pointer::{AddressRange, BufferId, DevicePtr, Family, PointerInfo, PointerKind};
pub use pooled_host_buffer::PooledHostBuffer;
pub use rdma_write_ordering::{RemoteWrites, WritesOrdering};
pub use sim::{SimBlockingKernel, SimDriver, SimShare};
pub use stream::{Stream, StreamId};
pub use sum64::Sum64;

#[cfg(doctest)]
mod compile_fail;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
