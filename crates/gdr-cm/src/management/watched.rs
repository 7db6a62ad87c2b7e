//! A name whose disappearance other processes notice.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::net::SocketFlags;

use gdr_udp::ProcessFd;
use gdr_udp::local_socket::wait_readable;

/// A name held by this process, and the processes connected to it. The kernel closes their connections when this
/// process ends, however it ends.
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

    /// Accepts a watching process, so that the backlog does not fill up.
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
