//! RDMA with libibverbs' vocabulary and semantics: into host memory, and into GPU memory.
//!
//! A [`Device`] makes [`ProtectionDomain`]s and [`CompletionQueue`]s; a domain registers
//! [`Buffer`]s as [`MemoryRegion`]s and makes [`QueuePair`]s. A queue pair takes [`SendRequest`]s
//! and [`RecvRequest`]s and tells their ends as [`Completion`]s. [`Session`] is how two programs
//! tell each other what they need to connect.
//!
//! The *soft* provider needs no RDMA hardware, kernel module or privilege: it speaks RoCEv2 over a
//! UDP socket of this process (`gdr-roce`), as network cards and Linux's rxe do, and stores what
//! arrives straight into GPU memory through a `gdr-copy` mapping ([`Buffer::direct`]), or stages
//! it through page-locked memory ([`Buffer::staged`]).
//!
//! The *verbs* provider ([`Device::verbs`]) is devices of the kernel, through a libibverbs that is
//! loaded at run time. GPU memory is registered with them by dma-buf, else by a peer-memory module,
//! each way proved by a checked transfer; [`MemoryRegion::route`] and [`MemoryRegion::refusals`]
//! say what came of it. [`Device::list_verbs`] and [`Device::list_soft`] list what there is.
//!
//! This is no binding of libibverbs: there are no raw pointers, and no way to post memory that can
//! go away. Requests hold their regions, regions their buffers, and everything its device.
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
//! source.buffer().copy_in(0, b"hello")?;
//! near.post_send(
//!     SendRequest::write(WrId(1), target.remote().at(100)).segment(source.segment(0, 5)?),
//! )?;
//! let completion = queue.wait(Deadline::after(Duration::from_secs(10)))?;
//! assert_eq!((completion.id, completion.status), (WrId(1), WcStatus::Success));
//!
//! let mut seen = [0; 5];
//! target.buffer().copy_out(100, &mut seen)?;
//! assert_eq!(&seen, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! # What holds for the soft provider
//!
//! - **Order**: what a completion tells of is in memory when the completion is polled, on the
//!   requester's side and the responder's; for GPU memory that means it has left the CPU
//!   ([`Buffer::direct`]) or the copy engine ([`Buffer::staged`]), and a kernel launched
//!   afterwards sees it. WRITEs of one queue pair are placed in order, each from low to high
//!   addresses, but only host memory promises that order to who watches it.
//! - **Integrity**: [`Device::integrity`]. Every packet's ICRC is checked before a byte is placed:
//!   in full over IPv6; over IPv4, where a UDP socket hides a field that it covers, in full with
//!   CAP_NET_RAW where there is no UDP checksum, else to 16 of its 32 bits. What is sent carries
//!   it in full, and a UDP checksum.
//! - **Trust**: as with all RoCE, whoever can send packets to the device with the peer's address,
//!   and knows queue pair number, PSN and key, can write. Keys are 32 random bits.
//! - **Death**: a peer that dies leaves [`WcStatus::RetryExceeded`] within timeout times retries.
//! - **CPU**: the device's thread sleeps when nothing happens; [`SoftOptions::busy_poll`] says how
//!   soon.

mod buffer;
mod completion;
mod connect;
mod deadline;
mod device;
mod error;
mod event;
mod lid;
mod mailbox;
mod number_map;
mod queue_pair;
mod random;
mod region;
mod request;
mod ring;
mod soft;
mod verbs;

pub use buffer::{Buffer, BufferKind, LongReads};
pub use completion::CompletionQueue;
pub use connect::{Introduction, Listener, Security, Session, SharedKey};
pub use deadline::Deadline;
pub use device::{Device, Integrity, Provider, SoftOptions};
pub use error::{Error, HandshakeError, Result};
pub use event::AsyncEvent;
pub use gdr_roce::{
    Access, AckTimeout, AtomicOp, Capabilities, Completion, Event, Immediate, Lkey, Mtu, PostError,
    Psn, Qpn, Remote, RetryCount, Rkey, RnrRetry, RnrTimer, State, StateError, WcOpcode, WcStatus,
    WrId,
};
pub use lid::Lid;
pub use queue_pair::{ConnectionOptions, Endpoint, PostRefusal, QueuePair, QueuePairOptions};
pub use region::{MemoryRegion, ProtectionDomain, RemoteMemory, Segment};
pub use request::{RecvRequest, SendRequest};
pub use ring::{RingShape, StagingRing};
pub use soft::{Counters, SoftAddress};
pub use verbs::{
    ChosenGid, DmaBufSupport, FlushPolicy, GidEntry, GidType, LinkLayer, Registration, Told,
    VerbsDevice, VerbsError, VerbsGid, VerbsOptions, VerbsPort, choose_gid,
};
