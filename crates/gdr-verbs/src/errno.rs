//! Error numbers.

use std::ffi::c_int;

use gdr_cm::PortError;
use gdr_nic::{Error, PostError, SocketError};

/// A positive errno.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(c_int);

impl Errno {
    pub(crate) const ACCES: Self = Self(libc::EACCES);
    pub(crate) const ADDRINUSE: Self = Self(libc::EADDRINUSE);
    pub(crate) const ADDRNOTAVAIL: Self = Self(libc::EADDRNOTAVAIL);
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const BADF: Self = Self(libc::EBADF);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const DEADLK: Self = Self(libc::EDEADLK);
    pub(crate) const EXIST: Self = Self(libc::EEXIST);
    pub(crate) const FAULT: Self = Self(libc::EFAULT);
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const ISDIR: Self = Self(libc::EISDIR);
    pub(crate) const LOOP: Self = Self(libc::ELOOP);
    pub(crate) const MFILE: Self = Self(libc::EMFILE);
    pub(crate) const MSGSIZE: Self = Self(libc::EMSGSIZE);
    pub(crate) const NOBUFS: Self = Self(libc::ENOBUFS);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const NODEV: Self = Self(libc::ENODEV);
    pub(crate) const NOENT: Self = Self(libc::ENOENT);
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
    pub(crate) const NOSPC: Self = Self(libc::ENOSPC);
    pub(crate) const NOSYS: Self = Self(libc::ENOSYS);
    pub(crate) const NOTDIR: Self = Self(libc::ENOTDIR);
    pub(crate) const NXIO: Self = Self(libc::ENXIO);
    pub(crate) const OPNOTSUPP: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const PERM: Self = Self(libc::EPERM);
    pub(crate) const RANGE: Self = Self(libc::ERANGE);

    pub(crate) const fn get(self) -> c_int {
        self.0
    }

    pub(crate) fn of_io(error: &std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(errno: rustix::io::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}

impl From<PortError> for Errno {
    fn from(error: PortError) -> Self {
        match error {
            PortError::InUse => Self::ADDRINUSE,
            PortError::NotAvailable | PortError::NonFree => Self::ADDRNOTAVAIL,
            PortError::Os(error) => Self::of_io(&error),
        }
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full(_) | PostError::InlineTooLong { .. } => Self::NOMEM,
            _ => Self::INVAL,
        }
    }
}

impl From<SocketError> for Errno {
    fn from(error: SocketError) -> Self {
        match error {
            SocketError::PortInUse { source, .. }
            | SocketError::PortDenied { source, .. }
            | SocketError::AddressNotLocal { source, .. }
            | SocketError::NoRoute { source, .. }
            | SocketError::PacketSocketDenied { source }
            | SocketError::Os { source, .. } => Self::of_io(&source),
            SocketError::NotEthernet { .. } => Self::OPNOTSUPP,
            _ => Self::INVAL,
        }
    }
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        tracing::debug!(%error, "a verb failed");
        match error {
            Error::Post(refused) => refused.into(),
            Error::Socket(error) => error.into(),
            Error::TooManyQueuePairs { .. }
            | Error::TooManyGroups { .. }
            | Error::TooManyAttached { .. } => Self::NOMEM,
            Error::DeviceFailed { .. } | Error::CompletionQueueOverrun { .. } => Self::IO,
            _ => Self::INVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_there_is_no_room_for_is_no_error_of_the_arguments() {
        let too_many = Error::TooManyQueuePairs { most: 1 };
        assert_eq!(Errno::from(too_many), Errno::NOMEM);
        assert_eq!(Errno::from(PostError::Full(1)), Errno::NOMEM);
        assert_eq!(Errno::from(PostError::NoReads), Errno::INVAL);
    }
}
