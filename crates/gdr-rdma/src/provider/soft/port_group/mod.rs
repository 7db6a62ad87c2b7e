//! Several devices, in one or more processes of a user, at one UDP address and port.
//!
//! A port group has one socket for each [`Slot`], all bound with `SO_REUSEPORT`. A classic
//! BPF program, which needs no privilege, passes each datagram to a socket by its index, which is its
//! place in the order of binding. It takes the index from the destination's queue pair number, whose
//! upper bits are the slot.
//!
//! If a socket of such a group closes, the kernel moves the last one into its place, and a program
//! that was right would no longer be. Which of several sockets closed first cannot be found out
//! afterwards, and a process that was killed reports nothing. So no socket closes while the group
//! lives: the device that makes the group binds all sockets, and each device that joins receives all
//! of them from another member. A socket closes when the last member's process ends, and with it the
//! whole group. Indexes, and the program, are constant.
//!
//! A member's slot, and the right to change the group, are abstract Unix names, which the kernel
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
use super::slot::Slot;
use crate::error::{Error, Result};
use crate::provider::soft::process_fd::ProcessFd;

/// The membership of a device in the group of its port.
pub(super) struct PortGroup {
    origin: ProcessId,
    slot: Slot,
    /// All sockets of the group, by slot.
    sockets: Arc<[ProcessFd]>,
    keeper: Option<Keeper>,
}

impl PortGroup {
    /// Joins the group at `address`, or makes it if there is none; port 0 takes a free one. Returns the
    /// socket of the slot as well, which may have the filter of an earlier device.
    pub(super) fn join(address: SocketAddr) -> Result<(Self, ProcessFd)> {
        let address = sockets::with_port(address)?;
        let failed = |reason| Error::PortSharing { address, reason };
        let lock = JoinLock::acquire(address).map_err(failed)?;
        let found = members::find(&lock).map_err(failed)?;
        let sockets: Arc<[ProcessFd]> = match found.sockets {
            Some(sockets) => sockets.into(),
            None => sockets::create(address)?.into(),
        };
        for slot in &found.free {
            // A process that was killed left its socket as it was.
            sockets::vacate(sockets[slot.index()].as_fd())?;
        }
        let (slot, listener) = members::claim(&lock, &found.free).map_err(failed)?;
        let own = rustix::io::fcntl_dupfd_cloexec(&sockets[slot.index()], 0)
            .map_err(|errno| Error::os("dup of a socket of a port group", errno))?;
        let keeper = Keeper::start(listener, Arc::clone(&sockets))?;
        tracing::debug!(%address, slot = slot.index(), "joined a port group");
        let group = Self {
            origin: ProcessId::current(),
            slot,
            sockets,
            keeper: Some(keeper),
        };
        Ok((group, own.into()))
    }

    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    /// Drops what the socket of the slot received for an earlier device, once a filter of its own
    /// is attached.
    pub(super) fn drain(&self) {
        sockets::drain(self.sockets[self.slot.index()].as_fd());
    }
}

impl Drop for PortGroup {
    fn drop(&mut self) {
        let keeper = self.keeper.take();
        if !self.origin.is_current() {
            // The slot is the parent's, and so is the thread.
            return mem::forget(keeper);
        }
        // Before the keeper frees the slot. The sockets stay open in other members.
        if let Err(error) = sockets::vacate(self.sockets[self.slot.index()].as_fd()) {
            tracing::debug!(%error, "the socket of a slot keeps its receive buffer");
        }
        self.sockets = Arc::new([]);
        drop(keeper);
    }
}
