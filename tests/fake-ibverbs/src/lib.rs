//! A libibverbs with simulated devices, which a test configures: the software NIC with a plan of
//! faults.
//!
//! `gdr-verbs`, under the shared library, makes objects, transfers, completions and events.
//! The fake changes what a [`DeviceSpec`] or a [`Fault`] says. GPU memory is memory that is registered by
//! descriptor like a dma-buf (a memfd works), and memory of a simulated peer-memory module.
//!
//! A test controls the library by [`Fake`], each of which is a copy of its own. All devices of a process are
//! one device of the NIC, on an address that no other process uses. The [`Report`] has all calls, live objects
//! and violations of the API. A command under test reads its devices from a file: [`Fake::environment`].

// Exported functions and operations of contexts have the contracts of libibverbs' functions of their
// names; where a comment speaks of the contract of a function, it is that.

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
