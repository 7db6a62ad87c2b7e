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

/// The limit of the first proof that the kernel passes datagrams as the program says, and the factor
/// of each next one. A proof takes well below a millisecond where a processor is free; with many
/// runnable threads the kernel may deliver a datagram much later.
const FIRST_PROOF: Duration = Duration::from_millis(200);
const LONGER: u32 = 2;
/// How long a device tries to make a group or to find another one's.
const CREATE_LIMIT: Duration = Duration::from_secs(10);
/// How long a port may be in use until a look shows whether its sockets belong to a group.
const IN_USE_LIMIT: Duration = Duration::from_millis(300);
/// The time between two attempts.
const CREATE_INTERVAL: Duration = Duration::from_millis(5);

/// `address` with a free port instead of port 0. Another process may take it meanwhile.
pub(super) fn with_port(address: SocketAddr) -> Result<SocketAddr> {
    if address.port() != 0 {
        return Ok(address);
    }
    let socket = UdpSocket::bind(address).map_err(|source| Error::binding(address, source))?;
    socket
        .local_addr()
        .map_err(|source| Error::os("getsockname", source))
}

/// The attempts of a device to make a group.
pub(super) struct Creation {
    address: SocketAddr,
    deadline: Deadline,
    in_use_deadline: Deadline,
    /// The limit of the next proof.
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

    /// Binds the sockets of a new group, by slot and with the one for management datagrams. They hold one
    /// datagram each. Returns `None`, after a
    /// moment, if sockets are bound at the address: another device makes the group, or the kernel is still
    /// closing the sockets of a process that was the last member of an earlier one.
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
                // A socket that may be one of a group can be bound beside one.
                if !self.in_use_deadline.has_passed() || reuseport::bind(self.address).is_ok() =>
            {
                thread::sleep(CREATE_INTERVAL);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Binds the sockets and proves within a limit that the kernel selects among them.
///
/// The first one is bound alone, which fails if there is any other: so of several devices that make a
/// group at once, one does. The proof fails if a socket was added in between. Once it holds it stays: a
/// socket that the program selects is not the last while there are more, so closing another one
/// does not move it.
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
            // The second one made the group.
            reuseport::steer(sockets[0].as_fd(), &reuseport::by_slot())?;
        }
    }
    reuseport::prove(&sockets, |index| numbers[index], address, limit)?;
    for socket in &sockets {
        vacate(socket.as_fd())?;
    }
    Ok(sockets)
}

/// Whether a socket is bound to the address.
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

/// Lets the socket of a free slot hold few datagrams, and drops those that it has received.
///
/// The socket keeps its filter. The kernel frees a filter in a work queue, in which a thousand of
/// them, one for each slot of a few groups, can wait for each other forever (seen with Linux 6.18).
pub(super) fn vacate(socket: BorrowedFd<'_>) -> Result<()> {
    // The kernel takes its minimum instead, which is about one datagram.
    sockopt::set_socket_recv_buffer_size(socket, 1)
        .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
    drain(socket);
    Ok(())
}
