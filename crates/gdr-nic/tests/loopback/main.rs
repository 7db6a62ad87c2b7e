//! The NIC below gdr-rdma, beyond the conformance suite of all providers: two devices of one process that talk over the
//! loopback interface.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

mod checksum;
mod datagrams;
mod engine;
mod failures;
mod fixture;
mod fork;
mod from_owner;
mod gpu;
mod identification;
mod ownership;
mod shards;
mod shared_receives;
mod source_ports;
mod wrong_source;
