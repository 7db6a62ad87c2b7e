//! Creating and entering namespaces: a private network, or a whole virtual host.

use std::fs;
use std::io;

use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// New namespaces for the calling thread and the processes that it starts (unshare(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNamespaces {
    /// A user namespace, in which the thread has all capabilities. The thread's user and group keep their numbers, and
    /// all others are unmapped. Needs no privilege, but the process must be single-threaded.
    User,
    /// A mount namespace.
    Mounts,
    /// A network namespace.
    Network,
    /// Everything that makes up a host: network, host name, System V objects, mounts, and PIDs for child processes. The
    /// thread can no longer start threads.
    Host,
}

impl NewNamespaces {
    /// Creates and enters the namespaces.
    ///
    /// # Errors
    ///
    /// Those of unshare(2): `EPERM` if the kernel or a container forbids it. Writing a user namespace's maps may fail
    /// with `EPERM` or `EACCES`.
    pub fn enter(self) -> io::Result<()> {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let flags = match self {
            Self::User => UnshareFlags::NEWUSER,
            Self::Mounts => UnshareFlags::NEWNS,
            Self::Network => UnshareFlags::NEWNET,
            Self::Host => {
                UnshareFlags::NEWNET
                    | UnshareFlags::NEWUTS
                    | UnshareFlags::NEWIPC
                    | UnshareFlags::NEWNS
                    | UnshareFlags::NEWPID
            }
        };
        // SAFETY: no flag is CLONE_FILES, so the thread keeps sharing its descriptors.
        unsafe { unshare_unsafe(flags) }?;
        if self == Self::User {
            // Required for an unprivileged process to map its group (user_namespaces(7)).
            fs::write("/proc/thread-self/setgroups", "deny")?;
            fs::write("/proc/thread-self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/thread-self/gid_map", format!("{group} {group} 1"))?;
        }
        Ok(())
    }
}
