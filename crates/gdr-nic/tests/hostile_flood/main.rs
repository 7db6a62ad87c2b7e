//! Floods, in a process of their own: what they cost is measured over the whole process.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

#[path = "../hostile/attacker.rs"]
mod attacker;
mod floods;
#[path = "../hostile/packet.rs"]
mod packet;
