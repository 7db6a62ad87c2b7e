//! Sending and receiving one datagram by one system call.
//!
//! quinn-udp prepares each call for 32 datagrams and their control messages. While one arrives at a time,
//! that preparation was most of the instructions of a round trip outside the kernel.

use std::io;
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use quinn_udp::RecvMeta;
use rustix::net::SendFlags;

use crate::process_fd::ProcessFd;
use crate::socket::is_nothing_received;
use crate::socket_option;

/// Room for one control message that holds an int.
#[derive(Clone, Copy)]
#[repr(C)]
struct Control {
    header: libc::cmsghdr,
    value: libc::c_int,
    /// The kernel pads to the alignment of the header.
    padding: libc::c_int,
}

// SAFETY: the macro computes with its argument alone.
const _: () = assert!(size_of::<Control>() == unsafe { libc::CMSG_SPACE(4) } as usize);

/// Leaves the control message of [`receive`] as the only one that a socket adds: quinn-udp asks for time,
/// destination and type of service of each datagram, which the kernel looks up and copies.
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
        // One that the socket does not have is refused, and is off.
        let _ = socket_option::set(socket.as_fd(), option, &off);
    }
}

/// Receives one datagram, or several that the kernel merged, without waiting, from a socket for which
/// [`omit_control_messages`] was called; returns how many.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    room: &mut [u8],
    meta: &mut RecvMeta,
) -> io::Result<usize> {
    // SAFETY: zeros are valid for these structures of the C library.
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
    // recvmsg(3) is a point at which threads can be cancelled, for which glibc works before and after the
    // system call.
    // SAFETY: the message names a socket address, a buffer and a control buffer with their lengths, none of
    // which is used otherwise until the call ends. The kernel writes initialized bytes.
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
    // Zeros where the kernel added none.
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

/// The address that the kernel wrote, of either family.
fn source(name: &libc::sockaddr_in6) -> io::Result<SocketAddr> {
    match name.sin6_family.into() {
        libc::AF_INET => {
            // SAFETY: the address of the other family is shorter, not stricter aligned, and any bytes are
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

/// Sends one datagram.
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

    /// A socket that receives what it sends.
    fn socket(ip: &str) -> Socket {
        let ip: IpAddr = ip.parse().unwrap();
        let socket = Socket::bind(SocketAddr::new(ip, 0), 1 << 20).unwrap();
        socket.accept_from([ip].iter(), [].iter()).unwrap();
        socket
    }

    /// Receives what comes next.
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
