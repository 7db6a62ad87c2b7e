#![allow(clippy::unwrap_used)]

//! Connections between the soft provider and rxe in both roles, and of rxe with itself.

mod fixture;

mod command;
mod datagrams;
mod failures;
mod faults;
mod objects;
mod operations;
mod programs;
mod registration;
mod shared_receives;
