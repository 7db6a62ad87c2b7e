//! Which process receives the packets of the management queue pair.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::watched::Watched;
use super::{connect_to_own, listen, name};
use gdr_nic::Result;

/// The role of this process.
#[derive(Default)]
pub(super) enum Role {
    /// Still to be determined.
    #[default]
    Unknown,
    /// Still to be determined: the keeper that this process was connected to has just ended.
    Orphaned,
    /// This process receives the packets, for as long as it holds the name.
    Keeper(Watched),
    /// Another process is the keeper, and this one is connected to it.
    Watching(OwnedFd),
}

impl Role {
    /// Claims the keeper's name, or connects to its holder.
    pub(super) fn seek(local: SocketAddr) -> Result<Self> {
        let name = name(local, "keeper")?;
        if let Some(listener) = listen(&name)? {
            return Ok(Self::Keeper(Watched::new(listener)));
        }
        // The holder may belong to another user, or may have just ended.
        Ok(connect_to_own(&name)?.map_or(Self::Unknown, Self::Watching))
    }
}
