//! Test programs that need more than `cargo test`: other toolchains, a virtual machine, programs of a
//! distribution, many processes, a GPU. `cargo xtask` runs them by name.

#![allow(missing_docs, reason = "only `cargo xtask` uses it")]

pub mod api;
pub mod cargo_tests;
pub mod examples;
pub mod files_bench;
pub mod fleet_files;
pub mod fuzz;
pub mod gpu_bundle;
pub mod gpu_steps;
pub mod habits;
pub mod instructions;
pub mod mesh;
pub mod models;
pub mod msrv;
pub mod mutants;
pub mod package_check;
#[cfg(test)]
mod page;
pub mod peers;
pub mod priority;
mod running;
pub mod verbs_bench;
pub mod verbs_programs;
pub mod vm;
pub mod words;
