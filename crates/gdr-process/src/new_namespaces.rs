//! Namespaces that a thread makes and enters: its own network, or a whole host.

use std::fs;
use std::io;

use rustix::process::{getegid, geteuid};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// New namespaces for the calling thread and the processes that it starts (unshare(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewNamespaces {
    /// A user namespace, in which the thread has all rights. The thread's user and group keep their
    /// numbers; all others are unknown there. It needs no privilege, but the process must have only
    /// one thread.
    User,
    /// A mount namespace.
    Mounts,
    /// A network namespace.
    Network,
    /// Everything that makes up a host: network, host name, System V objects, mounts, and process
    /// ids for the processes that the thread starts. The thread can no longer start threads.
    Host,
}

impl NewNamespaces {
    /// Makes and enters the namespaces.
    ///
    /// # Errors
    ///
    /// The errors of unshare(2): `EPERM` if the kernel or a container does not permit it. Writing
    /// the maps of a user namespace may fail with `EPERM` or `EACCES`.
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
        // SAFETY: none of the flags is CLONE_FILES, so the thread shares its descriptors as before.
        unsafe { unshare_unsafe(flags) }?;
        if self == Self::User {
            // Without this, an unprivileged process may not map its group (user_namespaces(7)).
            fs::write("/proc/thread-self/setgroups", "deny")?;
            fs::write("/proc/thread-self/uid_map", format!("{user} {user} 1"))?;
            fs::write("/proc/thread-self/gid_map", format!("{group} {group} 1"))?;
        }
        Ok(())
    }
}
