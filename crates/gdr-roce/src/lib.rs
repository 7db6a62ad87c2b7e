//! RoCEv2 reliable connections in user space, sans-IO: what an RDMA network card does, as a state
//! machine.
//!
//! Fully deterministic: no sockets, no threads, no clock, no unsafe code. Packets and the time go
//! in; packets, deadlines, completions and memory accesses come out. What is not here: UDP (the
//! `gdr-rdma` crate's soft provider), connection management, datagram and unreliable services,
//! shared receive queues, congestion control.
//!
//! - [`QueuePair`] is one end of a reliable connection: SEND, WRITE, READ, atomics, with
//!   segmentation, acknowledgement, retry and refusal as the specification has them.
//! - [`Memory`] is where bytes come from and go to: the owner of the regions implements it. A key,
//!   range or permission that is wrong never leads to a byte being moved. [`HeapMemory`] is a
//!   simple one.
//! - [`wire`] reads and writes packets, and computes their ICRC.
//!
//! ```
//! use gdr_roce::wire::{MAX_DATAGRAM, Packet};
//! use gdr_roce::{
//!     Access, AckTimeout, Capabilities, Data, HeapMemory, Mtu, Operation, Psn, Qpn, QueuePair,
//!     Remote, RetryCount, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, Segment, SendFlags,
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
//!         retry_count: RetryCount::new(7),
//!         rnr_retry: RnrRetry::FOREVER,
//!         max_rd_atomic: 4,
//!     })?;
//!     Ok(qp)
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (a, b) = (Qpn::new(17), Qpn::new(18));
//! let (mut near, mut far) = (connected(a, b)?, connected(b, a)?);
//!
//! let (mut here, mut there) = (HeapMemory::new(), HeapMemory::new());
//! let (source, _) = here.register(0x1000, b"written from afar".to_vec(), Access::empty());
//! let (target, rkey) = there.register(0x2000, vec![0; 64], Access::REMOTE_WRITE);
//!
//! near.post_send(&SendRequest {
//!     id: WrId(1),
//!     operation: Operation::Write {
//!         remote: Remote { rkey, addr: 0x2000 },
//!         immediate: None,
//!     },
//!     data: Data::Segments(&[Segment { lkey: source, addr: 0x1000, len: 17 }]),
//!     flags: SendFlags::SIGNALLED,
//! })?;
//!
//! // The network: a vector that forgets nothing. Real ones need `wire::icrc`, too.
//! let now = Time::EPOCH;
//! let mut wire = vec![0; MAX_DATAGRAM];
//! while let Some(len) = near.poll_transmit(now, &mut here, &mut wire) {
//!     far.receive(now, &Packet::new(&wire[..len])?, &mut there);
//! }
//! while let Some(len) = far.poll_transmit(now, &mut there, &mut wire) {
//!     near.receive(now, &Packet::new(&wire[..len])?, &mut here);
//! }
//!
//! let done = near.poll_completion().ok_or("not acknowledged")?;
//! assert_eq!((done.id, done.status), (WrId(1), WcStatus::Success));
//! assert!(there.bytes(target).is_some_and(|bytes| bytes.starts_with(b"written from afar")));
//! # Ok(())
//! # }
//! ```
//!
//! # What is promised
//!
//! - A request that completes with success was done, once, wholly; see [`Completion`].
//! - Requests of one queue end in the order in which they were posted.
//! - A packet that is repeated, late or out of turn changes nothing. Atomics that are repeated
//!   are answered from memory of the first time.
//! - After a failure the queue pair is in ERR, everything posted ends with
//!   [`WcStatus::WrFlushed`], and the peer was told why.
//! - Bytes of a request that *failed* may have been placed, in part: nothing is undone.
//! - Memory is bounded: a peer cannot make a queue pair store more than a small multiple of what
//!   it was connected with.
//!
//! Rules follow the InfiniBand Architecture Specification volume 1, chapter 9, and its annexes
//! A16 and A17 (RoCE).

#![forbid(unsafe_code)]

mod completion;
mod error;
mod heap;
mod key;
mod link;
mod memory;
mod mtu;
mod psn;
mod queue_pair;
mod request;
mod requester;
mod responder;
mod scatter;
mod timer;
pub mod wire;

pub use completion::{Completion, Event, WcOpcode, WcStatus};
pub use error::{PostError, StateError};
pub use heap::HeapMemory;
pub use key::{Immediate, Key, Lkey, PartitionKey, Qpn, Rkey, WrId};
pub use memory::{Access, AccessError, AtomicOp, Extent, Memory};
pub use mtu::Mtu;
pub use psn::{Msn, PSN_WINDOW, Psn};
pub use queue_pair::{Capabilities, Pace, QueuePair, RtrAttributes, RtsAttributes, State};
pub use request::{Data, Operation, RecvRequest, Remote, Segment, SendFlags, SendRequest};
pub use timer::{AckTimeout, RetryCount, RnrRetry, RnrTimer, Time};

/// The longest message, in bytes. The specification allows twice as much, which at the smallest
/// MTU is more packets than a PSN can tell apart.
pub const MAX_MESSAGE: u32 = 1 << 30;
