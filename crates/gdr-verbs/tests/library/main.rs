//! The library as programs load it: built and linked as for an installation, opened by `dlopen`, and
//! called through the declarations of rdma-core's header.

#![allow(clippy::unwrap_used)]

mod built;
mod extended;
mod gids;
mod misuse;
mod objects;
mod operations;
mod regions;
mod side;
mod states;
