//! The wire between devices of one host and one user: rings of packets in shared memory.
//!
//! A ring carries the packets of one engine to another one. Both ends of a connection make one each, for the
//! direction in which they send. No packet is lost on it, changed or sent to another place, so there is no
//! ICRC. The protocol is the same as over UDP: the sender may choose either wire for each packet.
//!
//! The processes trust each other as far as one user's processes do: which packets arrive is the sender's choice,
//! and each is checked as if it had come from a network. See [`segment`] and [`ring`] for what a process can
//! do to another one by the memory itself.

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
pub(crate) use self::ring_wishes::RingWishes;
pub(crate) use self::rings::{
    MOST_READ, PacketSink, Passed, RingId, RingPacket, RingSender, Rings, Room, Taken, UdpUse,
    Watches,
};
pub(crate) use self::segment::Segment;
