//! A software RDMA NIC, which speaks RoCEv2 over this process's UDP sockets, and over shared memory to other
//! processes on the same host.
//!
//! A [`Device`] has a UDP address. It creates [`CompletionQueue`]s, registers memory as [`Region`]s, and creates
//! [`QueuePair`]s for three services: [`Connection`] (RC, UC), [`Datagrams`] (UD) and [`RawPackets`]. They follow
//! libibverbs' rules, and can talk to RDMA NICs and to Linux's rxe. `gdr-roce` implements the protocol; this crate
//! adds sockets, threads and memory.
//!
//! This crate does not keep memory alive. A region is a range of addresses, and requests refer to it by key, as
//! `struct ibv_sge` does. A request may outlive its region, and then fails. A safe front end has each request
//! retain the owner of its memory ([`SendQueue::retain`]). Queue pairs go through the states of libibverbs one at
//! a time.
//!
//! Every function may be called from any thread. In a forked child, every function fails with
//! [`Error::ForkedChild`] or does nothing.
//!
//! # Where to look
//!
//! | question | place |
//! |---|---|
//! | how a request reaches the wire | `queue_pair`, `send_queue`, `shard/shared_engine`, `shard/engine`, `gdr_udp`'s `tx`; short ones between processes of one host: `shard/engine/fast_path` |
//! | where a packet's key is checked | `gdr_roce`'s responder asks `shard/memory`, which looks in `shard/region_table` |
//! | where bytes reach host or GPU memory | `buffer/`: `host`, `direct`, `staged` |
//! | how two processes of one host exchange packets without the kernel | `wire/memory` |
//! | how two processes share a port | `gdr_udp`'s `port_group` |
//! | whose packets a socket accepts | `gdr_udp`'s `filter`, `peer_filter` |
//! | when the program's threads drive an engine, and when its own | `shard/progress_thread`, `shard/caller_activity` |
//!
//! # Hooks
//!
//! [`Device::open`] takes a function that is called for each event, and [`Device::completion_queue`] one that
//! is called when a completion is queued. They run on the thread that drives the engine, while the engine is
//! locked, so they must return quickly and must not call into this crate.
//!
//! ```
//! use gdr_nic::{
//!     Access, AckTimeout, Capabilities, Data, Device, Domain, Memory, Mtu, Operation, Psn, Queues,
//!     Reliability, Remote, RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer, RtrAttributes,
//!     RtsAttributes, SendFlags, SendRequest, SoftOptions, WcStatus, WrId,
//! };
//!
//! # fn main() -> gdr_nic::Result<()> {
//! let device = Device::open(&SoftOptions::default().port(0), None)?;
//! let (domain, queue) = (Domain::new(), device.completion_queue(16, None));
//! let sizes = Capabilities { max_send_wr: 4, max_recv_wr: 4, max_inline: 64 };
//! let queues = Queues::completing_in(&queue);
//! let pair = device.queue_pair(domain, queues, sizes, Reliability::Reliable)?;
//!
//! // Connected with itself.
//! pair.to_init(Access::REMOTE_WRITE)?;
//! pair.to_rtr(device.address(), &RtrAttributes {
//!     dest_qpn: pair.qpn(),
//!     rq_psn: Psn::new(7),
//!     path_mtu: Mtu::B1024,
//!     max_dest_rd_atomic: 1,
//!     min_rnr_timer: RnrTimer::new(12),
//! })?;
//! pair.to_rts(&RtsAttributes {
//!     sq_psn: Psn::new(7),
//!     timeout: AckTimeout::new(14),
//!     retry_limit: RetryLimit::Count(RetryCount::new(7)),
//!     rnr_retry: RnrRetry::FOREVER,
//!     max_rd_atomic: 1,
//! })?;
//!
//! let target: &mut [u8] = Box::leak(Box::new([0; 8]));
//! let memory = Memory { address: target.as_mut_ptr().addr(), len: 8, iova: 0x1000 };
//! // SAFETY: the bytes are never freed, and no reference to them exists while the engine writes.
//! let region = unsafe { device.register(domain, memory, Access::LOCAL_WRITE | Access::REMOTE_WRITE) }?;
//! pair.post_sends(|queue| queue.push(&SendRequest {
//!     id: WrId(1),
//!     operation: Operation::Write {
//!         remote: Remote { rkey: Rkey(region.key()), addr: 0x1000 },
//!         immediate: None,
//!     },
//!     data: Data::Inline(b"by key"),
//!     flags: SendFlags::SIGNALLED,
//! }))??;
//! let mut done = None;
//! while queue.poll(1, &mut |completion| done = Some(completion))? == 0 {}
//! assert_eq!(done.map(|done| done.status), Some(WcStatus::Success));
//! # Ok(())
//! # }
//! ```

#![warn(clippy::disallowed_methods)]

mod bounded_queue;
mod buffer;
mod cache_line;
mod chaos;
mod completion_queue;
mod connection;
mod datagrams;
mod device;
mod device_shards;
mod device_state;
mod ending_thread;
mod error;
mod int_map;
#[cfg(test)]
mod loopback;
mod memory_window;
mod multicast;
mod os;
pub mod outstanding;
mod packet_port;
mod peer;
mod poller;
mod queue_pair;
mod raw_packets;
mod recv_queue;
mod region;
mod retained;
mod send_queue;
mod service;
mod shard;
mod shared_receive_queue;
mod types;
mod wire;
mod xrc_domain;

pub use bounded_queue::{BoundedQueue, Loss, Pushed};
pub use buffer::{Buffer, BufferKind, CopyEngineThreshold, CopyThread, check_range};
pub use completion_queue::CompletionQueue;
pub use connection::Connection;
pub use datagrams::Datagrams;
pub use device::{Device, WeakDevice};
pub use device_state::OnEvent;
pub use error::{Error, Foreign, Result};
pub use gdr_roce::wire::Feth;
pub use gdr_roce::{
    Access, AckTimeout, AtomicOp, Capabilities, Completion, Data, Event, FrameSendRequest,
    Immediate, Lkey, LossRecovery, Mtu, Operation, PartitionKey, PostError, Psn, Qkey, Qpn,
    RecvRequest, Reliability, Remote, RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer,
    RtrAttributes, RtsAttributes, Segment, SendFlags, SendRequest, State, StateError, Time,
    UdSendRequest, WcOpcode, WcStatus, WrId, XrcSrqn,
};
pub use gdr_udp::address::{SoftAddress, list as addresses};
pub use gdr_udp::{
    Deadline, Error as SocketError, EthernetMatch, FlowKind, FlowRule, FlowSpec, HashFields,
    Integrity, Ipv4Match, Ipv6Match, LinkCondition, LinkEvent, LinkState, LinkWatch, Masked,
    PortMatch, PortSharingError, PortUse, SourcePort, Spread, unreachable_hint,
};
pub use memory_window::{MemoryWindow, WindowRange};
pub use multicast::{MOST_ATTACHED, MOST_GROUPS};
pub use os::{random_bytes, random_number};
pub use peer::Peer;
pub use queue_pair::{QueuePair, Queues};
pub use raw_packets::{Flow, RawPackets};
pub use recv_queue::RecvQueue;
pub use region::{Memory, Region};
pub use retained::{Retained, RetainedList};
pub use send_queue::SendQueue;
pub use service::Service;
pub use shard::clock::monotonic_clock;
pub use shard::completion_counting::{CompletionCounter, CountedOperation, CounterUnit};
pub use shard::cq_entries::{Announcement, OnCompletion};
pub use shared_receive_queue::SharedReceiveQueue;
pub use types::{
    AsyncEvent, Counters, CqNumber, Domain, PayloadBytes, SoftOptions, SrqNumber, Wires,
};
pub use xrc_domain::XrcDomain;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
