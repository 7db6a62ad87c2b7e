//! The CUDA driver, loaded at run time, and a simulated GPU as its twin.
#![warn(missing_docs)]
mod bdf;
mod driver;
mod error;
mod kernel;
mod pointer;
pub use bdf::{Bdf, ParseBdfError};
pub use driver::*;
pub use error::{CuResult, Error, Result};
pub use kernel::*;
pub use pointer::{BufferId, DevicePtr, PointerInfo, PointerKind};
