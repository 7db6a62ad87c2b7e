//! Error numbers, by name.

use std::fmt;
use std::io;

/// An `errno` as a verb left it. Numbers that this library does not know are data like any other.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

/// Declares the numbers that verbs and drivers are known to give.
macro_rules! errnos {
    ($($(#[$doc:meta])* $name:ident = $value:expr;)*) => {
        impl Errno {
            $(
                $(#[$doc])*
                pub const $name: Self = Self($value);
            )*

            /// The number's name, where this library knows it.
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
    /// A privilege is missing.
    EPERM = libc::EPERM;
    /// No such thing; from polling: no completion is there.
    ENOENT = libc::ENOENT;
    /// A signal came first.
    EINTR = libc::EINTR;
    /// The device failed.
    EIO = libc::EIO;
    /// No file is behind the descriptor. From registering a dma-buf with descriptor -1: the whole
    /// path is supported.
    EBADF = libc::EBADF;
    /// Nothing is there now, and the descriptor does not wait.
    EAGAIN = libc::EAGAIN;
    /// Too little memory, or the limit of locked memory (`ulimit -l`).
    ENOMEM = libc::ENOMEM;
    /// The device file may not be opened.
    EACCES = libc::EACCES;
    /// The memory cannot be pinned as the CPU's; for GPU memory: no peer-memory client claims it.
    EFAULT = libc::EFAULT;
    /// Still in use: something that was made from it was not destroyed.
    EBUSY = libc::EBUSY;
    /// The device is gone.
    ENODEV = libc::ENODEV;
    /// A value, a combination or an alignment that is not allowed.
    EINVAL = libc::EINVAL;
    /// The other end's address does not resolve.
    EHOSTUNREACH = libc::EHOSTUNREACH;
    /// No route leads to the other end.
    ENETUNREACH = libc::ENETUNREACH;
    /// Out of range.
    ERANGE = libc::ERANGE;
    /// No room is left.
    ENOSPC = libc::ENOSPC;
    /// The kernel lacks the call; from the list of devices: it has no user-space verbs.
    ENOSYS = libc::ENOSYS;
    /// Larger than the place for it.
    EOVERFLOW = libc::EOVERFLOW;
    /// Kernel, driver or library are too old for the verb.
    EPROTONOSUPPORT = libc::EPROTONOSUPPORT;
    /// Not offered by this device or its driver.
    EOPNOTSUPP = libc::EOPNOTSUPP;
    /// The device did not answer in time.
    ETIMEDOUT = libc::ETIMEDOUT;
    /// The kernel's own `ENOTSUPP`, which leaks out of some drivers: not supported.
    ENOTSUPP = 524;
}

impl Errno {
    /// What the last C call of this thread left.
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
    fn a_number_shows_its_name_and_an_unknown_one_itself() {
        assert_eq!(Errno::EFAULT.to_string(), "EFAULT (14)");
        assert_eq!(Errno(524).to_string(), "ENOTSUPP (524)");
        assert_eq!(Errno(9999).to_string(), "errno 9999");
    }
}
