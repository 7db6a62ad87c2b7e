//! The shared-memory wire between devices of one host and one user: rings of packets.
//!
//! A ring carries packets from one engine to another. Each end of a connection creates the ring for the direction in
//! which it sends. A ring does not lose, corrupt or misdirect packets, so they carry no ICRC. The protocol is the same
//! as over UDP, and the sender may choose either wire for each packet.
//!
//! The processes trust each other as far as processes of one user do: the sender decides which packets arrive, and each
//! is validated as if it had come from a network. See [`segment`] and [`ring`] for what a process can do to its peer
//! through the memory itself.

mod exports;
mod header;
mod imports;
mod keeper;
mod peer_process;
mod primitives;
mod process_memory;
mod reference;
mod rendezvous;
mod ring;
mod ring_wishes;
mod rings;
mod segment;
mod stalled;

pub(crate) use self::exports::Exports;
pub(crate) use self::imports::DeviceRun;
pub(crate) use self::keeper::{RingKeeper, RingRequests};
pub(crate) use self::process_memory::{ProcessMemory, can_be_read};
pub(crate) use self::reference::{Reference, References};
pub(crate) use self::rendezvous::ExportNumber;
#[cfg(test)]
pub(crate) use self::rendezvous::Welcome;
pub(crate) use self::ring_wishes::RingWishes;
pub(crate) use self::rings::{
    MOST_READ, PacketSink, Passed, RingId, RingPacket, RingSender, Rings, Room, Taken, UdpUse,
    Watches,
};
pub(crate) use self::segment::Segment;
