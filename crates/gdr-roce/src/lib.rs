//! RoCEv2 connections and datagrams in user space, sans-IO: the protocol engine of an RDMA network card as a state
//! machine.
//!
//! The crate is fully deterministic and contains no sockets, threads, clocks or unsafe code. Packets and the current
//! time go in; packets, deadlines, completions and memory accesses come out. UDP is not implemented here; see the
//! `gdr-nic` crate.
//!
//! - [`QueuePair`] is one end of a reliable connection: SEND, WRITE, READ and atomics, with segmentation,
//!   acknowledgements, retries and NAKs as specified. Its retransmission timer and congestion window adapt to the
//!   measured path. [`QueuePair::unreliable`] creates one end of an unreliable connection, which supports only SEND and
//!   WRITE. [`QueuePair::initiator`] and [`QueuePair::target`] create the ends of an extended reliable connection
//!   (XRC), whose requests select a [`SharedReceiveQueue`] of an [`XrcDomain`] to consume receives from.
//! - [`UdQueuePair`] sends and receives unreliable datagrams: single-packet messages.
//! - [`SharedReceiveQueue`] holds receives for several queue pairs.
//! - [`Memory`] is the caller's interface to memory regions. An access with an invalid key, range or permission copies
//!   nothing. [`HeapMemory`] is a simple implementation.
//! - [`wire`] parses and emits packets, and computes their ICRC.
//!
//! ```
//! use gdr_roce::wire::{MAX_DATAGRAM, Packet};
//! use gdr_roce::{
//!     Access, AckTimeout, Capabilities, Data, HeapMemory, Mtu, Operation, Psn, Qpn, QueuePair,
//!     Remote, RetryCount, RetryLimit, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, Segment, SendFlags,
//!     SendRequest, Time, WcStatus, WrId,
//! };
//!
//! fn connected(own: Qpn, peer: Qpn) -> Result<QueuePair, gdr_roce::StateError> {
//!     let caps = Capabilities { max_send_wr: 16, max_recv_wr: 16, max_inline: 64 };
//!     let mut qp = QueuePair::new(own, caps);
//!     qp.to_init(Access::REMOTE_WRITE | Access::REMOTE_READ)?;
//!     qp.to_rtr(&RtrAttributes {
//!         dest_qpn: peer,
//!         rq_psn: Psn::new(0),
//!         path_mtu: Mtu::B1024,
//!         max_dest_rd_atomic: 4,
//!         min_rnr_timer: RnrTimer::new(12),
//!     })?;
//!     qp.to_rts(&RtsAttributes {
//!         sq_psn: Psn::new(0),
//!         timeout: AckTimeout::new(14),
//!         retry_limit: RetryLimit::Count(RetryCount::new(7)),
//!         rnr_retry: RnrRetry::FOREVER,
//!         max_rd_atomic: 4,
//!     })?;
//!     Ok(qp)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Qpn::new(17), Qpn::new(18));
//! let (mut local, mut peer) = (connected(a, b)?, connected(b, a)?);
//!
//! let (mut local_memory, mut peer_memory) = (HeapMemory::new(), HeapMemory::new());
//! let (source, _) = local_memory.register(0x1000, b"written by the peer".to_vec(), Access::empty());
//! let (target, rkey) = peer_memory.register(0x2000, vec![0; 64], Access::REMOTE_WRITE);
//!
//! local.post_send(&SendRequest {
//!     id: WrId(1),
//!     operation: Operation::Write {
//!         remote: Remote { rkey, addr: 0x2000 },
//!         immediate: None,
//!     },
//!     data: Data::Segments(&[Segment { lkey: source, addr: 0x1000, len: 19 }]),
//!     flags: SendFlags::SIGNALLED,
//! })?;
//!
//! // A lossless network. A real one also needs `wire::icrc`.
//! let now = Time::EPOCH;
//! let mut datagram = vec![0; MAX_DATAGRAM];
//! while let Some(len) = local.poll_transmit(now, &mut local_memory, &mut datagram) {
//!     peer.receive(now, &Packet::new(&datagram[..len])?, &mut peer_memory);
//! }
//! while let Some(len) = peer.poll_transmit(now, &mut peer_memory, &mut datagram) {
//!     local.receive(now, &Packet::new(&datagram[..len])?, &mut local_memory);
//! }
//!
//! let done = local.poll_completion().ok_or("not acknowledged")?;
//! assert_eq!((done.id, done.status), (WrId(1), WcStatus::Success));
//! assert!(peer_memory.bytes(target).is_some_and(|bytes| bytes.starts_with(b"written by the peer")));
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! A reliable connection guarantees:
//!
//! - A request that completes successfully was executed completely and exactly once; see [`Completion`].
//! - Requests of one queue complete in posting order. In a [`SharedReceiveQueue`], receives complete in the order of
//!   the messages that consume them.
//! - A duplicate, late or out-of-order packet does not change memory. The response to a duplicate atomic contains the
//!   original value from its first execution.
//! - After a failure the queue pair is in ERR, and all its posted requests complete with [`WcStatus::WrFlushed`]. An
//!   invalid request is answered by a NAK with the reason, after the responses to all earlier requests; the queue pair
//!   enters ERR when that NAK is sent.
//! - In ERR nothing is sent, and memory is neither read nor written.
//! - The response to a READ is repeated only while the READ is among the latest `max_dest_rd_atomic` READs, and only
//!   within the range of the original request.
//! - A request that *failed* may have placed some of its bytes; they are not rolled back.
//! - Memory use is bounded: a peer cannot make a queue pair store more than a small multiple of its [`Capabilities`]
//!   and [`RtrAttributes`]. With [`LossRecovery::Selective`] a queue pair also buffers up to one
//!   [window](TransportConfig::with_max_window) of packets, within the [`PacketBudget`] that all queue pairs of a
//!   device may share. It drops them in ERR and RESET, and after two seconds if the gap is not closed.
//! - Apart from READ responses, a packet from the peer triggers at most 32 short packets.
//!
//! An unreliable connection guarantees less: a message is either placed in order and without gaps, or dropped, and it
//! completes a receive only if all of it arrived. Parts of a dropped message may have been placed.
//!
//! Datagrams guarantee only that a packet with the right queue key is written to the segments of one receive and
//! nowhere else, and that each receive completes at most once.
//!
//! The rules follow the InfiniBand Architecture Specification volume 1, chapter 9, and its annexes A16 and A17 (RoCE).

#![warn(clippy::disallowed_methods)]
#![forbid(unsafe_code)]

mod attributes;
mod completion;
mod connection;
mod connectionless;
mod contents;
mod error;
mod heap;
mod ids;
mod memory;
mod mtu;
mod packet_budget;
mod payload;
mod psn;
mod queue_pair;
mod raw_packet_queue_pair;
mod receive_queue;
mod request;
mod requester;
mod responder;
mod sge;
mod shared_receive_queue;
mod statistics;
mod timer;
mod ud_queue_pair;
pub mod wire;
mod xrc_domain;

pub use attributes::{Capabilities, RtrAttributes, RtsAttributes, State, TransportConfig};
pub use completion::{Completion, Event, WcOpcode, WcStatus};
pub use connection::{LossRecovery, Reliability};
pub use contents::Contents;
pub use error::{PostError, StateError};
pub use heap::HeapMemory;
pub use ids::{Immediate, Key, Lkey, PartitionKey, Qkey, Qpn, Rkey, WrId, XrcSrqn};
pub use memory::{Access, AccessError, AtomicOp, Extent, Memory, PayloadBy};
pub use mtu::Mtu;
pub use packet_budget::PacketBudget;
pub use psn::{Msn, PSN_WINDOW, Psn};
pub use queue_pair::QueuePair;
pub use raw_packet_queue_pair::{Frame, FrameReceived, FrameSendRequest, RawPacketQueuePair};
pub use request::{
    Data, Operation, RecvRequest, Remote, Segment, SendFlags, SendRequest, UdSendRequest,
};
pub use shared_receive_queue::SharedReceiveQueue;
pub use statistics::{Served, Statistics};
pub use timer::{AckTimeout, RetryCount, RetryLimit, RnrRetry, RnrTimer, Time};
pub use ud_queue_pair::{UdQueuePair, UdReceived};
pub use xrc_domain::XrcDomain;

/// The longest message, in bytes. The specification allows twice as much, but at the smallest MTU that takes more
/// packets than [`PSN_WINDOW`] allows.
pub const MAX_MESSAGE: u32 = 1 << 30;

#[cfg(doctest)]
mod compile_fail;

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
