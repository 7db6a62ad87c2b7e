//! Connection management: the messages that connect queue pairs on different hosts, a sans-IO state machine
//! for both sides, and the management queue pair of a software NIC.
//!
//! Each message is a management datagram (MAD): a datagram of [`MAD_LEN`] bytes, sent to queue pair
//! [`Qpn::MANAGEMENT`](gdr_roce::Qpn::MANAGEMENT) with the queue key [`MANAGEMENT_QKEY`]. Opening a connection takes
//! three messages (REQ, REP, RTU), closing it takes two (DREQ, DREP), and so does looking up a datagram service
//! (SIDR_REQ, SIDR_REP).
//!
//! - [`Message`] parses and emits messages; the bytes may be untrusted.
//! - [`IpAddresses`] is the header that precedes the private data of programs that connect by IP address.
//! - [`Manager`] holds this end of all connections of an address. Messages and the time go in; messages, deadlines
//!   and [`CmEvent`]s come out.
//! - [`BoundPort`] reserves a port in the network namespace, so that no other process can use it.
//! - [`Management`] is a process's share of the management queue pair of a `gdr_nic::Device`.
//!
//! Formats and rules: InfiniBand Architecture Specification volume 1, chapter 12, and annex A11 (IP addresses).

#![forbid(unsafe_code)]

mod bound_port;
mod connection;
mod event;
mod ip_addresses;
mod mad;
mod management;
mod manager;
mod message;
#[cfg(test)]
mod pair;
mod resolution;
mod retransmission;

pub use bound_port::{BoundPort, Families, PortError, PortRequest, Reuse, ephemeral_port};
pub use event::CmEvent;
pub use ip_addresses::{IpAddresses, ServiceId};
pub use mad::{MAD_LEN, Mad, MadError};
pub use management::{Arrival, Management, PeerProcess, ReceivedMad};
pub use manager::{CmStateError, Manager};
pub use message::{
    Addressee, CommId, Dreq, IdPair, Message, Mra, Path, Rej, RejectReason, Rejected, Rep, Req,
    SidrRep, SidrReq, SidrStatus,
};

use gdr_roce::Qkey;

/// The queue key of management datagrams.
pub const MANAGEMENT_QKEY: Qkey = Qkey(0x8001_0000);

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
