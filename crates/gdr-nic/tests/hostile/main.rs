//! Attacks on the NIC through its sockets. The suite builds its packets byte by byte and uses none of the crate's
//! encoding, so that both cannot share a bug.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod answers;
mod attacker;
mod packet;
mod requests;
mod sources;
