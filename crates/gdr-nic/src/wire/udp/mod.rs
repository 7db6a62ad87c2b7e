//! The wire over UDP: sockets, filters, ports and ICRCs of datagrams.
//!
//! Everything here knows of packets only that each has a destination queue pair and an ICRC.

pub(crate) mod address;
pub(crate) mod filter;
pub(crate) mod flows;
pub(crate) mod partial_icrc;
mod peer_filter;
mod port_group;
pub(crate) mod qpn_range;
mod raw_socket;
pub(crate) mod reuseport;
pub(crate) mod rx;
pub(crate) mod single_datagram;
pub(crate) mod slot;
pub(crate) mod socket;
mod tx;
mod udp_wire;

pub(crate) use self::udp_wire::UdpWire;
