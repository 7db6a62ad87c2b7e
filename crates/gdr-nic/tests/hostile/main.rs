//! The NIC attacked through its sockets, by packets that this suite builds itself, byte
//! by byte: none of the crate's own encoding is used, so that both cannot be wrong alike.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod answers;
mod attacker;
mod packet;
mod requests;
mod sources;
