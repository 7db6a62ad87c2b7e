//! Who receives the packets of the management queue pair.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::watched::Watched;
use super::{connect_to_own, listen, name};
use gdr_nic::Result;

/// The role of this process.
#[derive(Default)]
pub(super) enum Role {
    /// To be sought.
    #[default]
    Unknown,
    /// To be sought: the process that this was connected to has ended just now.
    Orphaned,
    /// It receives the packets, for as long as it has the name.
    Keeper(Watched),
    /// Another process does, to which this is connected.
    Watching(OwnedFd),
}

impl Role {
    /// Takes the name of the keeper, or connects to who has it.
    pub(super) fn seek(local: SocketAddr) -> Result<Self> {
        let name = name(local, "keeper")?;
        if let Some(listener) = listen(&name)? {
            return Ok(Self::Keeper(Watched::new(listener)));
        }
        // It may be of another user, or of a process that has just ended.
        Ok(connect_to_own(&name)?.map_or(Self::Unknown, Self::Watching))
    }
}
