//! The CUDA driver, loaded at run time, and a simulated GPU as its twin.
//!
//! [`Driver`] is the seam: what this workspace asks of a GPU, and no more. [`Cuda`] implements it
//! with NVIDIA's `libcuda.so.1`, which is opened when it is asked for and is an [`Error`] like any
//! other where it is missing. [`SimDriver`] implements it with memory of this process and threads
//! for streams, so that everything above can be developed and tested where no GPU is.
//!
//! This is no general CUDA binding: there are no user kernels, textures, graphs or peer copies,
//! only memory of every kind that others may hand us, what the driver knows about an address, the
//! handles by which others reach it, and the few kernels ([`Launch`]) that prove what arrived.
//!
//! [`Gpu`] is one device of either driver; it makes [`DeviceBuffer`], [`HostBuffer`] and
//! [`Stream`], which own what they hold and check every range. Raw addresses ([`DevicePtr`]) come
//! in only through `unsafe` functions.
//!
//! ```
//! use std::time::Duration;
//!
//! use gdr_cuda::{Gpu, MemoryKind, Ordinal, PointerKind, SimDriver};
//!
//! # fn main() -> gdr_cuda::Result<()> {
//! // With a GPU: `Cuda::load()?`.
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

mod bdf;
mod buffer;
mod cuda;
mod driver;
mod error;
mod gpu;
mod host_buffer;
mod kernel;
mod pointer;
mod remote_writes;
mod shared_memory;
mod sim;
mod stream;

pub use bdf::{Bdf, ParseBdfError};
pub use buffer::DeviceBuffer;
pub use cuda::{CaptureGuard, Cuda, RetainedAllocation, Scratch};
pub use driver::{
    CudaVersion, DeviceInfo, DmaBuf, Driver, DriverKind, MemoryKind, Ordinal, RawAllocation,
    RawHostAllocation, RawStream, StreamState,
};
pub use error::{CuResult, Error, Result};
pub use gpu::Gpu;
pub use host_buffer::HostBuffer;
pub use kernel::{Direction, Launch, VerifyReport, pattern_word};
pub use pointer::{AddressRange, BufferId, DevicePtr, Family, PointerInfo, PointerKind};
pub use remote_writes::{RemoteWrites, WritesOrdering};
pub use sim::{SimDriver, SimShare};
pub use stream::Stream;
