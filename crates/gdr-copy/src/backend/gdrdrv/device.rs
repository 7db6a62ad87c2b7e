//! The module's device node, as a trait that tests implement, too.

use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

use super::abi::Request;
use crate::backend::uninterrupted::uninterrupted;
use crate::error::{Error, Result};

/// The node that the module's packages create.
const NODE: &str = "/dev/gdrdrv";

/// An open file of the module.
pub(super) trait Device: Send + Sync + Debug {
    /// Makes one call. `argument` has the size of the request's structure.
    fn call(&self, request: Request, argument: &mut [u8]) -> io::Result<()>;

    /// Returns the file to mmap.
    fn file(&self) -> BorrowedFd<'_>;
}

/// [`NODE`], open.
#[derive(Debug)]
pub(super) struct DeviceNode(OwnedFd);

impl DeviceNode {
    pub(super) fn open() -> Result<Self> {
        rustix::fs::open(NODE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .map(Self)
            .map_err(|errno| Error::DeviceNode {
                path: NODE.to_owned(),
                source: errno.into(),
            })
    }
}

impl Device for DeviceNode {
    fn call(&self, request: Request, argument: &mut [u8]) -> io::Result<()> {
        // The module writes as many bytes as its structure has, however long this slice is.
        if argument.len() != request.size() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        uninterrupted(|| {
            // SAFETY: the descriptor is open as long as `self` exists; the module reads and writes the request's
            // structure at this address, which is as large as `argument`.
            unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, argument.as_mut_ptr()) }
        })
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_module_returns_the_error_of_the_system() {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let node = DeviceNode(null.unwrap());
        let error = node.call(Request::GetVersion, &mut [0; 8]).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOTTY));
    }

    #[test]
    fn an_argument_of_another_size_is_not_passed_to_the_kernel() {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        let node = DeviceNode(null.unwrap());
        for size in [0, 7, 9] {
            let error = node
                .call(Request::GetVersion, &mut vec![0; size])
                .unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }
}
