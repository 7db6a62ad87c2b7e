//! Several devices, in one or more processes of a user, at one UDP address and port.
//!
//! A port group has one socket per [`Slot`], all bound with `SO_REUSEPORT`. The kernel selects among them by the slot,
//! which is the upper bits of the destination queue pair number (see [`reuseport`](crate::reuseport)). A device takes
//! one slot per shard. One more socket receives management datagrams.
//!
//! When a socket of such a group closes, the kernel moves the last one into its place, which would invalidate the
//! program. Which socket closed first cannot be determined afterwards, and a killed process reports nothing. So no
//! socket closes while the group lives: the device that creates the group binds all sockets, and each device that joins
//! receives all of them from another member. The sockets close together when the last member's process ends. Until then
//! indexes, and so the program, stay constant.
//!
//! Slots, and the right to change the group, are represented by abstract Unix names. The kernel keeps them in the same
//! network namespace as UDP ports, assigns them atomically, and frees them when a process ends. See [`members`].

mod members;
mod sockets;

use std::mem;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use gdr_process::ProcessId;

use self::members::{JoinLock, Keeper};
pub(super) use self::members::{SolePort, claim_port};
use crate::error::{Error, PortSharingError, Result};
use crate::options::Shards;
use crate::process_fd::ProcessFd;
use crate::slot::{MANAGEMENT, SLOTS, Slot};

/// A device's membership in the group of its port.
pub(super) struct PortGroup {
    origin: ProcessId,
    slots: Vec<Slot>,
    /// All sockets of the group, by slot, and then the management socket.
    sockets: Arc<[ProcessFd]>,
    keeper: Option<Keeper>,
}

impl PortGroup {
    /// Joins the group at `address`, or creates it if there is none; port 0 picks a free port. Also returns the sockets
    /// of the device's slots, which may still have the filters of earlier devices.
    pub(super) fn join(address: SocketAddr, shards: Shards) -> Result<(Self, Vec<ProcessFd>)> {
        let address = sockets::with_port(address)?;
        let failed = |reason| Error::PortSharing { address, reason };
        let lock = JoinLock::acquire(address).map_err(failed)?;
        let mut creation = sockets::Creation::new(address);
        let (sockets, free): (Arc<[ProcessFd]>, _) = loop {
            let found = members::find(&lock).map_err(failed)?;
            if let Some(sockets) = found.sockets {
                break (sockets.into(), found.free);
            }
            members::check_unclaimed(&lock)?;
            if let Some(sockets) = creation.attempt()? {
                break (sockets.into(), found.free);
            }
        };
        let most = slots_of(shards, free.len());
        let (mut slots, mut listeners) = (Vec::new(), Vec::new());
        for slot in free {
            // Claims the name first: from then on the slot belongs to this device.
            let Some(listener) = members::claim(&lock, slot).map_err(failed)? else {
                continue;
            };
            // A killed process left its socket in whatever state it was.
            sockets::vacate(sockets[slot.index()].as_fd())?;
            if slots.len() < most {
                slots.push(slot);
                listeners.push(listener);
            }
        }
        if slots.len() < shards.fewest() {
            return Err(failed(PortSharingError::Full { slots: SLOTS }));
        }
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

    /// Returns a new descriptor of the management socket, which all members share.
    pub(super) fn management_socket(&self) -> Result<ProcessFd> {
        rustix::io::fcntl_dupfd_cloexec(&self.sockets[MANAGEMENT], 0)
            .map(ProcessFd::from)
            .map_err(|errno| Error::os("dup of a socket of a port group", errno))
    }

    /// Returns the device's slots, by shard.
    pub(super) fn slots(&self) -> &[Slot] {
        &self.slots
    }
}

/// Returns how many of the free slots a device takes.
const fn slots_of(shards: Shards, free: usize) -> usize {
    match shards {
        // Leaves the rest for later devices, each of which needs at least one.
        Shards::AtMost(_) if free <= SLOTS * 3 / 4 => 1,
        shards => shards.most(),
    }
}

impl Drop for PortGroup {
    fn drop(&mut self) {
        let keeper = self.keeper.take();
        if !self.origin.is_current() {
            // In a forked child, the slots and the thread belong to the parent.
            return mem::forget(keeper);
        }
        for slot in &self.slots {
            // Before the keeper frees the slot, because the sockets stay open in other members.
            if let Err(error) = sockets::vacate(self.sockets[slot.index()].as_fd()) {
                tracing::debug!(%error, "the socket of a slot keeps its receive buffer");
            }
        }
        self.sockets = Arc::new([]);
        drop(keeper);
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use std::net::UdpSocket;
    use std::os::fd::BorrowedFd;

    use rustix::event::{PollFd, PollFlags, Timespec};
    use rustix::io::Errno;
    use rustix::net::{RecvFlags, sockopt};

    use super::*;

    /// Returns a group, and a slot that no device holds.
    fn group() -> (PortGroup, SocketAddr, Slot) {
        let probe = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = probe.local_addr().unwrap();
        drop(probe);
        let (group, _) = PortGroup::join(address, Shards::Exactly(1)).unwrap();
        let free = Slot::all().nth(1).unwrap();
        (group, address, free)
    }

    fn buffer(group: &PortGroup, slot: Slot) -> usize {
        sockopt::socket_recv_buffer_size(&group.sockets[slot.index()]).unwrap()
    }

    /// Sets the slot's socket up as its device would.
    fn enlarge(group: &PortGroup, slot: Slot) {
        let socket = &group.sockets[slot.index()];
        sockopt::set_socket_recv_buffer_size(socket, 100_000).unwrap();
    }

    #[test]
    fn a_device_that_can_do_with_one_slot_leaves_the_last_three_quarters_to_others() {
        assert_eq!(slots_of(Shards::AtMost(2), SLOTS), 2);
        assert_eq!(slots_of(Shards::AtMost(2), SLOTS * 3 / 4), 1);
        assert_eq!(slots_of(Shards::Exactly(2), 2), 2);
        let (_group, address, _) = group();
        let join = |shards| PortGroup::join(address, shards).unwrap().0;
        let early = join(Shards::AtMost(2));
        assert_eq!(early.slots().len(), 2);
        let _others = join(Shards::Exactly(SLOTS / 4 - 3));
        assert_eq!(join(Shards::AtMost(2)).slots().len(), 1);
    }

    #[test]
    fn the_socket_of_a_slot_that_was_left_holds_few_datagrams() {
        let (group, address, free) = group();
        let empty = buffer(&group, free);
        let (left, _) = PortGroup::join(address, Shards::Exactly(1)).unwrap();
        assert_eq!(left.slots(), [free]);
        enlarge(&group, free);
        assert!(buffer(&group, free) > empty);
        drop(left);
        assert_eq!(buffer(&group, free), empty);
    }

    #[test]
    fn what_a_killed_process_left_in_its_slot_is_gone_when_a_device_joins() {
        let (group, address, free) = group();
        let empty = buffer(&group, free);
        let sender = UdpSocket::bind((address.ip(), 0)).unwrap();
        // Addressed to a queue pair of the slot, which is all that the kernel's program reads.
        let mut datagram = [0; 12];
        datagram[4..8].copy_from_slice(&free.qpn(7).get().to_be_bytes());
        for joined in [1, 2] {
            enlarge(&group, free);
            sender.send_to(&datagram, address).unwrap();
            let socket = &group.sockets[free.index()];
            wait_for_datagram(socket.as_fd());
            // The second device takes one slot more.
            let shards = Shards::Exactly(joined);
            let (next, sockets) = PortGroup::join(address, shards).unwrap();
            assert_eq!(next.slots()[0], free);
            let kept = rustix::net::recv(&sockets[0], &mut [0; 16][..], RecvFlags::DONTWAIT);
            assert_eq!(kept, Err(Errno::AGAIN));
            assert_eq!(buffer(&group, free), empty);
        }
    }

    fn wait_for_datagram(socket: BorrowedFd<'_>) {
        let limit = Timespec::try_from(std::time::Duration::from_secs(20)).unwrap();
        let mut interest = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut interest, Some(&limit)), Ok(1));
    }
}
