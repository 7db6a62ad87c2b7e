//! The CUDA driver, loaded at run time, and a simulated GPU as its twin.
mod bdf;
mod buffer;
mod cuda;
mod driver;
mod error;
mod gpu;
mod host_buffer;
mod kernel;
mod pointer;
mod shared_memory;
mod sim;
mod stream;

pub use bdf::{Bdf, ParseBdfError};
pub use buffer::DeviceBuffer;
pub use cuda::{CaptureGuard, Cuda, RetainedAllocation};
pub use driver::*;
pub use error::{CuResult, Error, Result};
pub use gpu::Gpu;
pub use host_buffer::HostBuffer;
pub use kernel::*;
pub use pointer::{BufferId, DevicePtr, PointerInfo, PointerKind};
pub use sim::{SimDriver, SimShare};
pub use stream::Stream;
