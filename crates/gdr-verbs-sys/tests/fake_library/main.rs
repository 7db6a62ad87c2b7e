//! All of libibverbs that this crate calls, against a library whose devices are made up.
//!
//! This is also how the made-up library is tested: other crates' tests build on it.
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
