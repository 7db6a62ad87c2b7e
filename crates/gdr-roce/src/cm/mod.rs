//! Connection management: the messages by which queue pairs of different hosts find each other, and the state
//! machine of both sides, without I/O.
//!
//! A message is a datagram of [`MAD_LEN`] bytes to queue pair [`MANAGEMENT_QPN`] with the queue key
//! [`MANAGEMENT_QKEY`]: a management datagram (MAD). A connection takes three (REQ, REP, RTU), its end two
//! (DREQ, DREP), and the address of a datagram service two (SIDR_REQ, SIDR_REP).
//!
//! - [`Message`] parses and emits them. The bytes may be untrusted.
//! - [`IpAddresses`] is the header that programs which connect by IP addresses have in front of their private data.
//! - [`Manager`] is one end of all connections of an address. Messages and the time go in; messages, deadlines
//!   and [`CmEvent`]s come out.
//!
//! Formats and rules: InfiniBand Architecture Specification volume 1, chapter 12, and annex A11 (IP addresses).

mod connection;
mod event;
mod ip_addresses;
mod mad;
mod manager;
mod message;
#[cfg(test)]
mod pair;
mod resolution;
mod retransmission;

pub use event::CmEvent;
pub use ip_addresses::{IpAddresses, ServiceId};
pub use mad::{MAD_LEN, Mad, MadError};
pub use manager::{CmStateError, Manager};
pub use message::{
    Addressee, CommId, Dreq, IdPair, Message, Mra, Path, Rej, RejectReason, Rejected, Rep, Req,
    SidrRep, SidrReq, SidrStatus,
};

use crate::ids::{Qkey, Qpn};

/// The queue pair that management datagrams are sent to.
pub const MANAGEMENT_QPN: Qpn = Qpn::new(1);
/// The queue key that they have.
pub const MANAGEMENT_QKEY: Qkey = Qkey(0x8001_0000);
