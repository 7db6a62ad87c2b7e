//! The process at the other end of a ring.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use gdr_process::PeerUser;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use gdr_udp::local_socket::wait_readable;

/// A process of this host, or this one.
#[derive(Debug)]
pub(super) struct PeerProcess {
    pid: Pid,
    /// Shows that the number is still that process.
    descriptor: OwnedFd,
}

impl PeerProcess {
    /// The process that has connected a Unix socket, or listened for it.
    ///
    /// # Errors
    /// `ESRCH` if it is not visible here: it is in another PID namespace, or has ended. The errors of `pidfd_open(2)`.
    pub(super) fn of_unix(socket: BorrowedFd<'_>) -> Result<Self, Errno> {
        let (_, pid) = PeerUser::of_unix(socket);
        let pid = Pid::from_raw(pid).ok_or(Errno::SRCH)?;
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self { pid, descriptor })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Whether it has ended. If not, no other process had its number before.
    pub(super) fn has_ended(&self) -> bool {
        wait_readable(self.descriptor.as_fd(), Duration::ZERO)
    }
}

/// Readable once the process has ended.
impl AsFd for PeerProcess {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
