//! The wire format: one file per header, and the datagram that they form.
//!
//! A datagram is the payload of a UDP packet to port [`UDP_PORT`]: BTH, the opcode's extension headers, payload,
//! padding to a multiple of four, ICRC.
//!
//! - [`Packet::new`] takes untrusted bytes. It checks every length once, so that no accessor of [`Packet`] can fail or
//!   panic afterwards. It does not verify the ICRC; [`icrc::matches`] does, given the IP and UDP header fields.
//! - [`Ipv4Datagram::new`] also takes untrusted bytes: a datagram with its IPv4 and UDP headers.
//! - [`Headers`] is the owned form of the headers: [`Headers::parse`] reads them from a packet, [`Headers::emit`]
//!   writes them.
//! - A header's `parse` and `emit` take an array of its exact size, so they cannot fail.
//!
//! Formats: InfiniBand Architecture Specification volume 1, chapter 9 and annex A17 (RoCEv2).

mod aeth;
mod atomic_ack_eth;
mod atomic_eth;
mod bth;
mod deth;
mod feth;
mod grh;
pub mod icrc;
mod ieth;
mod immdt;
mod ipv4;
mod opcode;
mod packet;
mod reth;
mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic_ack_eth::AtomicAckEth;
pub use atomic_eth::AtomicEth;
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use grh::Grh;
pub use ieth::Ieth;
pub use immdt::ImmDt;
pub use ipv4::{Ipv4Datagram, Ipv4Error};
pub(crate) use opcode::SERVICE;
pub use opcode::{Opcode, Position};
pub(crate) use packet::put;
pub use packet::{Headers, MAX_DATAGRAM, Packet, WireError, padding};
pub use reth::Reth;
pub use xrceth::XrcEth;

/// The UDP destination port of RoCEv2.
pub const UDP_PORT: u16 = 4791;
