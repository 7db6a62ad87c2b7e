//! A libibverbs whose devices are what a test says they are.
//!
//! The shared library exports the functions that `gdr-verbs-sys` loads, makes contexts with the
//! functions behind the inline verbs, and moves real bytes between queue pairs of one process: to
//! and from host memory, and memory that is registered by descriptor as a dma-buf is (a memfd will
//! do) or claimed by a stand-in for a peer-memory module. It is as strict as mlx5 with what it is
//! given, and answers with the same numbers.
//!
//! [`Fake`] is a test's hand on it. Each [`Fake`] is a copy of the library of its own, with no
//! device in it until [`Fake::add`] is told a [`DeviceSpec`]. What happens afterwards can be
//! arranged too (ports go down, transfers stall, verbs fail, events come); what was called, what
//! is still alive and what was done wrong is in the [`Report`].
//!
//! A process that cannot be told anything, such as a command under test, finds its devices as a
//! JSON list of [`DeviceSpec`] in the file that the environment's `FAKE_IBVERBS` names.
//!
//! What it does not do: unreliable or datagram queue pairs, shared receive queues, memory windows,
//! multicast. Packets do not exist: a message moves as a whole or not at all.

mod answer;
mod builder;
mod channel;
mod client;
mod completion;
mod control;
mod device;
mod dma;
mod event;
mod handle;
mod mlx5;
mod pair;
mod post;
mod provider;
mod query;
mod region;
mod spec;
mod transfer;
mod wire;
mod world;

pub use client::Fake;
pub use control::{Call, Element, Live, Report, Request};
pub use spec::{DeviceSpec, GidSpec, GpuPath, PortSpec};
