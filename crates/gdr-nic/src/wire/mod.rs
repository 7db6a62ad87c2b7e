//! The wires: what carries packets between devices.
//!
//! UDP carries them (`gdr-udp`) to any peer. Between devices of one host and user, shared memory does, as soon as both ends
//! know each other. Which of them a packet takes is its sender's choice, and its receiver takes from both: a
//! connection continues over UDP when the other wire ends.

pub(crate) mod memory;
