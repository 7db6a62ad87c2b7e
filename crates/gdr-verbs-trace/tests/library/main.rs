//! The library as a program has it that loads libibverbs by name.

#![allow(clippy::unwrap_used)]

mod counts;
mod fake_library;

// Its `dlsym` takes the place of the C library's.
use gdr_verbs_trace as _;
