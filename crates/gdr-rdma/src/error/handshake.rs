//! Errors of the connection set-up.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use gdr_roce::Mtu;

use crate::connect::Service;
use crate::types::PeerText;

/// What the other end of a connection set-up did wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum HandshakeError {
    /// It speaks another protocol.
    #[error("does not speak gdr's connection setup protocol; check host and port")]
    Protocol,
    /// It speaks another version.
    #[error(
        "speaks version {theirs} of the setup protocol, but this side speaks version {ours}; use the \
         same version of gdr on both sides"
    )]
    Version { ours: u16, theirs: u16 },
    /// It speaks a different service.
    #[error("offers the service {theirs}, but this side expects {ours}; check host and port")]
    Service { ours: Service, theirs: Service },
    /// It uses a different path MTU.
    #[error("uses a path MTU of {theirs}, but this side uses {ours}; set both to the same value")]
    Mtu { ours: Mtu, theirs: Mtu },
    /// It announced a message that is too long.
    #[error(
        "announced a message of {len} bytes, but at most {most} are allowed; check host and port"
    )]
    TooLong { len: usize, most: usize },
    /// Its message does not follow the format.
    #[error("sent a malformed message: {0}; use the same version of gdr on both sides")]
    Malformed(&'static str),
    /// It requires a key and this side has none, or vice versa.
    #[error("{}", if *.theirs {
        "requires a shared key, but this side has none; give this side the same key"
    } else {
        "has no shared key, but this side requires one; give the peer the same key"
    })]
    KeyMissing {
        /// Whether the peer requires the key.
        theirs: bool,
    },
    /// It does not have the same key.
    #[error("has a different shared key; give both sides the same key")]
    WrongKey,
    /// It refused to continue.
    #[error("refused: {0}")]
    Refused(PeerText),
    /// It announced an RDMA address other than the address of its TCP connection.
    #[error(
        "is at {tcp} and announces {named} as its RDMA address; without a shared key the two must \
         be the same: connect from and listen at the addresses of the RDMA devices, or give both \
         sides a key"
    )]
    OtherAddress { tcp: IpAddr, named: SocketAddr },
    /// It announced an RDMA address that no device can have.
    #[error(
        "announces {named} as its RDMA address, which is {what}; let it announce its own address"
    )]
    NotAnAddress {
        named: SocketAddr,
        what: &'static str,
    },
    /// More connections arrived than are handled at a time.
    #[error("did not authenticate before newer connections displaced it; connect again")]
    Crowded,
    /// It is a process of a different user of this host, and has no key.
    #[error(
        "is a process of user {uid} on this host; without a shared key, only processes of the same user \
         and of root are accepted: give both sides a key, or run both as the same user"
    )]
    OtherUser { uid: u32 },
    /// The kernel does not reveal which user its process belongs to, and it has no key.
    #[error(
        "is a process whose user the kernel does not tell: it ended, belongs to a user that this user \
         namespace does not map, or neither sock_diag nor /proc/net/tcp can be read here; give both sides a \
         shared key"
    )]
    UnknownUser,
    /// It closed the connection.
    #[error("closed the connection during {step}; it exited, or its own error message says why")]
    Gone { step: HandshakeStep },
    /// Its host no longer answers.
    #[error(
        "stopped answering during {step}: its host or the route to it is down; check with `ip link` and \
         `ping` on both sides"
    )]
    Lost { step: HandshakeStep },
    /// A key is needed for addresses that are not loopback.
    #[error(
        "is at {0}, which is not a loopback address, and no shared key was given; give both sides \
         one, use loopback addresses, or declare the network trusted"
    )]
    KeyNeeded(IpAddr),
}

impl HandshakeError {
    /// Returns the code of this error for programs, such as `handshake_protocol`.
    ///
    /// A renamed variant keeps its code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Protocol { .. } => "handshake_protocol",
            Self::Version { .. } => "handshake_version",
            Self::Service { .. } => "handshake_service",
            Self::Mtu { .. } => "handshake_mtu",
            Self::TooLong { .. } => "handshake_too_long",
            Self::Malformed { .. } => "handshake_malformed",
            Self::KeyMissing { .. } => "handshake_key_missing",
            Self::WrongKey { .. } => "handshake_wrong_key",
            Self::Refused { .. } => "handshake_refused",
            Self::OtherAddress { .. } => "handshake_other_address",
            Self::NotAnAddress { .. } => "handshake_not_an_address",
            Self::Crowded { .. } => "handshake_crowded",
            Self::Lost { .. } => "handshake_lost",
            Self::Gone { .. } => "handshake_gone",
            Self::KeyNeeded { .. } => "handshake_key_needed",
            Self::OtherUser { .. } => "handshake_other_user",
            Self::UnknownUser { .. } => "handshake_unknown_user",
        }
    }
}

/// A step of the connection set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HandshakeStep {
    /// Waiting for a connection.
    Accept,
    /// Connecting by TCP.
    Connect,
    /// Exchanging greetings.
    Greeting,
    /// The client proves that it has the key.
    ClientProof,
    /// The server proves that it has the key.
    ServerProof,
    /// Exchanging [`PeerInfo`](crate::PeerInfo).
    PeerInfo,
    /// Sending the reason of a refusal.
    Refusal,
    /// Meeting at a barrier.
    Barrier,
    /// Sending a message of the program.
    Send,
    /// Receiving a message of the program.
    Receive,
}

impl fmt::Display for HandshakeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept => "a peer's connection",
            Self::Connect => "connecting",
            Self::Greeting => "the peer's greeting",
            Self::ClientProof => "the client's proof of the shared key",
            Self::ServerProof => "the server's proof of the shared key",
            Self::PeerInfo => "the peer's information",
            Self::Refusal => "sending the reason of a refusal",
            Self::Barrier => "the peer's arrival at a barrier",
            Self::Send => "sending a message",
            Self::Receive => "a message of the peer",
        })
    }
}
