//! A libibverbs with simulated devices, which a test configures: the software NIC with a plan of
//! faults.
//!
//! `gdr-verbs`, below the shared library, makes objects, transfers, completions and events. The fake changes what a
//! [`DeviceSpec`] or a [`Fault`] specifies. GPU memory is memory registered by descriptor like a dma-buf (a memfd
//! works), and memory of a simulated peer-memory module.
//!
//! A test controls the library with [`Fake`], each of which has its own copy. All devices of a process are one device
//! of the NIC, at an address that no other process uses. The [`Report`] has all calls, live objects and violations of
//! the API. A command under test reads its devices from a file: [`Fake::environment`].

// Exported functions and operations of contexts have the contracts of the libibverbs functions with their names, which
// is what comments mean by the contract of a function.

mod client;
mod control;
mod device;
mod event;
mod mapping;
mod mlx5;
mod nic;
mod pair;
mod query;
mod queue;
mod region;
mod report;
mod spec;
mod state;
mod verb;

pub use client::Fake;
pub use control::Fault;
pub use report::{Call, Kind, Report};
pub use spec::{DeviceSpec, GidSpec, GpuPath, PortSpec};
