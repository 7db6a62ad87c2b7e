//! Errors.

mod handshake;
mod verbs;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use gdr_nic::unreachable_hint;
use gdr_roce::{PostError, StateError, WcStatus};

pub use gdr_nic::Foreign;
pub(crate) use gdr_nic::{Error as NicError, SocketError};

pub use self::handshake::{HandshakeError, HandshakeStep};
pub use self::verbs::{FlushError, LoopbackError, VerbsError};
pub(crate) use self::verbs::{dma_buf_hint, peer_memory_hint};

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What failed, why, and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum Error {
    /// A region that the peer may change but this side may not.
    #[error(
        "a region with REMOTE_WRITE or REMOTE_ATOMIC also needs LOCAL_WRITE, which NICs require; add it"
    )]
    LocalWriteMissing,
    /// A feature that the device's provider does not offer.
    #[error("the verbs provider offers no {0}; use a device of the soft provider")]
    NotOffered(Feature),
    /// A wait reached its deadline.
    #[error("{_0} before the deadline; {}", _0.remedy())]
    Deadline(Awaited),
    /// A transfer that consists of several requests failed.
    #[error("a transfer through the staging ring failed: {0}; create and connect a new ring")]
    Transfer(TransferError),
    /// The TCP port of the connection set-up is in use.
    #[error(
        "listening on TCP {address} failed: the port is in use; use another port, or end the process \
         that listens on it (`ss -ltnp` shows it)"
    )]
    ListenPortInUse {
        address: SocketAddr,
        source: io::Error,
    },
    /// The peer's TCP port was not reached.
    #[error(
        "connecting to TCP {address} failed: {source}; {}",
        unreachable_hint(source).unwrap_or("check that the peer listens at this address")
    )]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    /// Connections arrived, but none of them from a peer.
    #[error(
        "no peer authenticated before the deadline: {failed} {} failed, the last from {peer}: {last}",
        if *failed == 1 { "connection" } else { "connections" }
    )]
    NoPeer {
        /// How many connections failed.
        failed: u64,
        /// Source address of the last one.
        peer: SocketAddr,
        /// Why the last one failed.
        #[source]
        last: Box<Error>,
    },
    /// A listener that other hosts can reach although it accepts only peers of this host.
    #[error(
        "listening on {address} needs a shared key, because other hosts can reach that address; give \
         both sides a key, listen on a loopback address, or declare the network trusted"
    )]
    ListenNeedsKey { address: SocketAddr },
    /// A key file that cannot or must not be used.
    #[error("the key file {} {why}; {remedy}", path.display())]
    KeyFile {
        path: PathBuf,
        why: String,
        remedy: String,
    },
    /// A shared key that is easy to guess.
    #[error("a shared key of {len} bytes is too short; use at least {least} random bytes")]
    KeyTooShort { len: usize, least: usize },
    /// The connection set-up failed at the other end.
    #[error("the peer in the connection setup {0}")]
    Handshake(#[from] HandshakeError),
    /// A kernel device failed or refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The software NIC, a buffer, or a request was refused or failed.
    #[error(transparent)]
    Nic(#[from] gdr_nic::Error),
}

impl From<SocketError> for Error {
    fn from(error: SocketError) -> Self {
        Self::Nic(error.into())
    }
}

/// Features that only some providers offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Feature {
    /// Receive queues that several queue pairs share.
    SharedReceiveQueues,
    /// Queue pairs for unreliable datagrams.
    Datagrams,
    /// A limit of the rate at which the device sends.
    SendLimit,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SharedReceiveQueues => "shared receive queues",
            Self::Datagrams => "queue pairs for datagrams",
            Self::SendLimit => "limit of the rate at which a device sends",
        })
    }
}

/// What a wait was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Awaited {
    /// A completion.
    Completion,
    /// An asynchronous event.
    Event,
    /// The end of a step of the connection set-up.
    Handshake(HandshakeStep),
}

impl Awaited {
    fn remedy(self) -> &'static str {
        match self {
            Self::Completion => "look at the peer, or wait longer than its retries take",
            Self::Event => "there may be none",
            Self::Handshake(_) => "see whether the peer runs and answers",
        }
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Completion => f.write_str("no completion arrived"),
            Self::Event => f.write_str("no asynchronous event occurred"),
            Self::Handshake(step) => write!(f, "{step} did not happen"),
        }
    }
}

/// Why a transfer that consists of several requests failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TransferError {
    /// An earlier transfer failed, after which the state of the rest is unknown.
    #[error("an earlier transfer failed")]
    Earlier,
    /// A request completed with an error.
    #[error("{0} (check the peer and its region)")]
    Status(WcStatus),
}

impl Error {
    /// Returns the code of this error for programs, such as `local_write_missing`.
    ///
    /// A renamed variant keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Handshake(error) => error.code(),
            Self::Nic(error) => error.code(),
            Self::LocalWriteMissing { .. } => "local_write_missing",
            Self::Deadline { .. } => "deadline",
            Self::Transfer { .. } => "transfer",
            Self::ListenPortInUse { .. } => "listen_port_in_use",
            Self::Connect { .. } => "connect",
            Self::NoPeer { .. } => "no_peer",
            Self::ListenNeedsKey { .. } => "listen_needs_key",
            Self::KeyFile { .. } => "key_file",
            Self::KeyTooShort { .. } => "key_too_short",
            Self::Verbs { .. } => "verbs",
            Self::NotOffered { .. } => "rdma",
        }
    }

    pub(crate) fn os(call: &'static str, source: impl Into<io::Error>) -> Self {
        Self::Nic(NicError::os(call, source))
    }
}

impl From<PostError> for Error {
    fn from(refused: PostError) -> Self {
        Self::Nic(refused.into())
    }
}

impl From<StateError> for Error {
    fn from(refused: StateError) -> Self {
        Self::Nic(refused.into())
    }
}

impl From<gdr_copy::Error> for Error {
    fn from(failed: gdr_copy::Error) -> Self {
        Self::Nic(failed.into())
    }
}

impl From<gdr_cuda::Error> for Error {
    fn from(failed: gdr_cuda::Error) -> Self {
        Self::Nic(failed.into())
    }
}
