//! The soft provider without ownership: the layer for front ends with an interface of their own,
//! such as libibverbs' C interface.
//!
//! Unlike the rest of this crate, nothing here keeps memory alive: regions are ranges of addresses,
//! requests name them by key as `struct ibv_sge` does, and a request may outlive its region, in which
//! case it fails. Queue pairs go through every state of libibverbs on their own. Use
//! [`Device`](crate::Device) and what it makes unless you have to be like libibverbs.
//!
//! Every function may be called from any thread. In a forked child all of them fail with
//! [`Error::ForkedChild`](crate::Error::ForkedChild), or do nothing.
//!
//! # Hooks
//!
//! [`Device::open`] and [`Device::completion_queue`] take functions that are called for each event, and
//! when a completion was queued. They run on the thread that drives the engine, while the engine is
//! locked: they must return soon, and must not call this crate.
//!
//! ```
//! use std::net::IpAddr;
//!
//! use gdr_rdma::raw::{
//!     Data, Device, Domain, Memory, Operation, RetryLimit, RtrAttributes, RtsAttributes,
//!     SendFlags, SendRequest,
//! };
//! use gdr_rdma::{
//!     Access, AckTimeout, Capabilities, Mtu, Psn, Remote, RetryCount, Rkey, RnrRetry, RnrTimer,
//!     SoftOptions, WcStatus, WrId,
//! };
//!
//! # fn main() -> gdr_rdma::Result<()> {
//! let device = Device::open(&SoftOptions::default().port(0), None)?;
//! let (domain, queue) = (Domain::new(), device.completion_queue(16, None));
//! let sizes = Capabilities { max_send_wr: 4, max_recv_wr: 4, max_inline: 64 };
//! let pair = device.queue_pair(domain, &queue, &queue, sizes)?;
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

mod completion_queue;
mod device;
mod qp_handle;
mod queue_pair;
mod raw_packet_queue_pair;
mod region;
mod shared_receive_queue;
mod ud_queue_pair;

pub use gdr_roce::{
    Data, FrameSendRequest, Operation, RecvRequest, Reliability, RetryLimit, RtrAttributes,
    RtsAttributes, Segment, SendFlags, SendRequest, UdSendRequest,
};

pub use super::cq_entries::{Announcement, OnCompletion};
pub use super::device_state::OnEvent;

pub use self::completion_queue::CompletionQueue;
pub use self::device::{Device, WeakDevice};
pub use self::queue_pair::{QueuePair, Queues, RecvQueue, SendQueue};
pub use self::raw_packet_queue_pair::{Flow, FrameSendQueue, RawPacketQueuePair};
pub use self::region::{Domain, Memory, Region};
pub use self::shared_receive_queue::SharedReceiveQueue;
pub use self::ud_queue_pair::{UdQueuePair, UdSendQueue};
pub use super::completion_counting::{CompletionCounter, CountedOperation, CounterUnit};
pub use super::link::{LinkCondition, LinkEvent, LinkState, LinkWatch};
pub use super::packets::flow::{
    EthernetMatch, FlowKind, FlowRule, FlowSpec, Ipv4Match, Ipv6Match, Masked, PortMatch,
};
