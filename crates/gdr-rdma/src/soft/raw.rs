//! The datagrams over IPv4 that carry no UDP checksum, with their IP headers.
//!
//! RoCE leaves UDP's checksum at 0, as its own CRC covers more; Linux's rxe and network cards do.
//! So nothing but the ICRC protects such a datagram, and judging it to all of its 32 bits takes
//! the IP header, which a UDP socket does not tell and a raw socket does. That takes CAP_NET_RAW.
//!
//! A raw socket has its price: of each packet to its address the kernel makes it a copy of the
//! bookkeeping before it asks the filter. So it is dormant, bound to where nothing arrives, but
//! while there is a queue pair whose peer has not sent a datagram with a checksum yet, as peers
//! such as this provider do. While it is roused each datagram arrives at one of the two sockets:
//! the kernel drops at the raw one what has a checksum or is for another port, and at the UDP one
//! what has none. While it is dormant the UDP socket's filter empties what has none. That is lost,
//! as packets may be, and rouses the raw socket for good: a peer sets checksums at times only.
//!
//! A datagram with a checksum never has 0 there: UDP writes a sum of 0 as 0xffff, and where the
//! sum is left to a network card the field holds that of the pseudo header, which is not 0. And
//! Linux merges or segments none without (`udp_gro_receive_segment`, `udp_send_skb`), so each is
//! one packet here.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_roce::wire::Ipv4Datagram;
use libc::{
    BPF_ABS, BPF_B, BPF_H, BPF_IND, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_LDX, BPF_MSH, BPF_RET,
    sock_filter, sock_fprog,
};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};

use super::socket::has_not_come;

/// How many bytes a filter keeps: none, which drops the packet, the UDP header alone, or all.
const DROP: u32 = 0;
const EMPTY: u32 = 8;
const KEEP: u32 = u32::MAX;

/// Where a dormant socket is bound: the base of the multicast addresses, which no group has. Unlike
/// a first `bind`, a second one of a raw socket is no error, and needs no privilege.
const NOWHERE: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

/// A raw socket beside a UDP socket.
pub(super) struct RawSocket {
    socket: OwnedFd,
    local: SocketAddrV4,
    roused: AtomicBool,
    /// It is never lulled again.
    for_good: AtomicBool,
}

impl RawSocket {
    /// Opens it, dormant, for what arrives at `udp`, which is bound to `local` and from now on gets
    /// datagrams without a checksum without their bytes.
    ///
    /// # Errors
    ///
    /// Mostly EPERM, without CAP_NET_RAW. `udp` stays as it was.
    pub(super) fn open(
        udp: &UdpSocket,
        local: SocketAddrV4,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(ipproto::UDP),
        )?;
        rustix::net::bind(&socket, &SocketAddrV4::new(NOWHERE, 0))?;
        attach(socket.as_fd(), &without_checksum(local.port()))?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, receive_buffer)?;
        }
        attach(udp.as_fd(), &with_checksum_or(EMPTY))?;
        Ok(Self {
            socket,
            local,
            roused: AtomicBool::new(false),
            for_good: AtomicBool::new(false),
        })
    }

    /// Takes over datagrams without a checksum from `udp`.
    pub(super) fn rouse(&self, udp: &UdpSocket) {
        if self.roused.load(Ordering::Relaxed) {
            return;
        }
        // In this order: one that comes meanwhile arrives twice, not never.
        let roused = self
            .bind(*self.local.ip())
            .and_then(|()| attach(udp.as_fd(), &with_checksum_or(DROP)));
        match roused {
            Ok(()) => self.roused.store(true, Ordering::Relaxed),
            // The address is gone, or there is no memory: another time.
            Err(error) => tracing::warn!(%error, local = %self.local, "a raw socket stays dormant"),
        }
    }

    /// As [`RawSocket::rouse`], and there is no way back.
    pub(super) fn rouse_for_good(&self, udp: &UdpSocket) {
        self.for_good.store(true, Ordering::Relaxed);
        self.rouse(udp);
    }

    /// Makes it dormant again.
    pub(super) fn lull(&self, udp: &UdpSocket) {
        if !self.roused.load(Ordering::Relaxed) || self.for_good.load(Ordering::Relaxed) {
            return;
        }
        let lulled =
            attach(udp.as_fd(), &with_checksum_or(EMPTY)).and_then(|()| self.bind(NOWHERE));
        match lulled {
            Ok(()) => {
                self.roused.store(false, Ordering::Relaxed);
                // What is left is for nobody, and would wake the engine's thread for ever. Nothing
                // is added to it.
                while matches!(self.receive(&mut [0]), Ok(Some(_))) {}
            }
            Err(error) => tracing::debug!(%error, local = %self.local, "a raw socket stays awake"),
        }
    }

    /// Whether anything comes.
    pub(super) fn is_roused(&self) -> bool {
        self.roused.load(Ordering::Relaxed)
    }

    fn bind(&self, to: Ipv4Addr) -> io::Result<()> {
        Ok(rustix::net::bind(&self.socket, &SocketAddrV4::new(to, 0))?)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes one packet, without waiting; its length, which is cut at that of `room`.
    pub(super) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            Err(errno) if has_not_come(errno.kind()) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a packet is one that only this socket gets. What came before its filter was there
    /// may be anything.
    pub(super) fn is_for_us(&self, packet: &Ipv4Datagram<'_>) -> bool {
        packet.dst == *self.local.ip()
            && packet.path.dst_port == self.local.port()
            && packet.checksum == 0
    }
}

/// Keeps, of what begins with an IPv4 header, UDP datagrams to `port` without a checksum. Reading
/// beyond a packet's end drops it.
fn without_checksum(port: u16) -> [sock_filter; 7] {
    [
        // X is the length of the IP header.
        statement(BPF_LDX | BPF_B | BPF_MSH, 0),
        statement(BPF_LD | BPF_H | BPF_IND, 2),
        if_equal(port.into(), 0, 3),
        statement(BPF_LD | BPF_H | BPF_IND, 6),
        if_equal(0, 0, 1),
        statement(BPF_RET | BPF_K, KEEP),
        statement(BPF_RET | BPF_K, DROP),
    ]
}

/// Keeps, of what begins with a UDP header, what has a checksum, and `rest` bytes of other things.
fn with_checksum_or(rest: u32) -> [sock_filter; 4] {
    [
        statement(BPF_LD | BPF_H | BPF_ABS, 6),
        if_equal(0, 0, 1),
        statement(BPF_RET | BPF_K, rest),
        statement(BPF_RET | BPF_K, KEEP),
    ]
}

fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

/// Skips `yes` instructions where what was loaded is `k`, else `no`.
fn if_equal(k: u32, yes: u8, no: u8) -> sock_filter {
    sock_filter {
        jt: yes,
        jf: no,
        ..statement(BPF_JMP | BPF_JEQ | BPF_K, k)
    }
}

fn attach(socket: BorrowedFd<'_>, filter: &[sock_filter]) -> io::Result<()> {
    let program = sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    // SAFETY: the option takes a sock_fprog, which lives for the call, as does the filter that it
    // points to, of the length it says; the kernel copies both and writes to neither.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of_val(&program) as libc::socklen_t,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
