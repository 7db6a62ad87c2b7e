//! The library as programs load it: built and linked as for an installation, opened by `dlopen`, and called through the
//! declarations of rdma-core's header.

#![allow(clippy::unwrap_used)]

mod attributes;
mod buffers;
mod built;
mod completion_counters;
mod device_memory;
mod extended;
mod gids;
mod memory_windows;
mod misuse;
mod objects;
mod operations;
mod regions;
mod shared_receives;
mod side;
mod states;
