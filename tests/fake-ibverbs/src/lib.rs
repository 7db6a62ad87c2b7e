//! A libibverbs with simulated devices, which a test configures.
//!
//! The shared library exports the functions that `gdr-verbs-sys` loads, creates contexts with the
//! operations of the inline verbs, and copies bytes between queue pairs of one process. It supports
//! host memory, memory that is registered by descriptor like a dma-buf (a memfd works), and memory
//! of a simulated peer-memory module. It checks arguments as strictly as mlx5, and returns the same
//! error numbers.
//!
//! A test controls the library by [`Fake`]. Each [`Fake`] is a separate copy of the library, without
//! devices until [`Fake::add`] adds a [`DeviceSpec`]. Requests simulate ports that go down, stalled
//! transfers, failing verbs and events. The [`Report`] has all calls, live objects and violations of
//! the API.
//!
//! A process that a test cannot control, such as a command under test, reads its devices from the
//! file in the environment variable `FAKE_IBVERBS`, a JSON list of [`DeviceSpec`].
//!
//! Not supported are unreliable or datagram queue pairs, shared receive queues, memory windows and
//! multicast. There are no packets: a message is copied as a whole or not at all.

mod builder;
mod c_abi;
mod channel;
mod client;
mod completion;
mod control;
mod device;
mod dma;
mod event;
mod mlx5;
mod pair;
mod post;
mod query;
mod region;
mod report;
mod ret;
mod spec;
mod state;
mod transfer;
mod wire;

pub use client::Fake;
pub use control::{Element, Request};
pub use report::{Call, Live, Report};
pub use spec::{DeviceSpec, GidSpec, GpuPath, PortSpec};
