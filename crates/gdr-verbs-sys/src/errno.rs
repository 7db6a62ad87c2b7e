//! Error numbers and their names.

use std::fmt;
use std::io;

/// The `errno` of a verb. Numbers without a name here are valid too.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Declares the error numbers of verbs and drivers.
macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        impl Errno {
            $(
                $(#[$doc])*
                pub const $name: Self = Self($value);
            )*

            /// Returns the name of the number, if this crate knows it.
            pub const fn name(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    /// The process lacks a privilege.
    EPERM = libc::EPERM;
    /// Not found; from polling: the queue is empty.
    ENOENT = libc::ENOENT;
    /// Interrupted by a signal.
    EINTR = libc::EINTR;
    /// The device failed.
    EIO = libc::EIO;
    /// The file descriptor is invalid. From the registration of a dma-buf with descriptor -1: library,
    /// kernel and driver support dma-buf.
    EBADF = libc::EBADF;
    /// A non-blocking call would have to wait.
    EAGAIN = libc::EAGAIN;
    /// Too little memory, or the limit of locked memory (`ulimit -l`).
    ENOMEM = libc::ENOMEM;
    /// The device file cannot be opened for lack of permission.
    EACCES = libc::EACCES;
    /// The memory cannot be pinned; for GPU memory: no peer-memory client supports it.
    EFAULT = libc::EFAULT;
    /// Objects that depend on this one exist.
    EBUSY = libc::EBUSY;
    /// The device was removed.
    ENODEV = libc::ENODEV;
    /// A value, a combination or an alignment is invalid.
    EINVAL = libc::EINVAL;
    /// The address of the peer does not resolve.
    EHOSTUNREACH = libc::EHOSTUNREACH;
    /// There is no route to the peer.
    ENETUNREACH = libc::ENETUNREACH;
    /// Out of range.
    ERANGE = libc::ERANGE;
    /// No space is left.
    ENOSPC = libc::ENOSPC;
    /// The kernel lacks the call; from `ibv_get_device_list`: it has no user-space verbs.
    ENOSYS = libc::ENOSYS;
    /// The value is too large for its type.
    EOVERFLOW = libc::EOVERFLOW;
    /// Kernel, driver or library is too old for the verb.
    EPROTONOSUPPORT = libc::EPROTONOSUPPORT;
    /// Not supported by the device or its driver.
    EOPNOTSUPP = libc::EOPNOTSUPP;
    /// The device did not respond in time.
    ETIMEDOUT = libc::ETIMEDOUT;
    /// Not supported: the internal `ENOTSUPP` of the kernel, which some drivers return.
    ENOTSUPP = 524;
}

impl Errno {
    /// Returns the `errno` of this thread.
    pub(crate) fn last() -> Self {
        Self(io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{name} ({})", self.0),
            None => write!(f, "errno {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(errno.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_displayed_with_its_name_if_it_has_one() {
        assert_eq!(Errno::EFAULT.to_string(), "EFAULT (14)");
        assert_eq!(Errno(524).to_string(), "ENOTSUPP (524)");
        assert_eq!(Errno(9999).to_string(), "errno 9999");
    }
}
