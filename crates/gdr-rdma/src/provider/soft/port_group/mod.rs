//! Several devices, in one or more processes of a user, at one UDP address and port.
//!
//! A port group has one socket for each [`Slot`], all bound with `SO_REUSEPORT`. The kernel selects
//! among them by the upper bits of the destination's queue pair number, which are the slot (see
//! [`reuseport`](super::reuseport)). A device has as many slots as shards.
//!
//! If a socket of such a group closes, the kernel moves the last one into its place, and a program
//! that was right would no longer be. Which of several sockets closed first cannot be found out
//! afterwards, and a process that was killed reports nothing. So no socket closes while the group
//! lives: the device that makes the group binds all sockets, and each device that joins receives all
//! of them from another member. A socket closes when the last member's process ends, and with it the
//! whole group. Indexes, and the program, are constant.
//!
//! A member's slots, and the right to change the group, are abstract Unix names, which the kernel
//! keeps in the same network namespace as UDP ports, assigns atomically and frees when a process
//! ends. See [`members`].

mod members;
mod sockets;

use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use gdr_copy::ProcessId;

use self::members::{JoinLock, Keeper};
pub(super) use self::members::{SolePort, claim_port};
use super::slot::{SLOTS, Slot};
use crate::error::{Error, PortSharingError, Result};
use crate::provider::soft::process_fd::ProcessFd;
use crate::types::Shards;

/// The membership of a device in the group of its port.
pub(super) struct PortGroup {
    origin: ProcessId,
    slots: Vec<Slot>,
    /// All sockets of the group, by slot.
    sockets: Arc<[ProcessFd]>,
    keeper: Option<Keeper>,
}

impl PortGroup {
    /// Joins the group at `address`, or makes it if there is none; port 0 takes a free one. Returns the
    /// sockets of the slots as well, which may have the filters of earlier devices.
    pub(super) fn join(address: SocketAddr, shards: Shards) -> Result<(Self, Vec<ProcessFd>)> {
        let address = sockets::with_port(address)?;
        let failed = |reason| Error::PortSharing { address, reason };
        let lock = JoinLock::acquire(address).map_err(failed)?;
        let found = members::find(&lock).map_err(failed)?;
        let sockets: Arc<[ProcessFd]> = match found.sockets {
            Some(sockets) => sockets.into(),
            None => {
                members::check_unclaimed(&lock)?;
                sockets::create(address)?.into()
            }
        };
        for slot in &found.free {
            // A process that was killed left its socket as it was.
            sockets::vacate(sockets[slot.index()].as_fd())?;
        }
        let claimed = members::claim(&lock, &found.free, shards.most()).map_err(failed)?;
        if claimed.len() < shards.fewest() {
            return Err(failed(PortSharingError::Full { slots: SLOTS }));
        }
        let (slots, listeners): (Vec<_>, _) = claimed.into_iter().unzip();
        let own = |slot: &Slot| {
            rustix::io::fcntl_dupfd_cloexec(&sockets[slot.index()], 0)
                .map(ProcessFd::from)
                .map_err(|errno| Error::os("dup of a socket of a port group", errno))
        };
        let own = slots.iter().map(own).collect::<Result<_>>()?;
        let keeper = Keeper::start(listeners, Arc::clone(&sockets))?;
        tracing::debug!(%address, ?slots, "joined a port group");
        let group = Self {
            origin: ProcessId::current(),
            slots,
            sockets,
            keeper: Some(keeper),
        };
        Ok((group, own))
    }

    /// The slots of the device, by shard.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

impl Drop for PortGroup {
    fn drop(&mut self) {
        let keeper = self.keeper.take();
        if !self.origin.is_current() {
            // The slots are the parent's, and so is the thread.
            return mem::forget(keeper);
        }
        for slot in &self.slots {
            // Before the keeper frees the slot. The sockets stay open in other members.
            if let Err(error) = sockets::vacate(self.sockets[slot.index()].as_fd()) {
                tracing::debug!(%error, "the socket of a slot keeps its receive buffer");
            }
        }
        self.sockets = Arc::new([]);
        drop(keeper);
    }
}
