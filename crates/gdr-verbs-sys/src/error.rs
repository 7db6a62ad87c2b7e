//! What can go wrong between this process and libibverbs.

use std::path::PathBuf;

use crate::errno::Errno;

/// Why there is no RDMA to be had through libibverbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The library is not on this machine, or not on the loader's path.
    #[error(
        "libibverbs cannot be loaded from {}: {reason}; install rdma-core's library (the package \
         libibverbs1 or libibverbs), or name its file in GDR_LIBIBVERBS",
        library.display()
    )]
    Library {
        /// The file that was asked for.
        library: PathBuf,
        /// The loader's own words.
        reason: String,
    },
    /// The library lacks a function that every release of rdma-core has.
    #[error(
        "{} has no function {symbol}: it is not libibverbs, or older than rdma-core; install \
         rdma-core's, or name its file in GDR_LIBIBVERBS",
        library.display()
    )]
    Symbol {
        /// The file that was loaded.
        library: PathBuf,
        /// The function's name.
        symbol: &'static str,
    },
    /// The library works and shows no device.
    #[error("libibverbs shows no RDMA device: {0}")]
    NoDevice(NoDevice),
}

/// Why libibverbs shows no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoDevice {
    /// The kernel has user-space verbs, and nothing that offers them.
    #[error(
        "its list is empty; load the network adapter's RDMA driver, or make a software device: \
         rdma link add rxe0 type rxe netdev eth0"
    )]
    Empty,
    /// The kernel has no user-space verbs at all (`ENOSYS`).
    #[error(
        "the kernel has no user-space verbs; load them (modprobe ib_uverbs), or in a container \
         pass /dev/infiniband and /sys/class/infiniband_verbs in"
    )]
    NoUverbs,
    /// The list cannot be made.
    #[error("ibv_get_device_list fails: {0}")]
    List(Errno),
}

impl NoDevice {
    /// What `ibv_get_device_list` meant by failing with this number.
    pub(crate) fn from_errno(errno: Errno) -> Self {
        match errno {
            Errno::ENOSYS => Self::NoUverbs,
            other => Self::List(other),
        }
    }
}

/// Why a verb did nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// The loaded libibverbs is from before this function.
    #[error("{verb}: the loaded libibverbs does not have it; install a newer rdma-core")]
    NotInLibrary {
        /// The function's name in C.
        verb: &'static str,
    },
    /// The device's provider (its user-space driver) does not have this function, or not for an
    /// object made with these flags.
    #[error(
        "{verb}: the device's provider does not offer it, or the object was made without the flag \
         that enables it; use the plain verb, or another device"
    )]
    NotInProvider {
        /// The function's name in C.
        verb: &'static str,
    },
    /// The call was made and failed.
    #[error("{verb} fails: {errno}")]
    Failed {
        /// The function's name in C.
        verb: &'static str,
        /// What it left.
        errno: Errno,
    },
}

impl VerbError {
    /// The function's name in C.
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::NotInLibrary { verb }
            | Self::NotInProvider { verb }
            | Self::Failed { verb, .. } => verb,
        }
    }

    /// The error as a number; what was never called counts as `EOPNOTSUPP`, as in C.
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
    fn a_verb_that_is_not_there_counts_as_not_supported() {
        let error = VerbError::NotInProvider { verb: "ibv_x" };
        assert_eq!((error.verb(), error.errno()), ("ibv_x", Errno::EOPNOTSUPP));
    }
}
