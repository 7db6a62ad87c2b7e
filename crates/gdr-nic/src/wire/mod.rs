//! The wires that carry packets between devices.
//!
//! UDP (`gdr-udp`) carries them to any peer. Between devices of one host and user, shared memory takes over once both
//! ends know each other. The sender chooses the wire for each packet, and the receiver accepts from both: a connection
//! continues over UDP when the other wire ends.

pub(crate) mod memory;
