#![allow(clippy::unwrap_used)]

//! Connections between the soft provider and rxe in both roles, and of rxe with itself.

mod fixture;
mod process;

mod command;
mod conformance;
mod connection_manager;
mod datagrams;
mod faults;
mod hosts;
mod objects;
mod programs;
mod registration;
mod shared_receives;
