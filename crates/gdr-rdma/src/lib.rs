//! RDMA with libibverbs' vocabulary and semantics: into host memory, and into GPU memory.
//!
//! A [`Device`] makes [`ProtectionDomain`]s and [`CompletionQueue`]s; a domain registers
//! [`Buffer`]s as [`MemoryRegion`]s and makes [`QueuePair`]s. [`SendRequest`]s and
//! [`RecvRequest`]s are posted to a queue pair, and their results are [`Completion`]s. Two programs
//! exchange what they need to connect over a [`Session`].
//!
//! Several queue pairs can take their receives from one [`SharedReceiveQueue`], and a
//! [`UdQueuePair`] sends and receives datagrams without a connection; only the soft provider offers
//! these two.
//!
//! The *soft* provider needs no RDMA hardware, kernel module or privilege: it speaks RoCEv2 over a
//! UDP socket of this process (`gdr-roce`), as network cards and Linux's rxe do, and stores received
//! bytes straight into GPU memory through a `gdr-copy` mapping ([`Buffer::direct`]), or stages
//! them in page-locked memory ([`Buffer::staged`]).
//!
//! The *verbs* provider ([`Device::verbs`]) uses kernel devices through a libibverbs that is loaded
//! at run time. GPU memory is registered with them by dma-buf, else by a peer-memory module, and
//! each registration is verified by a transfer; [`MemoryRegion::route`] and
//! [`MemoryRegion::rejected_methods`] return the result. [`Device::list_verbs`] and
//! [`Device::list_soft`] list the devices of this host.
//!
//! This is not a binding of libibverbs: there are no raw pointers, and memory of a posted request
//! cannot be freed. Requests hold their regions, regions their buffers, and everything its device.
//!
//! ```
//! use std::time::Duration;
//!
//! use gdr_rdma::{
//!     Access, Buffer, ConnectionOptions, Deadline, Device, Mtu, QueuePairOptions, SendRequest,
//!     SoftOptions, WcStatus, WrId,
//! };
//!
//! # fn main() -> gdr_rdma::Result<()> {
//! // Two queue pairs of one device, connected to each other. Real ones use `Device::soft`, port
//! // 4791, and meet through a `Session`.
//! let device = Device::soft_with(SoftOptions::default().port(0))?;
//! let domain = device.protection_domain();
//! let queue = device.completion_queue(256);
//! let (near, far) = (
//!     domain.queue_pair(&QueuePairOptions::new(&queue))?,
//!     domain.queue_pair(&QueuePairOptions::new(&queue))?,
//! );
//! let options = ConnectionOptions::new(Mtu::B4096);
//! near.connect(&far.endpoint(), &options)?;
//! far.connect(&near.endpoint(), &options)?;
//!
//! let source = domain.register(&Buffer::host(1 << 20)?, Access::empty())?;
//! let target = domain.register(
//!     &Buffer::host(1 << 20)?,
//!     Access::LOCAL_WRITE | Access::REMOTE_WRITE,
//! )?;
//! source.buffer().write_at(0, b"hello")?;
//! near.post_send(
//!     SendRequest::write(WrId(1), target.remote().at(100)).segment(source.segment(0, 5)?),
//! )?;
//! let completion = queue.wait(Deadline::after(Duration::from_secs(10)))?;
//! assert_eq!((completion.id, completion.status), (WrId(1), WcStatus::Success));
//!
//! let mut seen = [0; 5];
//! target.buffer().read_at(100, &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees of the soft provider
//!
//! - **Order**: the bytes that a completion reports are in memory when the completion is polled, on
//!   the requester's side and the responder's; for GPU memory that means they have left the CPU
//!   ([`Buffer::direct`]) or the copy engine ([`Buffer::staged`]), and a kernel launched
//!   afterwards sees them. WRITEs of one queue pair are placed in order, each from low to high
//!   addresses, but only for host memory can a program rely on that order while it polls the memory.
//! - **Integrity**: [`Device::integrity`]. Every packet's ICRC is checked before a byte is placed:
//!   in full over IPv6; over IPv4, where a UDP socket hides a field that it covers, in full with
//!   CAP_NET_RAW if there is no UDP checksum, else to 16 of its 32 bits. Packets are sent with the
//!   full ICRC and a UDP checksum.
//! - **Trust**: as with all RoCE, a sender that can forge the peer's address and port, and knows
//!   queue pair number, PSN and key, can write. Keys are 32 random bits. Packets from other
//!   addresses are dropped by the kernel (by the device for more than 16 peers), those from another
//!   port by the device, unless the peer varies its port ([`SourcePort`]). Datagrams are accepted
//!   from any address, if a program opened a queue pair for them and they carry its queue key.
//! - **Lost peers**: the requests to a peer that is gone complete with
//!   [`WcStatus::RetryExceeded`] after timeout times retries, or after
//!   [`ConnectionOptions::give_up_after`].
//! - **Liveness**: no code of the program runs while the device is locked, nor does anything that
//!   waits for the GPU's kernels. GPU memory whose last owner was a request is freed by a separate
//!   thread.
//! - **Fork**: in a child every operation fails ([`NicError::ForkedChild`]) and changes nothing; this
//!   holds for the verbs provider too.
//! - **CPU**: the progress thread sleeps when it is idle; [`SoftOptions::busy_poll`] sets how soon.

#![warn(clippy::disallowed_methods)]

mod completion_queue;
mod connect;
mod device;
mod error;
mod gpu_registration;
mod memory_region;
mod os;
mod pair_queues;
mod protection_domain;
mod provider;
mod queue_pair;
mod reaper;
mod registration;
mod shared_receive_queue;
mod staging_ring;
mod stripe;
mod types;
mod ud_queue_pair;
mod work_request;

pub use completion_queue::CompletionQueue;
pub use connect::{Listener, PeerInfo, Security, Service, Session, SharedKey, Terms, Watch};
pub use device::Device;
pub use error::{
    Awaited, Error, Feature, FlushError, Foreign, HandshakeError, HandshakeStep, LoopbackError,
    Result, TransferError, VerbsError,
};
pub use gdr_nic::{
    AsyncEvent, Buffer, BufferKind, CopyEngineThreshold, CopyThread, Counters, CqNumber, Deadline,
    Error as NicError, Integrity, PayloadBytes, PortSharingError, PortUse, SocketError,
    SoftAddress, SoftOptions, SourcePort, SrqNumber, Wires,
};
pub use gdr_roce::{
    Access, AckTimeout, AtomicOp, Capabilities, Completion, Event, Immediate, Lkey, LossRecovery,
    Mtu, PostError, Psn, Qkey, Qpn, Remote, RetryCount, Rkey, RnrRetry, RnrTimer, State,
    StateError, WcOpcode, WcStatus, WrId,
};
pub use gdr_verbs_sys::{LoadError, NoDevice};
pub use memory_region::{MemoryRegion, RemoteMemory, Segment};
pub use os::disable_scatter_to_cqe;
pub use protection_domain::ProtectionDomain;
pub use provider::verbs::{DeviceAttributes, DmaBufSupport, VerbsDevice, VerbsGid, VerbsPort};
pub use queue_pair::{BatchPostError, PreparedSend, QueuePair, QueuePairOptions};
pub use shared_receive_queue::SharedReceiveQueue;
pub use staging_ring::{RingConfig, StagingRing};
pub use stripe::{Stripe, StripedPart, StripedRange};
pub use types::{
    ChosenGid, ConnectionOptions, Endpoint, FlushPolicy, GidEntry, GidType, Lid, LinkLayer, NoGid,
    PeerText, Provider, RegistrationMethod, UdEndpoint, VerbsOptions, choose_gid,
};
pub use ud_queue_pair::{UdQueuePair, UdQueuePairOptions};
pub use work_request::{RecvRequest, SendRequest, UdSendRequest};

#[cfg(doctest)]
mod compile_fail;

// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
