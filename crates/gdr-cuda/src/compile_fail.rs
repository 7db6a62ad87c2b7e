//! Programs that must not compile, as doctests. Each has a twin that differs only in the marked line and compiles, so
//! that a renamed function cannot change the meaning of the failure. The documentation of `Driver` shows that the trait
//! is sealed.
//!
//! # Only unsafe code wraps memory that other code allocated
//!
//! ```
//! use gdr_cuda::{DeviceBuffer, DevicePtr, Gpu, Result};
//! fn f(gpu: &Gpu, ptr: DevicePtr) -> Result<DeviceBuffer> {
//!     unsafe { DeviceBuffer::borrowed(gpu, ptr, 64) } // here
//! }
//! ```
//! ```compile_fail,E0133
//! use gdr_cuda::{DeviceBuffer, DevicePtr, Gpu, Result};
//! fn f(gpu: &Gpu, ptr: DevicePtr) -> Result<DeviceBuffer> {
//!     DeviceBuffer::borrowed(gpu, ptr, 64) // here
//! }
//! ```
//!
//! # Page-locked memory, which the GPU may write at any time, is not Rust memory
//!
//! ```
//! fn f(host: &gdr_cuda::HostBuffer) {
//!     let bytes: *const u8 = host.cpu_ptr(); // here
//! }
//! ```
//! ```compile_fail,E0308
//! fn f(host: &gdr_cuda::HostBuffer) {
//!     let bytes: &[u8] = host; // here
//! }
//! ```
