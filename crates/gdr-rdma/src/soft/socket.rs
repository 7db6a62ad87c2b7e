//! The UDP socket, and the batches that leave it.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use gdr_roce::wire::MAX_DATAGRAM;
use gdr_roce::wire::icrc::{self, Ip, Path};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::net::sockopt;

use super::counters::Counters;
use super::identification::AnyIdentification;
use super::raw::RawSocket;
use crate::device::Integrity;
use crate::error::{Error, Result};

/// The longest UDP payload over IPv4: 65535 bytes less the IP and UDP headers. One segmented send
/// is one such datagram to the kernel.
const MOST_BYTES: usize = 65_507;
/// What a batch has room for: one more packet than can be sent at once is never gathered.
const BATCH: usize = MOST_BYTES + MAX_DATAGRAM;
/// An unconnected socket that forbids fragmentation, so that Linux writes 0 into IPv4's
/// identification field, and counts up from there over the segments of one send: the ICRC covers
/// that field.
pub(super) struct Socket {
    socket: UdpSocket,
    state: UdpSocketState,
    local: SocketAddr,
    receive_buffer: usize,
    /// For what carries no UDP checksum, over IPv4 and where this process may.
    raw: Option<RawSocket>,
}

impl Socket {
    /// Binds `address`, port 0 taking any, with room in the kernel for `wanted` bytes that arrived
    /// and were not yet taken.
    pub(super) fn bind(address: SocketAddr, wanted: usize) -> Result<Self> {
        let socket = UdpSocket::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::PortInUse { address, source },
            io::ErrorKind::AddrNotAvailable => Error::AddressNotLocal { address, source },
            _ => Error::os("binding a UDP socket", source),
        })?;
        // The forced form may go beyond net.core.rmem_max and needs CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&socket, wanted).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, wanted)
                .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
        }
        let receive_buffer = sockopt::socket_recv_buffer_size(&socket)
            .map_err(|errno| Error::os("getsockopt(SO_RCVBUF)", errno))?;
        // On one host, what was sent counts here until the receiver has taken it. With less room
        // than there the sender waits before the receiver's kernel drops.
        let send_buffer = receive_buffer / 4; // The kernel doubles what is set.
        if sockopt::set_socket_send_buffer_size_force(&socket, send_buffer).is_err() {
            sockopt::set_socket_send_buffer_size(&socket, send_buffer)
                .map_err(|errno| Error::os("setsockopt(SO_SNDBUF)", errno))?;
        }
        if address.is_ipv6() {
            take_without_checksum(&socket)
                .map_err(|source| Error::os("setsockopt(UDP_NO_CHECK6_RX)", source))?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&socket))
            .map_err(|source| Error::os("preparing a UDP socket", source))?;
        let local = socket
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))?;
        let raw = match local {
            SocketAddr::V4(v4) => RawSocket::open(&socket, v4, wanted)
                .inspect_err(|error| {
                    tracing::debug!(%error, %local, "no raw socket; the ICRC is checked in part");
                })
                .ok(),
            SocketAddr::V6(_) => None,
        };
        Ok(Self {
            socket,
            state,
            local,
            receive_buffer,
            raw,
        })
    }

    pub(super) fn local(&self) -> SocketAddr {
        self.local
    }

    /// Bytes that the kernel keeps for this socket, its own bookkeeping included.
    pub(super) fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    pub(super) fn raw(&self) -> Option<&RawSocket> {
        self.raw.as_ref()
    }

    /// Has the raw socket, if any, take over what carries no checksum.
    pub(super) fn rouse(&self) {
        if let Some(raw) = &self.raw {
            raw.rouse(&self.socket);
        }
    }

    /// The same, for good.
    pub(super) fn rouse_for_good(&self) {
        if let Some(raw) = &self.raw {
            raw.rouse_for_good(&self.socket);
        }
    }

    /// Nothing without a checksum is expected any more.
    pub(super) fn lull(&self) {
        if let Some(raw) = &self.raw {
            raw.lull(&self.socket);
        }
    }

    /// How far an arriving packet is checked. IPv4's identification field is part of the ICRC, and
    /// no UDP socket tells it.
    pub(super) fn integrity(&self) -> Integrity {
        match (self.local, &self.raw) {
            (SocketAddr::V6(_), _) => Integrity::Icrc,
            (SocketAddr::V4(_), Some(_)) => Integrity::IcrcOrChecksum,
            (SocketAddr::V4(_), None) => Integrity::IcrcOfAnyIdentification,
        }
    }

    fn path(&self, src: SocketAddr, dst: SocketAddr, identification: u16) -> Option<Path> {
        let ip = match (src.ip(), dst.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Ip::V4 {
                src,
                dst,
                identification,
                dont_fragment: true,
            },
            (IpAddr::V6(src), IpAddr::V6(dst)) => Ip::V6 { src, dst },
            _ => return None,
        };
        Some(Path {
            ip,
            src_port: src.port(),
            dst_port: dst.port(),
        })
    }

    /// Whether the ICRC of an arrived datagram holds, the one at `position` among those that the
    /// kernel merged.
    pub(super) fn is_intact(
        &self,
        any: &AnyIdentification,
        src: SocketAddr,
        position: usize,
        datagram: &[u8],
    ) -> bool {
        // Where the sender is a socket such as this one, the guess is mostly right.
        let path = self.path(src, self.local, position as u16);
        path.is_some_and(|path| match path.ip {
            Ip::V4 { .. } => any.matches(&path, datagram),
            Ip::V6 { .. } => icrc::matches(&path, datagram),
        })
    }

    /// Takes what has arrived, without waiting: datagrams, each merged from many by the kernel.
    pub(super) fn receive(
        &self,
        rooms: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let received = self
            .state
            .recv(UdpSockRef::from(&self.socket), rooms, metas);
        match received {
            Err(error) if has_not_come(error.kind()) => Ok(0),
            other => other,
        }
    }

    fn seal(&self, dst: SocketAddr, position: usize, datagram: &mut [u8]) {
        // A batch has fewer segments than the field has numbers.
        if let Some(path) = self.path(self.local, dst, position as u16) {
            icrc::seal(&path, datagram);
        }
    }

    fn send(&self, dst: SocketAddr, contents: &[u8], segment: Option<usize>) -> io::Result<()> {
        let transmit = Transmit {
            destination: dst,
            ecn: None,
            contents,
            segment_size: segment,
            src_ip: None,
        };
        self.state
            .try_send(UdpSockRef::from(&self.socket), &transmit)
    }
}

/// Whether an error of receiving says no more than that there is nothing. An ICMP error of an
/// earlier send surfaces there, too; the peer's silence is what counts.
pub(super) fn has_not_come(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
    )
}

/// Lets datagrams over IPv6 arrive that carry no UDP checksum, which Linux drops otherwise: RoCE
/// leaves it at 0, as its own CRC covers more; rxe and network cards do.
fn take_without_checksum(socket: &UdpSocket) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option takes an int, which lives for the call.
    let answer = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_UDP,
            libc::UDP_NO_CHECK6_RX,
            (&raw const on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if answer == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Packets to one destination on their way to one system call: all of one length, but for the
/// last, which may be shorter.
pub(super) struct Batch {
    bytes: Box<[u8]>,
    len: usize,
    dst: SocketAddr,
    /// Length of each packet; 0 when there is none.
    segment: usize,
    count: usize,
    /// The last packet is shorter, so none may follow.
    closed: bool,
    /// A packet behind them that goes with the next batch: to whom, and its length.
    carried: Option<(SocketAddr, usize)>,
}

/// What became of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It left, or was lost as packets may be.
    Gone,
    /// The kernel has no room: it waits until the socket is writable.
    Blocked,
}

impl Batch {
    pub(super) fn new(local: SocketAddr) -> Self {
        Self {
            bytes: vec![0; BATCH].into_boxed_slice(),
            len: 0,
            dst: local,
            segment: 0,
            count: 0,
            closed: false,
            carried: None,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Room for one packet behind what is there.
    pub(super) fn room(&mut self) -> &mut [u8] {
        // `len` is at most MOST_BYTES.
        &mut self.bytes[self.len..][..MAX_DATAGRAM]
    }

    /// Takes the `len` bytes just written to [`Batch::room`] as a packet to `dst`; sends what is
    /// there first where the two cannot go together. While that is blocked, nothing more can be
    /// taken.
    pub(super) fn push(
        &mut self,
        socket: &Socket,
        counters: &mut Counters,
        dst: SocketAddr,
        len: usize,
    ) -> Sent {
        let fits = self.count == 0
            || (self.dst == dst
                && !self.closed
                && len <= self.segment
                && self.len + len <= MOST_BYTES
                && self.count < socket.state.max_gso_segments());
        if !fits {
            self.carried = Some((dst, len));
            return self.send(socket, counters);
        }
        self.append(socket, dst, len);
        Sent::Gone
    }

    fn append(&mut self, socket: &Socket, dst: SocketAddr, len: usize) {
        if self.count == 0 {
            (self.dst, self.segment) = (dst, len);
        }
        let at = self.len;
        socket.seal(dst, self.count, &mut self.bytes[at..at + len]);
        self.closed = len < self.segment;
        self.len += len;
        self.count += 1;
    }

    /// Sends what is there, but for a packet that was carried over.
    pub(super) fn send(&mut self, socket: &Socket, counters: &mut Counters) -> Sent {
        if self.count == 0 {
            return Sent::Gone;
        }
        let segment = (self.count > 1).then_some(self.segment);
        let sent = match socket.send(self.dst, &self.bytes[..self.len], segment) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Sent::Blocked,
            Err(_) if segment.is_some() => self.send_singly(socket),
            other => other,
        };
        match sent {
            Ok(()) => counters.packets_sent += self.count as u64,
            Err(error) => {
                counters.sends_failed += 1;
                let to = self.dst;
                if counters.sends_failed == 1 {
                    tracing::warn!(%error, %to, "the kernel refuses to send; packets count as lost");
                } else {
                    tracing::trace!(%error, %to, "sending failed");
                }
            }
        }
        let end = std::mem::take(&mut self.len);
        self.count = 0;
        if let Some((dst, len)) = self.carried.take() {
            self.bytes.copy_within(end..end + len, 0);
            self.append(socket, dst, len);
        }
        Sent::Gone
    }

    /// Where the kernel or the interface cannot segment, each packet goes by itself, with the
    /// identification field, and so the ICRC, of a packet that goes by itself.
    fn send_singly(&mut self, socket: &Socket) -> io::Result<()> {
        for packet in self.bytes[..self.len].chunks_mut(self.segment) {
            socket.seal(self.dst, 0, packet);
            match socket.send(self.dst, packet, None) {
                // Lost, as packets may be.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                other => other?,
            }
        }
        Ok(())
    }
}
