//! A libibverbs with simulated devices, which a test configures: the software NIC with a plan of
//! faults.
//!
//! The shared library stands in front of `gdr-verbs`, the libibverbs of the software NIC. Objects,
//! transfers, completions and events are the NIC's: each handle that a program has is one of
//! `gdr-verbs`. The fake changes what a [`DeviceSpec`] or a [`Fault`] says: the names, ports, GIDs and
//! limits of devices, the registration of GPU memory, verbs that fail, transfers that wait, odd
//! completions and events, ports that go down. GPU memory is memory that is registered by descriptor
//! like a dma-buf (a memfd works), and memory of a simulated peer-memory module.
//!
//! A test controls the library by [`Fake`]. Each [`Fake`] is a separate copy of the library, without
//! devices until [`Fake::add`] adds a [`DeviceSpec`]. All devices of a process are one device of the
//! NIC, on an address that no other process uses. The [`Report`] has all calls, live objects and
//! violations of the API.
//!
//! A process that a test cannot control, such as a command under test, reads its devices from the
//! file in the environment variable `FAKE_IBVERBS`, a JSON list of [`DeviceSpec`]:
//! [`Fake::environment`].

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
pub use control::{Element, Fault};
pub use report::{Call, Live, Report};
pub use spec::{DeviceSpec, GidSpec, GpuPath, PortSpec};
