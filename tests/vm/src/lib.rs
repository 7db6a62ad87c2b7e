//! Tests of RDMA between two hosts in one guest: the network namespace *near*, in which the soft
//! provider runs, and the initial network namespace with the rxe device (Linux's RoCE in software).
//! `cargo xtask vm` boots the guest and runs the tests; they work only there.
//!
//! [`Endpoint`] is one side of a connection with any provider, so that each test is written once and
//! runs in both roles.

pub mod dmabuf;
mod endpoint;
pub mod gdr_endpoint;
mod memory;
pub mod near;
pub mod netem;
pub mod rxe_endpoint;
pub mod trace;

pub use endpoint::{Completion, Endpoint, Peer, Settings, Status, Work};
