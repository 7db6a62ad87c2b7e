//! The verbs provider with a libibverbs that has fake devices. Covers, call by call, features that developers' machines
//! lack.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

mod choices;
mod events;
mod failures;
mod fixture;
mod flush;
mod gpu;
mod gpu_memory;
mod infiniband;
mod lifetime;
mod numbers;
mod operations;
mod prepared;
mod staging_ring;
mod verification;
