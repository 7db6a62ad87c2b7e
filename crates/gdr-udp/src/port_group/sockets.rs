//! The sockets of a port group.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use gdr_roce::Qpn;
use rustix::net::sockopt;

use crate::deadline::Deadline;
use crate::error::{Error, PortSharingError, Result};
use crate::process_fd::ProcessFd;
use crate::reuseport::{self, drain};
use crate::slot::Slot;

/// How long the first proof that the kernel dispatches by the program may take, and the factor for each retry. On an
/// idle CPU a proof takes well below a millisecond; with many runnable threads the kernel may deliver a datagram much
/// later.
const FIRST_PROOF: Duration = Duration::from_millis(200);
const LONGER: u32 = 2;
/// How long a device tries to create a group or to find another device's.
const CREATE_LIMIT: Duration = Duration::from_secs(10);
/// How long a port may be in use before a device checks whether its sockets can belong to a group.
const IN_USE_LIMIT: Duration = Duration::from_millis(300);
/// The delay between two attempts.
const CREATE_INTERVAL: Duration = Duration::from_millis(5);

/// Replaces port 0 by a free port. Another process may take that port before it is bound.
pub(super) fn with_port(address: SocketAddr) -> Result<SocketAddr> {
    if address.port() != 0 {
        return Ok(address);
    }
    let socket = UdpSocket::bind(address).map_err(|source| Error::binding(address, source))?;
    socket
        .local_addr()
        .map_err(|source| Error::os("getsockname", source))
}

/// A device's attempts to create a group.
pub(super) struct Creation {
    address: SocketAddr,
    deadline: Deadline,
    in_use_deadline: Deadline,
    /// How long the next proof may take.
    proof: Duration,
}

impl Creation {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            deadline: Deadline::after(CREATE_LIMIT),
            in_use_deadline: Deadline::after(IN_USE_LIMIT),
            proof: FIRST_PROOF,
        }
    }

    /// Binds the sockets of a new group, by slot and then the management socket. Each holds about one datagram. Returns
    /// `None`, after a short delay, if sockets are bound at the address: another device is creating the group, or the
    /// kernel is still closing the sockets of the last member of an earlier one.
    pub(super) fn attempt(&mut self) -> Result<Option<Vec<ProcessFd>>> {
        match bind_all(self.address, self.proof) {
            Ok(sockets) => Ok(Some(sockets)),
            Err(error) if self.deadline.has_passed() => Err(error),
            Err(Error::PortSharing { .. }) => {
                self.proof *= LONGER;
                thread::sleep(CREATE_INTERVAL);
                Ok(None)
            }
            Err(Error::PortInUse { .. })
                // A socket that can belong to a group can have another bound beside it.
                if !self.in_use_deadline.has_passed() || reuseport::bind(self.address).is_ok() =>
            {
                thread::sleep(CREATE_INTERVAL);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Binds the sockets, and proves within `limit` that the kernel dispatches among them.
///
/// The first socket is bound without `SO_REUSEPORT`, which fails if there is any other; so of several devices that
/// create a group at once, one succeeds. The proof fails if a foreign socket was added in between. Once it holds, it
/// stays valid: as long as there are foreign sockets, the last socket is one of them, so closing one never moves a
/// socket that the program selects.
fn bind_all(address: SocketAddr, limit: Duration) -> Result<Vec<ProcessFd>> {
    let failed = |source| Error::binding(address, source);
    let slots = Slot::all().map(|slot| slot.qpn(u32::MAX));
    let numbers: Vec<_> = slots.chain([Qpn::MANAGEMENT]).collect();
    let first = reuseport::bind_alone(address).map_err(failed)?;
    sockopt::set_socket_reuseport(&first, true)
        .map_err(|errno| Error::os("setsockopt(SO_REUSEPORT)", errno))?;
    let mut sockets = vec![first];
    while sockets.len() < numbers.len() {
        sockets.push(reuseport::bind(address).map_err(failed)?);
        if sockets.len() == 2 {
            // The group exists once its second socket is bound.
            reuseport::steer(sockets[0].as_fd(), &reuseport::by_slot())?;
        }
    }
    reuseport::prove(&sockets, |index| numbers[index], address, limit)?;
    for socket in &sockets {
        vacate(socket.as_fd())?;
    }
    Ok(sockets)
}

/// Returns whether a socket is bound to the address.
pub(super) fn is_bound(address: SocketAddr) -> std::result::Result<bool, PortSharingError> {
    match UdpSocket::bind(address) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => Ok(true),
        Err(source) => Err(PortSharingError::Os {
            call: "binding a UDP socket",
            source,
        }),
    }
}

/// Shrinks the receive buffer of a free slot's socket, and discards what it has received.
///
/// The socket keeps its filter. The kernel frees filters in a work queue, where a thousand of them (one per slot of a
/// few groups) can wait for one another forever (seen with Linux 6.18).
pub(super) fn vacate(socket: BorrowedFd<'_>) -> Result<()> {
    // The kernel raises this to its minimum, about one datagram.
    sockopt::set_socket_recv_buffer_size(socket, 1)
        .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
    drain(socket);
    Ok(())
}
