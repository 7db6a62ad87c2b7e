//! Unix sockets with abstract names, through which processes of one network namespace find each other.
//!
//! A name exists while some process holds its listening socket. Any process of the namespace can take any name.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::process_fd::ProcessFd;

/// The outcome of connecting to a name.
pub enum Connected {
    /// No process holds the name.
    Free,
    /// A process holds it, and may answer.
    To(OwnedFd),
    /// The backlog is full, so the kernel does not reveal who holds it.
    Crowded,
}

fn open(of_type: SocketType, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | flags;
    rustix::net::socket_with(AddressFamily::UNIX, of_type, flags, None)
}

/// Listens at a name. Returns `None` if another process holds it.
pub fn listen(
    name: &SocketAddrUnix,
    of_type: SocketType,
    backlog: i32,
) -> Result<Option<ProcessFd>, Errno> {
    let socket = ProcessFd::from(open(of_type, SocketFlags::empty())?);
    match rustix::net::bind(&socket, name) {
        Ok(()) => {}
        Err(Errno::ADDRINUSE) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    rustix::net::listen(&socket, backlog)?;
    Ok(Some(socket))
}

/// Connects to a name without blocking.
pub fn connect(name: &SocketAddrUnix, of_type: SocketType) -> Result<Connected, Errno> {
    let socket = open(of_type, SocketFlags::NONBLOCK)?;
    match rustix::net::connect(&socket, name) {
        Ok(()) => Ok(Connected::To(socket)),
        Err(Errno::CONNREFUSED) => Ok(Connected::Free),
        Err(Errno::AGAIN) => Ok(Connected::Crowded),
        Err(errno) => Err(errno),
    }
}

/// Waits until a descriptor is readable or its peer has closed. Returns whether either happened within `limit`.
pub fn wait_readable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut descriptors = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    // EINTR ends the wait early.
    matches!(
        rustix::event::poll(&mut descriptors, limit.as_ref()),
        Ok(1..)
    )
}
