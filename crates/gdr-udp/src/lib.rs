//! The sockets of a software RDMA NIC.
//!
//! A [`UdpWire`] sends packets over UDP in batches, receives packets that the kernel has coalesced, and computes and
//! verifies their ICRCs. Its [`Socket`] accepts packets from known peers only, can share its port with devices in other
//! processes, and spreads connections over several source ports. A [`PacketSocket`] carries whole Ethernet frames, and
//! a [`LinkWatch`] tracks the state of an interface.
//!
//! This crate knows only two things about a packet: its destination queue pair and its ICRC. `gdr-nic` adds queue
//! pairs, timers and memory; `gdr-roce` defines the headers.
//!
//! # Where to look
//!
//! | question | place |
//! |---|---|
//! | how packets share a system call | `tx`, `rx` |
//! | how a device sends to and receives from multicast groups | `multicast` |
//! | how two processes share a port | `port_group` |
//! | whose packets a socket accepts | `filter`, `peer_filter` |
//! | which source port a connection uses | `flows` |
//! | what a forked child inherits of a socket | `process_fd` |

pub mod address;
mod deadline;
mod error;
mod filter;
mod flows;
mod integrity;
mod link;
pub mod local_socket;
mod multicast;
mod options;
mod packets;
mod partial_icrc;
mod peer_filter;
mod port_group;
mod process_fd;
mod qpn_range;
mod raw_socket;
mod reuseport;
mod rx;
mod single_datagram;
mod slot;
mod socket;
mod socket_option;
mod tx;
mod udp_wire;

pub use deadline::Deadline;
pub use error::{Error, PortSharingError, Result, unreachable_hint};
pub use integrity::Integrity;
pub use link::{LinkCondition, LinkEvent, LinkState, LinkWatch};
pub use multicast::{MulticastSocket, Received};
pub use options::{PortUse, Shards, SocketOptions, SourcePort};
pub use packets::flow::{
    EthernetMatch, FlowKind, FlowRule, FlowSpec, Ipv4Match, Ipv6Match, Masked, PortMatch,
};
pub use packets::frame::Headers as FrameHeaders;
pub use packets::packet_socket::{Join, LONGEST_FRAME, Membership, PacketSocket, ROOM, SentFrame};
pub use packets::spread::{HashFields, Spread};
pub use packets::steering::{FlowId, FlowTable};
pub use partial_icrc::PartialIcrc;
pub use peer_filter::PeerFilter;
pub use process_fd::ProcessFd;
pub use qpn_range::{MOST_SHARDS, QpnRange};
pub use raw_socket::RawSocket;
pub use reuseport::drain;
pub use rx::{Datagram, Rx};
pub use slot::Slot;
pub use socket::{Socket, accept_without_checksum};
pub use tx::{Batch, SentDatagrams};
pub use udp_wire::UdpWire;

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
