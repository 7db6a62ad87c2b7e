//! The library as a program has it that loads libibverbs by name.

#![allow(clippy::unwrap_used)]

mod conventions;
mod counts;
mod fake_library;
mod refused;

// Its `dlsym` takes the place of the C library's.
use gdr_verbs_trace as _;
