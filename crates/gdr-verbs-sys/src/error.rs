//! Errors of loading libibverbs and of its functions.

use std::path::PathBuf;

use crate::errno::Errno;

/// Why libibverbs cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library is not installed, or not in the search path of the loader.
    #[error(
        "libibverbs cannot be loaded from {}: {reason}; install it (package libibverbs1 or \
         libibverbs), or set GDR_LIBIBVERBS to its path",
        library.display()
    )]
    #[allow(missing_docs, reason = "the names say it")]
    Library { library: PathBuf, reason: String },
    /// The library lacks a function that every release of rdma-core has.
    #[error(
        "{} has no function {symbol}: it is not libibverbs, or older than rdma-core; install \
         rdma-core, or set GDR_LIBIBVERBS to the path of its library",
        library.display()
    )]
    #[allow(missing_docs, reason = "the names say it")]
    Symbol {
        library: PathBuf,
        symbol: &'static str,
    },
    /// The library is loaded, but has no device.
    #[error("libibverbs finds no RDMA device: {0}")]
    NoDevice(NoDevice),
}

/// Why libibverbs has no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// The kernel has user-space verbs, but no device with them.
    #[error(
        "its list is empty; load the RDMA driver of the network adapter, or create a software device: \
         rdma link add rxe0 type rxe netdev eth0"
    )]
    Empty,
    /// The kernel has no user-space verbs (`ENOSYS`).
    #[error(
        "the kernel has no user-space verbs; load them (modprobe ib_uverbs), or pass \
         /dev/infiniband and /sys/class/infiniband_verbs to the container"
    )]
    NoUverbs,
    /// `ibv_get_device_list` fails for another reason.
    #[error("ibv_get_device_list fails: {0}")]
    List(Errno),
}

impl NoDevice {
    /// Returns the meaning of an error of `ibv_get_device_list`.
    pub(crate) fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::NoUverbs,
            other => Self::List(other),
        }
    }
}

/// The error of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// The loaded libibverbs is too old for this function.
    #[error("{verb}: the loaded libibverbs does not have it; install a newer rdma-core")]
    #[allow(missing_docs, reason = "the names say it")]
    NotInLibrary { verb: &'static str },
    /// The provider of the device (its user-space driver) lacks this function, at least for an object with these flags.
    #[error(
        "{verb}: the provider of the device does not support it, or the object was created without \
         the flag for it; use the basic verb, or another device"
    )]
    #[allow(missing_docs, reason = "the names say it")]
    NotInProvider { verb: &'static str },
    /// The call failed.
    #[error("{verb} fails: {errno}")]
    #[allow(missing_docs, reason = "the names say it")]
    Failed { verb: &'static str, errno: Errno },
}

impl VerbError {
    /// Returns the name of the function in C.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::NotInLibrary { verb }
            | Self::NotInProvider { verb }
            | Self::Failed { verb, .. } => verb,
        }
    }

    /// Returns the error number. A function that was not called gives `EOPNOTSUPP`, as in C.
    pub const fn errno(&self) -> Errno {
        match self {
            Self::NotInLibrary { .. } | Self::NotInProvider { .. } => Errno::EOPNOTSUPP,
            Self::Failed { errno, .. } => *errno,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_verb_gives_eopnotsupp() {
        let error = VerbError::NotInProvider { verb: "ibv_x" };
        assert_eq!((error.verb(), error.errno()), ("ibv_x", Errno::EOPNOTSUPP));
    }
}
