//! The process at the other end of a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gdr_process::PeerUser;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use gdr_udp::local_socket::wait_readable;

/// A process on this host, which may be this one.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pid: Pid,
    /// The pidfd, which shows whether the PID still belongs to that process.
    descriptor: OwnedFd,
}

impl PeerProcess {
    /// Returns the process that connected a Unix socket, or that listened for the connection.
    ///
    /// # Errors
    /// `ESRCH` if the process is in another PID namespace, or has ended; the errors of `pidfd_open(2)`.
    pub(super) fn of_unix(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let (_, pid) = PeerUser::of_unix(socket);
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, descriptor })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Returns whether the process has ended. While it has not, its PID has not been reused.
    pub(super) fn has_ended(&self) -> bool {
        wait_readable(self.descriptor.as_fd(), Duration::ZERO)
    }
}

/// The descriptor is readable once the process has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
