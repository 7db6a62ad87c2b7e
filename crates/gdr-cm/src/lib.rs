//! Connection management: the messages by which queue pairs of different hosts find each other, the state
//! machine of both sides without I/O, and the management queue pair of a software NIC.
//!
//! A message is a datagram of [`MAD_LEN`] bytes to queue pair [`Qpn::MANAGEMENT`](gdr_roce::Qpn::MANAGEMENT) with the queue key
//! [`MANAGEMENT_QKEY`]: a management datagram (MAD). A connection takes three (REQ, REP, RTU), its end two
//! (DREQ, DREP), and the address of a datagram service two (SIDR_REQ, SIDR_REP).
//!
//! - [`Message`] parses and emits them. The bytes may be untrusted.
//! - [`IpAddresses`] is the header that programs which connect by IP addresses have in front of their private data.
//! - [`Manager`] is one end of all connections of an address. Messages and the time go in; messages, deadlines
//!   and [`CmEvent`]s come out.
//! - [`BoundPort`] is a port that no other process of the network namespace has.
//! - [`Management`] is what a process has of the management queue pair of a `gdr_nic::Device`.
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

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
