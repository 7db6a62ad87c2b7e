//! The library as seen by a program that loads libibverbs by name.

#![allow(clippy::unwrap_used)]

mod conventions;
mod counts;
mod fake_library;
mod refused;

// Its `dlsym` replaces the C library's.
use gdr_verbs_trace as _;
