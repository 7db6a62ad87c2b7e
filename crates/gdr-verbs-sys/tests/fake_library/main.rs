//! Every function of libibverbs that this crate calls, with a library of simulated devices.
//!
//! These tests also cover the fake library, which tests of other crates use.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a fixture that fails is a test that fails"
)]

mod connection;
mod events;
mod extended;
mod failures;
mod loading;
mod operations;
mod queries;
mod registration;
