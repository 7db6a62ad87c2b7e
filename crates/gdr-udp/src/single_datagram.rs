//! Sending and receiving a single datagram per system call.
//!
//! quinn-udp prepares each call for 32 datagrams with control messages. With one datagram at a time, that preparation
//! took most of the user-space instructions of a round trip.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use quinn_udp::RecvMeta;
use rustix::net::SendFlags;

use crate::process_fd::ProcessFd;
use crate::socket::is_nothing_received;
use crate::socket_option;

/// Space for one control message that carries an int.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    value: libc::c_int,
    /// The kernel pads the message to the header's alignment.
    padding: libc::c_int,
}

// SAFETY: CMSG_SPACE only computes with its argument.
const _: () = assert!(size_of::<Control>() == unsafe { libc::CMSG_SPACE(4) } as usize);

/// Turns off all control messages that [`receive`] does not read. quinn-udp requests each datagram's timestamp,
/// destination and type of service, which the kernel would look up and copy.
pub(crate) fn omit_control_messages(socket: &ProcessFd) {
    let options = [
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS),
        (libc::IPPROTO_IP, libc::IP_PKTINFO),
        (libc::IPPROTO_IP, libc::IP_RECVTOS),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
    ];
    let off: libc::c_int = 0;
    for option in options {
        // The kernel refuses an option that the socket's family lacks, which is then off anyway.
        let _ = socket_option::set(socket.as_fd(), option, &off);
    }
}

/// Receives one datagram, or several that the kernel coalesced, without blocking; returns their number. The socket must
/// have gone through [`omit_control_messages`].
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    meta: &mut RecvMeta,
) -> io::Result<usize> {
    // SAFETY: these C structures consist of integers and pointers, for which all zeros are valid.
    let (mut name, mut control, mut message) = unsafe {
        (
            MaybeUninit::<libc::sockaddr_in6>::zeroed().assume_init(),
            MaybeUninit::<Control>::zeroed().assume_init(),
            MaybeUninit::<libc::msghdr>::zeroed().assume_init(),
        )
    };
    let mut room = libc::iovec {
        iov_base: room.as_mut_ptr().cast(),
        iov_len: room.len(),
    };
    message.msg_name = (&raw mut name).cast();
    message.msg_namelen = size_of_val(&name) as libc::socklen_t;
    message.msg_iov = &raw mut room;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of_val(&control) as _;
    // Calls the kernel directly: recvmsg(3) is a cancellation point, for which glibc does extra work around the system
    // call.
    // SAFETY: `message` points to a socket address, a buffer and a control buffer with their true lengths, and nothing
    // else accesses them during the call. The kernel writes only initialized bytes.
    let received = unsafe {
        libc::syscall(
            libc::SYS_recvmsg,
            socket.as_raw_fd(),
            &raw mut message,
            0 as libc::c_int,
        )
    };
    let Ok(len) = usize::try_from(received) else {
        let error = io::Error::last_os_error();
        return match is_nothing_received(error.kind()) {
            true => Ok(0),
            false => Err(error),
        };
    };
    // All zeros if the kernel added no control message.
    let kind = (control.header.cmsg_level, control.header.cmsg_type);
    let merged = kind == (libc::SOL_UDP, libc::UDP_GRO);
    meta.len = len;
    meta.stride = match usize::try_from(control.value) {
        Ok(stride) if merged => stride,
        _ => len,
    };
    meta.addr = source(&name)?;
    Ok(1)
}

/// Converts an address that the kernel wrote, of either family.
fn source(name: &libc::sockaddr_in6) -> io::Result<SocketAddr> {
    match name.sin6_family.into() {
        libc::AF_INET => {
            // SAFETY: `sockaddr_in` is no larger and no more strictly aligned than `sockaddr_in6`, and any bytes are
            // valid for it.
            let name = unsafe { &*(&raw const *name).cast::<libc::sockaddr_in>() };
            let address = Ipv4Addr::from(name.sin_addr.s_addr.to_ne_bytes());
            Ok(SocketAddr::from((address, u16::from_be(name.sin_port))))
        }
        libc::AF_INET6 => Ok(SocketAddr::V6(SocketAddrV6::new(
            Ipv6Addr::from(name.sin6_addr.s6_addr),
            u16::from_be(name.sin6_port),
            name.sin6_flowinfo,
            name.sin6_scope_id,
        ))),
        family => Err(io::Error::other(format!(
            "a datagram of address family {family}"
        ))),
    }
}

/// Sends one datagram without blocking.
pub(crate) fn send(socket: BorrowedFd<'_>, to: &SocketAddr, contents: &[u8]) -> io::Result<()> {
    let call = || rustix::net::sendto(socket, contents, SendFlags::empty(), to);
    rustix::io::retry_on_intr(call)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::socket::Socket;

    /// Returns a socket that accepts datagrams from its own address.
    fn socket(ip: &str) -> Socket {
        let ip: IpAddr = ip.parse().unwrap();
        let socket = Socket::bind(SocketAddr::new(ip, 0), 1 << 20).unwrap();
        socket.accept_from([ip].iter(), [].iter()).unwrap();
        socket
    }

    /// Spins until a datagram arrives.
    fn next(socket: &Socket, room: &mut [u8]) -> RecvMeta {
        let mut meta = RecvMeta::default();
        while receive(socket.as_fd(), room, &mut meta).unwrap() == 0 {
            std::thread::yield_now();
        }
        meta
    }

    #[test]
    fn datagrams_that_the_kernel_merged_have_the_length_of_each() {
        for ip in ["127.0.0.1", "::1"] {
            let socket = socket(ip);
            if socket.max_segments() == 1 {
                skip::skip("this kernel does not segment UDP");
                return;
            }
            let (bytes, mut room) = ([7; 250], [0; 1000]);
            socket.send(socket.local(), &bytes, Some(100)).unwrap();
            let first = next(&socket, &mut room);
            assert_eq!((first.len, first.stride), (250, 100), "{ip}");
            assert_eq!(first.addr, socket.local());
            assert_eq!(room[..250], bytes);
            socket.send(socket.local(), &bytes, None).unwrap();
            let second = next(&socket, &mut room);
            assert_eq!((second.len, second.stride), (250, 250), "{ip}");
        }
    }

    #[test]
    fn an_empty_datagram_has_its_source() {
        let socket = socket("127.0.0.1");
        socket.send(socket.local(), &[], None).unwrap();
        let meta = next(&socket, &mut [0; 10]);
        assert_eq!((meta.len, meta.addr), (0, socket.local()));
    }

    #[test]
    fn a_datagram_that_is_longer_than_the_room_is_cut() {
        let socket = socket("127.0.0.1");
        socket.send(socket.local(), &[1; 100], None).unwrap();
        let mut room = [0; 12];
        let meta = next(&socket, &mut room[..10]);
        assert_eq!((meta.len, meta.stride), (10, 10));
        assert_eq!(room[10..], [0; 2]);
    }
}
