//! A name whose loss others notice.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::SocketFlags;

use gdr_udp::ProcessFd;
use gdr_udp::local_socket::wait_readable;

/// A name of this process, and the processes that are connected to it. The kernel ends their connections when this one ends
/// in whatever way.
pub(super) struct Watched {
    listener: ProcessFd,
    watchers: Vec<ProcessFd>,
}

impl Watched {
    pub(super) const fn new(listener: ProcessFd) -> Self {
        Self {
            listener,
            watchers: Vec::new(),
        }
    }

    /// Accepts a process that watches, so that there is room for the next one.
    pub(super) fn accept(&mut self) {
        self.watchers
            .retain(|it| !wait_readable(it.as_fd(), Duration::ZERO));
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let accepted = rustix::net::accept_with(&self.listener, flags);
        self.watchers.extend(accepted.ok().map(ProcessFd::from));
    }
}

impl AsFd for Watched {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
