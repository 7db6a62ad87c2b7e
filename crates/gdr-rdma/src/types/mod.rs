//! Plain types that the public interface and the providers share.
//!
//! Nothing here imports a device, a provider, or an object that one of them creates.

mod connection_options;
mod endpoint;
mod flush_policy;
mod gid;
mod lid;
mod link_layer;
mod peer_text;
mod verbs_options;

use std::fmt;

pub(crate) use gdr_nic::{
    AsyncEvent, Counters, CqNumber, Domain, Integrity, SoftOptions, SourcePort, SrqNumber,
};

pub use self::connection_options::ConnectionOptions;
pub use self::endpoint::{Endpoint, UdEndpoint};
pub use self::flush_policy::FlushPolicy;
pub use self::gid::{ChosenGid, GidEntry, GidType, NoGid, choose as choose_gid};
pub use self::lid::Lid;
pub use self::link_layer::LinkLayer;
pub use self::peer_text::PeerText;
pub use self::verbs_options::VerbsOptions;

/// What moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Provider {
    /// This process, by RoCEv2 over a UDP socket.
    Soft,
    /// A kernel device through libibverbs: InfiniBand, RoCE, iWARP, Linux's rxe and siw.
    Verbs,
}

impl fmt::Display for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Soft => "soft (RoCEv2 in user space)",
            Self::Verbs => "verbs (a kernel device)",
        })
    }
}

/// How a device accesses registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RegistrationMethod {
    /// The engine of this process copies.
    Engine,
    /// The device accesses pinned pages of the process.
    HostPages,
    /// The device accesses pages of the process, which are faulted in when it touches them.
    OnDemand,
    /// The device accesses GPU memory through a dma-buf.
    DmaBuf,
    /// The device accesses GPU memory through a peer-memory module (nvidia_peermem).
    PeerMemory,
}

impl fmt::Display for RegistrationMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Engine => "by this process",
            Self::HostPages => "pinned host pages",
            Self::OnDemand => "host pages on demand",
            Self::DmaBuf => "dma-buf",
            Self::PeerMemory => "peer-memory module",
        })
    }
}
