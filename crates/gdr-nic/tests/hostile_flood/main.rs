//! Floods, in a test binary of their own because their cost is measured over the whole process.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

#[path = "../hostile/attacker.rs"]
mod attacker;
mod floods;
#[path = "../hostile/packet.rs"]
mod packet;
