//! The owner of one end of a TCP connection, from sock_diag(7) or else from `/proc/net/tcp`.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, recv, send, socket_with,
};

/// Returns the user id of the socket at `end` of the connection with `other`, if a process owns that socket.
pub(super) fn find(end: SocketAddr, other: SocketAddr) -> Option<u32> {
    let tuple = Tuple::new(end, other);
    match ask_kernel(&tuple) {
        Ok(owner) => owner,
        Err(error) => {
            tracing::debug!(%error, "sock_diag(7) does not answer");
            ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"]
                .iter()
                .filter_map(|table| File::open(table).ok())
                .find_map(|table| in_table(BufReader::new(table), &tuple))
        }
    }
}

/// The addresses of both ends, from the first end's view. An IPv6 socket may have an IPv4 connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tuple {
    end: (IpAddr, u16),
    other: (IpAddr, u16),
}

impl Tuple {
    fn new(end: SocketAddr, other: SocketAddr) -> Self {
        let plain = |address: SocketAddr| (address.ip().to_canonical(), address.port());
        Self {
            end: plain(end),
            other: plain(other),
        }
    }
}

// linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h.
const HEADER: usize = 16;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const ERROR: u16 = 2;
/// Lengths of `struct inet_diag_req_v2` and `struct inet_diag_msg`.
const ASKED: usize = 56;
const ANSWERED: usize = 72;

/// Queries the kernel for one socket by its addresses. Needs no privilege.
fn ask_kernel(tuple: &Tuple) -> io::Result<Option<u32>> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        flags,
        Some(SOCK_DIAG),
    )?;
    // From now on only the kernel can send to the socket.
    connect(&socket, &SocketAddrNetlink::new(0, 0))?;
    send(&socket, &request(tuple), SendFlags::empty())?;
    let mut bytes = [0; 1024];
    // The kernel replies while the request is being sent.
    let (len, _) = recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT)?;
    answer(&bytes[..len], tuple)
}

/// Encodes the request: `struct nlmsghdr`, `struct inet_diag_req_v2`.
fn request(tuple: &Tuple) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + ASKED);
    bytes.extend(((HEADER + ASKED) as u32).to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(REQUEST.to_ne_bytes());
    // Sequence number and port id; the kernel sets them.
    bytes.extend([0; 8]);
    let family = match tuple.end.0 {
        IpAddr::V4(_) => libc::AF_INET,
        IpAddr::V6(_) => libc::AF_INET6,
    };
    // No extensions.
    bytes.extend([family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // Any state; the kernel checks it for dumps only.
    bytes.extend(u32::MAX.to_ne_bytes());
    for (_, port) in [tuple.end, tuple.other] {
        bytes.extend(port.to_be_bytes());
    }
    for (ip, _) in [tuple.end, tuple.other] {
        match ip {
            IpAddr::V4(ip) => {
                bytes.extend(ip.octets());
                bytes.extend([0; 12]);
            }
            IpAddr::V6(ip) => bytes.extend(ip.octets()),
        }
    }
    // Any interface, and no cookie.
    bytes.extend(0_u32.to_ne_bytes());
    bytes.extend([0xff; 8]);
    bytes
}

/// Parses the reply: the owner, or `None` if no process has such a socket. The kernel may also reply with a listening
/// socket that such a connection could reach.
fn answer(bytes: &[u8], tuple: &Tuple) -> io::Result<Option<u32>> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let kind = u16::from_ne_bytes(
        *bytes[4.min(bytes.len())..]
            .first_chunk()
            .ok_or_else(short)?,
    );
    let body = bytes.get(HEADER..).ok_or_else(short)?;
    if kind == ERROR {
        let errno = i32::from_ne_bytes(*body.first_chunk().ok_or_else(short)?);
        return match -errno {
            libc::ENOENT => Ok(None),
            errno => Err(io::Error::from_raw_os_error(errno)),
        };
    }
    if kind != SOCK_DIAG_BY_FAMILY {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let body: &[u8; ANSWERED] = body.first_chunk().ok_or_else(short)?;
    let port = |at: usize| u16::from_be_bytes([body[at], body[at + 1]]);
    let word = |at: usize| u32::from_ne_bytes([body[at], body[at + 1], body[at + 2], body[at + 3]]);
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&body[at..at + 16]);
        match i32::from(body[0]) {
            libc::AF_INET => Ipv4Addr::from([octets[0], octets[1], octets[2], octets[3]]).into(),
            _ => IpAddr::from(octets).to_canonical(),
        }
    };
    let found = Tuple {
        end: (address(8), port(4)),
        other: (address(24), port(6)),
    };
    let (user, inode) = (word(64), word(68));
    Ok(owner(user, inode.into()).filter(|_| found == *tuple))
}

/// Returns the user of a socket. A socket without an inode is not yet accepted or already closed: it belongs to no
/// process, and the kernel may report root as its user.
fn owner(user: u32, inode: u64) -> Option<u32> {
    (inode != 0).then_some(user)
}

/// Searches a table in the format of `/proc/net/tcp`; see proc_pid_net(5).
fn in_table(table: impl BufRead, tuple: &Tuple) -> Option<u32> {
    table.lines().map_while(Result::ok).find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (end, other) = (fields.next()?, fields.next()?);
        let found = Tuple {
            end: address_in_table(end)?,
            other: address_in_table(other)?,
        };
        if found != *tuple {
            return None;
        }
        // State, queues, timer, retransmissions; user, timeout, inode.
        let user = fields.nth(4)?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        owner(user, inode)
    })
}

/// Parses an address: native-endian words as eight hexadecimal digits each, and a port.
fn address_in_table(text: &str) -> Option<(IpAddr, u16)> {
    let (words, port) = text.split_once(':')?;
    let mut octets = Vec::with_capacity(16);
    for at in (0..words.len()).step_by(8) {
        let word = u32::from_str_radix(words.get(at..at + 8)?, 16).ok()?;
        octets.extend(word.to_ne_bytes());
    }
    let ip = match octets.len() {
        4 => IpAddr::from(*octets.first_chunk::<4>()?),
        16 => IpAddr::from(Ipv6Addr::from(*octets.first_chunk::<16>()?)).to_canonical(),
        _ => return None,
    };
    Some((ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use std::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns the owner of the socket at the other end of `stream`, as found by each method.
    fn owners(stream: &TcpStream) -> [Option<u32>; 2] {
        let (end, other) = (stream.peer_addr().unwrap(), stream.local_addr().unwrap());
        let tuple = Tuple::new(end, other);
        let tables = ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"];
        let listed = tables
            .iter()
            .filter_map(|table| File::open(table).ok())
            .find_map(|table| in_table(BufReader::new(table), &tuple));
        let asked = match ask_kernel(&tuple) {
            Ok(owner) => owner,
            Err(error) => {
                skip::skip(format_args!("sock_diag(7) does not answer here: {error}"));
                listed
            }
        };
        assert_eq!(find(end, other), asked);
        [asked, listed]
    }

    #[test]
    fn each_end_of_a_connection_finds_the_owner_of_the_other() {
        let own = [Some(rustix::process::geteuid().as_raw()); 2];
        // An IPv6 socket also accepts an IPv4 connection.
        for (bind, to) in [
            ("127.0.0.1", "127.0.0.1"),
            ("::1", "::1"),
            ("::", "127.0.0.1"),
        ] {
            let to: IpAddr = to.parse().unwrap();
            let listener = match TcpListener::bind((bind, 0)) {
                Ok(listener) => listener,
                Err(error) => {
                    skip::skip(format_args!("no listener at {bind}: {error}"));
                    continue;
                }
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((to, port)).unwrap();
            // Before it is accepted, it belongs to no process, not even to root's.
            assert_eq!(owners(&client), [None; 2], "{bind}");
            let (server, _) = listener.accept().unwrap();
            assert_eq!(owners(&client), own, "{bind}");
            assert_eq!(owners(&server), own, "{bind}");
            // A connection whose other end is closed has no owner.
            let ends = (client.peer_addr().unwrap(), client.local_addr().unwrap());
            drop(server);
            assert_eq!(find(ends.0, ends.1), None, "{bind}");
        }
    }

    #[test]
    fn a_listening_socket_is_not_the_end_of_a_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        assert_eq!(find(here, SocketAddr::from((Ipv4Addr::LOCALHOST, 1))), None);
    }

    #[test]
    fn an_answer_of_another_kind_or_length_has_no_owner() {
        let ends = ["127.0.0.1:1000", "127.0.0.1:2000"].map(|end| end.parse().unwrap());
        let tuple = Tuple::new(ends[0], ends[1]);
        for len in 0..HEADER + ANSWERED {
            assert!(answer(&vec![0; len], &tuple).is_err(), "{len}");
            let mut bytes = vec![0; len];
            if let Some(kind) = bytes.get_mut(4..6) {
                kind.copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
            }
            assert!(answer(&bytes, &tuple).is_err(), "{len}");
        }
    }
}
