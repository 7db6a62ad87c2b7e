//! The wires: what carries packets between devices.
//!
//! UDP carries them to any peer. Between devices of one host and user, shared memory does, as soon as both ends
//! know each other. Which of them a packet takes is its sender's choice, and its receiver takes from both: a
//! connection continues over UDP when the other wire ends.

pub(crate) mod local_socket;
pub(crate) mod memory;
pub(crate) mod process_fd;
pub(crate) mod udp;
