//! Safe RDMA to and from host and GPU memory, with the vocabulary and semantics of libibverbs.
//!
//! A [`Device`] creates [`ProtectionDomain`]s and [`CompletionQueue`]s; a domain registers
//! [`Buffer`]s as [`MemoryRegion`]s and creates [`QueuePair`]s. [`SendRequest`]s and
//! [`RecvRequest`]s are posted to a queue pair, and their results are [`Completion`]s. Two programs
//! use a [`Session`] to exchange what they need to connect.
//!
//! Several queue pairs can share the receives of a [`SharedReceiveQueue`], and a [`UdQueuePair`]
//! exchanges datagrams without a connection. Only the soft provider supports these two.
//!
//! The *soft* provider needs no RDMA hardware, kernel module or privileges. It speaks RoCEv2, like
//! RDMA NICs and Linux's rxe, over a UDP socket of this process (`gdr-roce`), and stores received
//! bytes directly in GPU memory through a `gdr-copy` mapping ([`Buffer::direct`]), or stages them in
//! page-locked memory ([`Buffer::staged`]).
//!
//! The *verbs* provider ([`Device::verbs`]) uses kernel devices through libibverbs, which it loads at
//! run time. It registers GPU memory by dma-buf, or else with a peer-memory module, and verifies each
//! registration with a transfer; [`MemoryRegion::route`] and [`MemoryRegion::rejected_methods`]
//! return the result. [`Device::list_verbs`] and [`Device::list_soft`] list the devices of this host.
//!
//! This is not a binding of libibverbs: there are no raw pointers, and the memory of a posted request
//! cannot be freed. Requests keep their regions alive, regions their buffers, and all of them their
//! device.
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
//! // Two queue pairs of one device, connected to each other. Real programs use `Device::soft`, at
//! // port 4791, and connect through a `Session`.
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
//! - **Order**: when a completion is polled, the bytes that it reports are in memory, on both the
//!   requester's and the responder's side. For GPU memory, they have left the CPU
//!   ([`Buffer::direct`]) or the copy engine ([`Buffer::staged`]), and a kernel launched afterwards
//!   sees them. WRITEs of one queue pair are placed in order, each from low to high addresses, but a
//!   program that polls the memory may rely on this order only for host memory.
//! - **Integrity**: the ICRC of every packet is checked before a byte is placed. Over IPv6 it is
//!   checked in full. Over IPv4 a UDP socket hides one of the fields that the ICRC covers: with
//!   CAP_NET_RAW and without a UDP checksum the ICRC is checked in full, otherwise 16 of its 32 bits
//!   are. Packets are sent with the full ICRC and a UDP checksum. See [`Device::integrity`].
//! - **Trust**: as with all RoCE, a sender that can forge the peer's address and port, and that knows
//!   the queue pair number, PSN and key, can write. Keys are 32 random bits. The kernel drops packets
//!   from other addresses (the device does if there are more than 16 peers), and the device drops
//!   packets from other ports, unless the peer varies its port ([`SourcePort`]). Datagrams are accepted
//!   from any address if a program has opened a queue pair for them and they carry its queue key.
//! - **Lost peers**: requests to a peer that is gone complete with [`WcStatus::RetryExceeded`] after
//!   the timeout times the number of retries, or after [`ConnectionOptions::give_up_after`].
//! - **Liveness**: while the device is locked, no code of the program runs, and nothing waits for
//!   kernels on the GPU. A separate thread frees GPU memory whose last owner was a request.
//! - **Fork**: in a child every operation fails ([`NicError::ForkedChild`]) and changes nothing, with
//!   the verbs provider too.
//! - **CPU**: the progress thread sleeps when idle; [`SoftOptions::busy_poll`] sets how soon.

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
