//! Two hosts in one guest, for tests of RDMA between them: *near*, a network namespace of its own
//! where the soft provider runs, and the guest's first network, where the kernel's rxe answers.
//! `cargo xtask vm` boots the guest and runs the tests; nothing here works anywhere else.
//!
//! [`End`] is one side of a connection, whoever provides it, so that each test is written once and
//! runs in both roles.

pub mod dmabuf;
mod end;
pub mod kernel;
pub mod link;
mod memory;
pub mod namespace;
pub mod own;
pub mod soft;
pub mod trace;
pub mod verbs;

pub use end::{Done, End, Outcome, Peer, Settings, Work};
