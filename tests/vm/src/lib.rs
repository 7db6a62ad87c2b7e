//! Tests of RDMA between two hosts in one guest: the network namespace *near*, in which the soft
//! provider runs, and the initial network namespace with the rxe device (Linux's RoCE in software).
//! `cargo xtask vm` boots the guest and runs the tests; they work only there.

pub mod dmabuf;
mod memory;
pub mod near;
pub mod netem;
pub mod rxe_endpoint;
pub mod trace;
