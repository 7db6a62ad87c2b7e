//! System calls of the driver: opening device nodes and issuing escapes (ioctls).
//!
//! They form a trait so that tests can produce errors that are rare on hardware (a full BAR1, MIG, a lost GPU), call by
//! call.

use std::ffi::c_void;
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::abi::{Escape, request};
use crate::backend::uninterrupted::uninterrupted;

/// A device node of the NVIDIA driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    Control,
    Gpu { minor: u32 },
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control => f.write_str("/dev/nvidiactl"),
            Self::Gpu { minor } => write!(f, "/dev/nvidia{minor}"),
        }
    }
}

pub(super) trait RmIoctl: Send + Sync + fmt::Debug {
    fn open(&self, node: Node) -> io::Result<OwnedFd>;

    /// Issues an escape.
    ///
    /// # Safety
    /// `arg` points to the escape's structure of `size` bytes, which is readable and writable, and every pointer in it
    /// obeys the escape's rules.
    unsafe fn escape(
        &self,
        fd: BorrowedFd<'_>,
        escape: Escape,
        arg: *mut c_void,
        size: usize,
    ) -> io::Result<()>;
}

/// The running kernel.
#[derive(Debug)]
pub(super) struct KernelIoctl;

impl RmIoctl for KernelIoctl {
    fn open(&self, node: Node) -> io::Result<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        Ok(rustix::fs::open(node.to_string(), flags, Mode::empty())?)
    }

    unsafe fn escape(
        &self,
        fd: BorrowedFd<'_>,
        escape: Escape,
        arg: *mut c_void,
        size: usize,
    ) -> io::Result<()> {
        // A signal interrupts an escape only before it has begun (while it waits for a lock).
        uninterrupted(|| {
            // SAFETY: the caller's promise.
            unsafe { libc::ioctl(fd.as_raw_fd(), request(escape, size).into(), arg) }
        })
    }
}
