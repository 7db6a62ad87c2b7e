//! Who receives the packets of the management queue pair.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gdr_process::PeerUser;
use rustix::net::{SocketFlags, SocketType};

use super::{listen, name};
use crate::error::{Error, Result};
use crate::wire::local_socket::{self, Connected, wait_readable};
use crate::wire::process_fd::ProcessFd;

/// The role of this process.
#[derive(Default)]
pub(super) enum Role {
    /// To be sought.
    #[default]
    Unknown,
    /// It receives the packets, for as long as it has the name.
    Keeper(Keeper),
    /// Another process does, to which this is connected.
    Watching(OwnedFd),
}

/// What a keeper holds.
pub(super) struct Keeper {
    listener: ProcessFd,
    /// The other processes.
    watchers: Vec<ProcessFd>,
}

impl Keeper {
    /// Accepts a process that watches, so that there is room for the next one.
    pub(super) fn accept(&mut self) {
        self.watchers
            .retain(|it| !wait_readable(it.as_fd(), Duration::ZERO));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&self.listener, flags);
        self.watchers.extend(accepted.ok().map(ProcessFd::from));
    }
}

impl AsFd for Keeper {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Role {
    /// Takes the name of the keeper, or connects to who has it.
    pub(super) fn seek(local: SocketAddr) -> Result<Self> {
        let name = name(local, "keeper")?;
        if let Some(listener) = listen(&name)? {
            return Ok(Self::Keeper(Keeper {
                listener,
                watchers: Vec::new(),
            }));
        }
        let connected = local_socket::connect(&name, SocketType::SEQPACKET)
            .map_err(|errno| Error::os("connecting to a keeper", errno))?;
        Ok(match connected {
            Connected::To(keeper) if PeerUser::of_unix(keeper.as_fd()).0 == PeerUser::Own => {
                Self::Watching(keeper)
            }
            // Of another user, or it has just ended.
            _ => Self::Unknown,
        })
    }
}
