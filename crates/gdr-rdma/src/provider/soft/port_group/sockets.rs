//! The sockets of a port group.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use rustix::net::sockopt;

use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::provider::soft::process_fd::ProcessFd;
use crate::provider::soft::reuseport::{self, drain};
use crate::provider::soft::slot::Slot;

/// The limit of the first proof that the kernel passes datagrams as the program says, and the factor
/// of each next one. A proof takes well below a millisecond where a processor is free; with many
/// runnable threads the kernel may deliver a datagram much later.
const FIRST_PROOF: Duration = Duration::from_millis(200);
const LONGER: u32 = 2;
/// No attempt to make a group begins after this. The time between two attempts.
const CREATE_LIMIT: Duration = Duration::from_secs(10);
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

/// Binds the sockets of a new group, by slot. They hold one datagram each.
///
/// The kernel may still be closing sockets of a process that was the last member of an earlier group,
/// which are in one group with the new ones. The proof fails then, as the first of the group have the
/// first indexes. Once it holds it stays: a socket whose index is below 64 is not the last while there
/// are more than 64, so closing another one does not move it.
pub(super) fn create(address: SocketAddr) -> Result<Vec<ProcessFd>> {
    let deadline = Deadline::after(CREATE_LIMIT);
    let mut limit = FIRST_PROOF;
    loop {
        match bind_all(address, limit) {
            Err(Error::PortSharing { .. }) if !deadline.has_passed() => {
                thread::sleep(CREATE_INTERVAL);
                limit *= LONGER;
            }
            done => return done,
        }
    }
}

/// Binds the sockets and proves within a limit that the kernel selects among them.
fn bind_all(address: SocketAddr, limit: Duration) -> Result<Vec<ProcessFd>> {
    let (mut sockets, slots) = (Vec::new(), Slot::all().collect::<Vec<_>>());
    for _ in &slots {
        let socket = reuseport::bind(address).map_err(|source| Error::binding(address, source))?;
        sockets.push(socket);
        if sockets.len() == 1 {
            reuseport::steer(sockets[0].as_fd(), &reuseport::by_slot())?;
        }
    }
    let number = |index: usize| slots[index].qpn(u32::MAX);
    reuseport::prove(&sockets, number, address, limit)?;
    for socket in &sockets {
        vacate(socket.as_fd())?;
    }
    Ok(sockets)
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
