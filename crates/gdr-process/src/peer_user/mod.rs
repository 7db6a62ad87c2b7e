//! The user of the process at the other end of a connection within this host.
//!
//! This decides who may share a port and who needs no key. All such decisions are made here rather than by comparing
//! user ids elsewhere.

mod tcp_owner;

use std::fs;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The id that the kernel reports for users not mapped in a user namespace, unless `/proc/sys/kernel/overflowuid`
/// contains another one.
const OVERFLOW: u32 = 65534;

/// The user of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerUser {
    /// This process's effective user.
    Own,
    /// Root, if that is not this process's user. It can do everything that this process's user can.
    Root,
    /// Another user.
    Other(u32),
    /// Unknown: the peer has no process, or its id stands for every user not mapped in this process's user namespace.
    Unknown,
}

impl PeerUser {
    /// Returns the user who called connect(2) or listen(2) at the other end of a Unix stream socket, and the process
    /// id; 0 if this process cannot see it.
    pub fn of_unix(socket: BorrowedFd<'_>) -> (Self, i32) {
        let mut peer = libc::ucred {
            pid: 0,
            uid: 0,
            gid: 0,
        };
        let mut len = size_of_val(&peer) as libc::socklen_t;
        // rustix's type cannot represent a process id of 0.
        // SAFETY: the option writes at most `len` bytes of the structure; both outlive the call.
        let result = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERCRED,
                (&raw mut peer).cast(),
                &raw mut len,
            )
        };
        match result {
            0 => (Self::of_number(peer.uid), peer.pid),
            _ => (Self::Unknown, 0),
        }
    }

    /// Returns the user who called connect(2) or accept(2) at the other end of an established TCP connection within
    /// this host. A connection that has not been accepted yet has no user.
    pub fn of_tcp(local: SocketAddr, peer: SocketAddr) -> Self {
        Self::number_of_tcp(local, peer).map_or(Self::Unknown, Self::of_number)
    }

    /// Returns the user id that the kernel reports for that user. Several users may have the same id.
    pub fn number_of_tcp(local: SocketAddr, peer: SocketAddr) -> Option<u32> {
        tcp_owner::find(peer, local)
    }

    fn of_number(number: u32) -> Self {
        let own = rustix::process::geteuid().as_raw();
        Self::classify(number, own, &Namespace::current())
    }

    fn classify(number: u32, own: u32, namespace: &Namespace) -> Self {
        match number {
            // Then equal ids do not imply equal users.
            number if namespace.stands_for_others(number) => Self::Unknown,
            number if number == own => Self::Own,
            0 => Self::Root,
            number => Self::Other(number),
        }
    }
}

/// How this process's user namespace maps ids.
#[derive(Debug)]
struct Namespace {
    overflow: u32,
    /// Whether each id identifies one user.
    maps_all: bool,
}

impl Namespace {
    fn current() -> Self {
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
        let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        Self {
            overflow: overflow.unwrap_or(OVERFLOW),
            maps_all: is_identity(&map),
        }
    }

    /// Returns whether the id may stand for users with a different id.
    fn stands_for_others(&self, number: u32) -> bool {
        number == self.overflow && !self.maps_all
    }
}

/// Returns whether a `uid_map` maps every user to the same id, as in the initial user namespace.
fn is_identity(map: &str) -> bool {
    let numbers = map.split_whitespace().map(str::parse);
    numbers.eq([Ok(0), Ok(0), Ok(u32::MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Namespace = Namespace {
        overflow: OVERFLOW,
        maps_all: true,
    };
    const OTHER: Namespace = Namespace {
        overflow: OVERFLOW,
        maps_all: false,
    };

    #[test]
    fn an_overflow_number_equals_no_user_unless_every_user_is_mapped() {
        use PeerUser::{Other, Own, Root, Unknown};
        for (number, own, namespace, user) in [
            (4001, 4001, &FIRST, Own),
            (4001, 4001, &OTHER, Own),
            (4002, 4001, &FIRST, Other(4002)),
            (0, 4001, &OTHER, Root),
            (0, 0, &OTHER, Own),
            (4001, 0, &OTHER, Other(4001)),
            (OVERFLOW, OVERFLOW, &FIRST, Own),
            (OVERFLOW, 4001, &FIRST, Other(OVERFLOW)),
            (OVERFLOW, OVERFLOW, &OTHER, Unknown),
            (OVERFLOW, 4001, &OTHER, Unknown),
        ] {
            assert_eq!(PeerUser::classify(number, own, namespace), user);
        }
    }

    #[test]
    fn only_the_map_of_the_first_namespace_maps_every_user_to_itself() {
        assert!(is_identity("         0          0 4294967295\n"));
        for map in [
            "",
            "0 4001 1\n",
            "65534 4001 1\n",
            "0 100000 65536\n",
            "0 0 65536\n",
            "0 0 4294967295\n1 1 1\n",
            "0 0 4294967296\n",
        ] {
            assert!(!is_identity(map), "{map}");
        }
    }
}
