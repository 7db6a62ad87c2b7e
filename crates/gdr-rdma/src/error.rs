//! What can go wrong.

use std::io;
use std::net::{IpAddr, SocketAddr};

use gdr_roce::{Mtu, PostError, StateError};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why something was not done: what failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A buffer or region of no bytes.
    #[error("a buffer of no bytes cannot be registered; give it at least one")]
    EmptyBuffer,
    /// A range that leaves its buffer or region.
    #[error("{wanted} bytes at offset {offset} leave the {len} bytes there are; nothing was done")]
    OutOfRange {
        /// Where the range starts.
        offset: u64,
        /// How long it is.
        wanted: u64,
        /// How long the buffer or region is.
        len: u64,
    },
    /// A region that the peer may change and this side may not.
    #[error(
        "a region with REMOTE_WRITE or REMOTE_ATOMIC needs LOCAL_WRITE, too; network cards insist \
         on it"
    )]
    LocalWriteMissing,
    /// A word at an odd place.
    #[error("offset {offset} is no multiple of {alignment}; align the word")]
    Misaligned {
        /// The offset.
        offset: u64,
        /// What it must be a multiple of.
        alignment: u64,
    },
    /// A mapping and an allocation that are not the same memory.
    #[error(
        "the mapping shows GPU memory at {mapped:#x}, which is not all in the allocation at \
         {allocated:#x}; map that allocation"
    )]
    MappedElsewhere {
        /// The GPU address that the mapping begins at.
        mapped: u64,
        /// That of the allocation.
        allocated: u64,
    },
    /// Parts of two devices or protection domains in one request.
    #[error("{what} belongs to another {owner}; use one of the same {owner}")]
    Foreign {
        /// What was handed in.
        what: &'static str,
        /// What it must share with the rest.
        owner: &'static str,
    },
    /// A wait ended without what it waited for.
    #[error("{what} did not happen before the deadline; {remedy}")]
    Deadline {
        /// What was waited for.
        what: &'static str,
        /// What to look at.
        remedy: &'static str,
    },
    /// A transfer that several requests make together failed.
    #[error("{what} failed: {why}; {remedy}")]
    Transfer {
        /// What.
        what: &'static str,
        /// Why.
        why: String,
        /// What to do.
        remedy: &'static str,
    },
    /// More completions than a completion queue holds; those beyond are lost.
    #[error(
        "the completion queue overran its {capacity} entries and completions are lost; poll more \
         often, or make it as large as all requests of its queue pairs"
    )]
    CompletionQueueOverrun {
        /// How many it holds.
        capacity: usize,
    },
    /// A request was not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A queue pair did not change its state.
    #[error(transparent)]
    State(#[from] StateError),
    /// The UDP port is taken.
    #[error(
        "binding UDP {address} failed: the port is in use, by another engine at this address (use \
         another one; a host has 127.0.0.2 and so on), or by the kernel's rxe, which takes it at \
         every address (`rdma link` shows it; remove its links, or use a network namespace)"
    )]
    PortInUse {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The TCP port of the set-up is taken.
    #[error(
        "listening on TCP {address} failed: the port is in use; give another one, or end who \
         listens there (`ss -ltnp` shows it)"
    )]
    ListenPortInUse {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// The address is not this host's.
    #[error(
        "binding {address} failed: no interface of this host has this address; `ip address` lists \
         those that there are"
    )]
    AddressNotLocal {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// An unspecified or multicast address.
    #[error("{0} names no single interface; give the address that peers are to send to")]
    AddressNotUnicast(IpAddr),
    /// Two address families on one path.
    #[error("{local} and {peer} are of different families; use IPv4 or IPv6 on both sides")]
    AddressFamily {
        /// This side.
        local: IpAddr,
        /// The other.
        peer: IpAddr,
    },
    /// The peer's TCP port was not reached.
    #[error("connecting to TCP {address} failed: {source}; see whether the peer listens there")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// A shared key that is easily guessed.
    #[error("a shared key of {len} bytes is too short; give at least {least}, random ones")]
    KeyTooShort {
        /// How long it is.
        len: usize,
        /// How long it must be.
        least: usize,
    },
    /// A message of the connection set-up was not understood.
    #[error("the peer at the other end of the connection set-up {0}")]
    Handshake(#[from] HandshakeError),
    /// The operating system refused.
    #[error("{call} failed: {source}")]
    Os {
        /// The call.
        call: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A mapping of GPU memory refused.
    #[error(transparent)]
    Copy(#[from] gdr_copy::Error),
    /// A device of the kernel refused.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] gdr_cuda::Error),
}

/// What the other end of a connection set-up did wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// It speaks something else.
    #[error("does not speak gdr's connection set-up; check host and port")]
    Protocol,
    /// It speaks another version.
    #[error(
        "speaks version {theirs} of the set-up, this is version {ours}; use one gdr on both sides"
    )]
    Version {
        /// This side's.
        ours: u16,
        /// The peer's.
        theirs: u16,
    },
    /// It uses another path MTU.
    #[error("uses a path MTU of {theirs}, this side {ours}; give both the same")]
    Mtu {
        /// This side's.
        ours: Mtu,
        /// The peer's.
        theirs: Mtu,
    },
    /// It claims a message longer than any.
    #[error("announced a message of {len} bytes, {most} are possible; check host and port")]
    TooLong {
        /// What it announced.
        len: usize,
        /// What is possible.
        most: usize,
    },
    /// Its message does not follow the format.
    #[error("sent a message that breaks the format: {0}; use one gdr on both sides")]
    Malformed(&'static str),
    /// It wants a key and this side has none, or the reverse.
    #[error("{}", if *.theirs {
        "asks for a shared key and this side has none; give this side the same key"
    } else {
        "has no shared key and this side asks for one; give the peer the same key"
    })]
    KeyMissing {
        /// Whether it is the peer that asks.
        theirs: bool,
    },
    /// It does not know the key.
    #[error("does not know the shared key; give both sides the same one")]
    WrongKey,
    /// It went away.
    #[error("closed the connection during {step}; look at its own message")]
    Gone {
        /// At which step.
        step: &'static str,
    },
    /// A key is needed off this host.
    #[error(
        "is at {0}, which is not this host, and no shared key was given; give both sides one, or \
         say that the network is trusted"
    )]
    KeyNeeded(IpAddr),
}

impl Error {
    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Os {
            call,
            source: source.into(),
        }
    }
}
