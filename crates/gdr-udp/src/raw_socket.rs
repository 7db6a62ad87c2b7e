//! The raw socket, which receives IPv4 datagrams without a UDP checksum, IP header included.
//!
//! Linux's rxe and network cards leave the UDP checksum 0, as RoCE's own CRC covers more. So only the ICRC protects
//! such a datagram, and checking all 32 bits of it requires the IP header, which a raw socket reports and a UDP socket
//! does not. A raw socket needs CAP_NET_RAW.
//!
//! For a raw socket the kernel clones every packet addressed to the host before it runs the filter. The raw socket
//! therefore stays disabled (bound to an unused address) until it is needed: while some queue pair receives datagrams
//! from any peer, or has a peer that has not yet sent a datagram with a checksum, as this crate always does. While it
//! is enabled, each datagram is delivered to exactly one of the two sockets: the raw socket's filter drops those with a
//! checksum or for another port, and the UDP socket's filter drops those without one. While it is disabled, the UDP
//! socket's filter strips the payload of datagrams without a checksum. Such a datagram is lost and retransmitted; if it
//! came from a peer's address, the raw socket is enabled permanently, as that peer sets checksums on some packets only.
//!
//! A datagram with a checksum never has 0 in that field: UDP transmits a sum of 0 as 0xffff, and with checksum offload
//! the field holds the sum of the pseudo header, which is not 0. Linux neither coalesces nor segments datagrams without
//! a checksum (`udp_gro_receive_segment`, `udp_send_skb`), so each is one packet here.

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

/// The address of a disabled socket: the base of the multicast range, which is never assigned to a group. Any number of
/// raw sockets can bind to it, without privilege.
const UNUSED_ADDRESS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 0);

/// The raw socket that accompanies a UDP socket.
pub struct RawSocket {
    socket: ProcessFd,
    local: SocketAddrV4,
    /// The queue pairs whose packets it receives.
    range: QpnRange,
    enabled: AtomicBool,
    /// Set once it must never be disabled again.
    permanent: AtomicBool,
}

impl RawSocket {
    /// Opens a raw socket, disabled, for the UDP socket that is bound to `local`. From now on the UDP socket must treat
    /// datagrams without a checksum as [`RawSocket::unchecked`] says.
    ///
    /// # Errors
    ///
    /// Usually EPERM: the process lacks CAP_NET_RAW.
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

    /// Returns what the UDP socket must keep of datagrams without a checksum.
    pub(crate) fn unchecked(&self) -> Unchecked {
        match self.is_enabled() {
            true => Unchecked::Nothing,
            false => Unchecked::Empty,
        }
    }

    /// Accepts datagrams from these senders only.
    pub(crate) fn accept_from(&self, senders: &Senders) -> io::Result<()> {
        let program = filter::raw(senders, self.local.port(), self.range);
        filter::attach(self.as_fd(), &program)
    }

    /// Starts to receive datagrams without a checksum, then calls `hand_over` so that the UDP socket drops them. In
    /// this order a datagram that arrives in between is received twice rather than never.
    pub(crate) fn enable(&self, hand_over: impl FnOnce(Unchecked) -> io::Result<()>) {
        if self.is_enabled() {
            return;
        }
        let enabled = self
            .bind(*self.local.ip())
            .and_then(|()| hand_over(Unchecked::Nothing));
        match enabled {
            Ok(()) => self.enabled.store(true, Ordering::Relaxed),
            // The address has been removed, or memory is short. The next connection tries again.
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

    /// Stops receiving, after `hand_over` has let the UDP socket report such datagrams again.
    pub(crate) fn disable(&self, hand_over: impl FnOnce(Unchecked) -> io::Result<()>) {
        if !self.is_enabled() || self.permanent.load(Ordering::Relaxed) {
            return;
        }
        let disabled = hand_over(Unchecked::Empty).and_then(|()| self.bind(UNUSED_ADDRESS));
        match disabled {
            Ok(()) => {
                self.enabled.store(false, Ordering::Relaxed);
                // Queued packets belong to no queue pair any more, and would wake the progress thread repeatedly. No
                // more are queued.
                while matches!(self.receive(&mut [0]), Ok(Some(_))) {}
            }
            Err(error) => {
                tracing::debug!(%error, local = %self.local, "a raw socket stays enabled")
            }
        }
    }

    /// Returns whether the socket receives anything.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    fn bind(&self, to: Ipv4Addr) -> io::Result<()> {
        Ok(rustix::net::bind(&self.socket, &SocketAddrV4::new(to, 0))?)
    }

    /// Returns the descriptor.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Receives one packet without blocking; returns its length, at most the length of `room`.
    pub(crate) fn receive(&self, room: &mut [u8]) -> io::Result<Option<usize>> {
        match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
            Ok((len, _)) => Ok(Some(len)),
            Err(errno) if is_nothing_received(errno.kind()) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Returns whether only this socket receives the packet. Anything may have been queued before the filter was
    /// attached.
    pub(crate) fn is_for_us(&self, packet: &Ipv4Datagram<'_>) -> bool {
        packet.dst == *self.local.ip()
            && packet.path.dst_port == self.local.port()
            && packet.checksum == 0
    }
}
