//! GPU memory as CPU memory: pin, map, copy.
//!
//! A [`Context`] picks a backend, [`Context::pin`] takes hold of a range of GPU memory, and
//! [`Pinned::map`] gives the CPU a window into it. The window is a write-combined PCIe mapping
//! on x86: stores are posted and fast (64 bytes in about 0.1 us), loads cost a PCIe round trip
//! for each 64 bytes (about 1 us).
//!
//! | backend | how | needs |
//! |---|---|---|
//! | `gdrdrv` | NVIDIA's GDRCopy kernel module | the module, loaded |
//! | `dmabuf` | mmap of a dma-buf that CUDA exported | driver 610 or later, CUDA 13.3 |
//! | `rm` | the stock driver's own memory-mapping calls | the stock driver only |
//! | `sim` | a memfd behind the simulated GPU | nothing; says `simulated` |
//!
//! No backend of this crate needs privileges, and only `gdrdrv` needs a kernel module.
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
//! # What a mapping is
//!
//! - **Persistent**: the memory stays allocated while it is pinned, also after `cudaFree`; the
//!   mapping then still reads and writes that memory and nobody else's. [`Pinned::invalidated`]
//!   tells for `gdrdrv` in its non-persistent mode.
//! - **Not inherited**: a forked child has no mapping and gets [`Error::ForkedChild`].
//! - **Not Rust memory**: the GPU and the network write to it at any time, so there is no
//!   `&[u8]` over it anywhere in this crate.
//!
//! Ordering is written down at [`cpu`].

mod backend;
mod choice;
mod context;
pub mod cpu;
mod error;
mod flag;
mod fork;
mod mapping;
mod pinned;
mod window;

pub use backend::rm::RmStatus;
pub use choice::{BackendKind, Choice, ParseBackendError, Rejected};
pub use context::{Attributes, Context, ContextBuilder, ModuleVersion};
pub use cpu::Caching;
pub use error::{Error, Result};
pub use flag::{Flag, FlagWord};
pub use fork::Origin;
pub use mapping::{Mapping, Slice};
pub use pinned::{Bar1, Bus, Extent, MapOptions, PinInfo, PinOptions, Pinned, Route, RouteReport};
