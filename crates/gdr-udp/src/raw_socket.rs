//! The raw socket: datagrams over IPv4 that carry no UDP checksum, with their IP headers.
//!
//! Linux's rxe and network cards leave UDP's checksum at 0, as RoCE's own CRC covers more. So only
//! the ICRC protects such a datagram, and checking all of its 32 bits takes the IP header, which a
//! raw socket reports and a UDP socket does not. A raw socket needs CAP_NET_RAW.
//!
//! The kernel clones the metadata of every packet to the host's address for a raw socket before it
//! runs the filter, so the raw socket stays disabled (bound to an unused address) while it is not
//! needed. It is needed while there is a queue pair whose peer has not yet sent a datagram with a
//! checksum, as this crate always does, or that receives datagrams from any peer. While it is enabled, each datagram arrives at one of the
//! two sockets: the kernel drops those with a checksum or for another port at the raw socket, and
//! those without a checksum at the UDP socket. While it is disabled, the UDP socket's filter
//! empties datagrams without a checksum. Such a datagram is lost and retransmitted; if it came from
//! a peer's address, the raw socket is enabled permanently, as that peer sets checksums only on
//! some packets.
//!
//! A datagram with a checksum never has 0 in that field: UDP transmits a sum of 0 as 0xffff, and if
//! a network card is to compute the sum, the field holds the sum of the pseudo header, which is not 0.
//! And Linux neither merges nor segments datagrams without a checksum
//! (`udp_gro_receive_segment`, `udp_send_skb`), so each is one packet here.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use gdr_roce::wire::Ipv4Datagram;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, sockopt};

use crate::filter::{self, Senders, Unchecked};
use crate::process_fd::ProcessFd;
use crate::qpn_range::QpnRange;
use crate::socket::is_nothing_received;

/// The address of a disabled socket: the base of the multicast addresses, which no group has. A raw
/// socket can be bound more than once, and that needs no privilege.
const UNUSED_ADDRESS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

/// A raw socket beside a UDP socket.
pub struct RawSocket {
    socket: ProcessFd,
    local: SocketAddrV4,
    /// The queue pairs whose packets it receives.
    range: QpnRange,
    enabled: AtomicBool,
    /// It is never disabled again.
    permanent: AtomicBool,
}

impl RawSocket {
    /// Opens it, disabled, beside the UDP socket that is bound to `local`. From now on that socket
    /// must keep of datagrams without a checksum what [`RawSocket::unchecked`] returns.
    ///
    /// # Errors
    ///
    /// Mostly EPERM, without CAP_NET_RAW.
    pub(crate) fn open(
        local: SocketAddrV4,
        range: QpnRange,
        receive_buffer: usize,
    ) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::INET,
            SocketType::RAW,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(ipproto::UDP),
        )?;
        let socket = ProcessFd::from(socket);
        rustix::net::bind(&socket, &SocketAddrV4::new(UNUSED_ADDRESS, 0))?;
        filter::attach(
            socket.as_fd(),
            &filter::raw(&Senders::NONE, local.port(), range),
        )?;
        if sockopt::set_socket_recv_buffer_size_force(&socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, receive_buffer)?;
        }
        Ok(Self {
            socket,
            local,
            range,
            enabled: AtomicBool::new(false),
            permanent: AtomicBool::new(false),
        })
    }

    /// What the UDP socket must keep of datagrams without a checksum.
    pub(crate) fn unchecked(&self) -> Unchecked {
        match self.is_enabled() {
            true => Unchecked::Nothing,
            false => Unchecked::Empty,
        }
    }

    /// Accepts datagrams only from these senders.
    pub(crate) fn accept_from(&self, senders: &Senders) -> io::Result<()> {
        let program = filter::raw(senders, self.local.port(), self.range);
        filter::attach(self.as_fd(), &program)
    }

    /// Receives datagrams without a checksum from now on; `hand_over` then lets the UDP socket drop
    /// them. In this order a datagram that arrives meanwhile arrives twice instead of never.
    pub(crate) fn enable(&self, hand_over: impl FnOnce(Unchecked) -> io::Result<()>) {
        if self.is_enabled() {
            return;
        }
        let enabled = self
            .bind(*self.local.ip())
            .and_then(|()| hand_over(Unchecked::Nothing));
        match enabled {
            Ok(()) => self.enabled.store(true, Ordering::Relaxed),
            // The address is gone, or there is no memory. It is tried again at the next connection.
            Err(error) => {
                tracing::warn!(%error, local = %self.local, "a raw socket stays disabled")
            }
        }
    }

    /// Like [`RawSocket::enable`], permanently.
    pub(crate) fn enable_permanently(&self, hand_over: impl FnOnce(Unchecked) -> io::Result<()>) {
        self.permanent.store(true, Ordering::Relaxed);
        self.enable(hand_over);
    }

    /// Disables it, after `hand_over` has let the UDP socket report such datagrams.
    pub(crate) fn disable(&self, hand_over: impl FnOnce(Unchecked) -> io::Result<()>) {
        if !self.is_enabled() || self.permanent.load(Ordering::Relaxed) {
            return;
        }
        let disabled = hand_over(Unchecked::Empty).and_then(|()| self.bind(UNUSED_ADDRESS));
        match disabled {
            Ok(()) => {
                self.enabled.store(false, Ordering::Relaxed);
                // The packets that are left belong to no queue pair, and would wake the progress
                // thread again and again. No packet is added to them.
                while matches!(self.receive(&mut [0]), Ok(Some(_))) {}
            }
            Err(error) => {
                tracing::debug!(%error, local = %self.local, "a raw socket stays enabled")
            }
        }
    }

    /// Whether it receives anything.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    fn bind(&self, to: Ipv4Addr) -> io::Result<()> {
        Ok(rustix::net::bind(&self.socket, &SocketAddrV4::new(to, 0))?)
    }

    /// Its descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives one packet, without waiting; returns its length, at most the length of `room`.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            Err(errno) if is_nothing_received(errno.kind()) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Whether a packet is one that only this socket receives. Packets that arrived before its filter
    /// was attached may be anything.
    pub(crate) fn is_for_us(&self, packet: &Ipv4Datagram<'_>) -> bool {
        packet.dst == *self.local.ip()
            && packet.path.dst_port == self.local.port()
            && packet.checksum == 0
    }
}
