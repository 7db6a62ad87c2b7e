#![allow(clippy::unwrap_used)]

//! The soft provider and the kernel's rxe, each as the other's peer; and rxe with itself.

mod fixture;

mod command;
mod failures;
mod operations;
mod registration;
mod trouble;
