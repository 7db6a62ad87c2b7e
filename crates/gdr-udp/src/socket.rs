//! The UDP socket of a device.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock};

use gdr_process::lock::lock;
use gdr_roce::Qpn;
use gdr_roce::wire::icrc::{IcrcCache, Ip, Path};
use quinn_udp::{RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::sockopt;
use smallvec::SmallVec;

use crate::error::{Error, Result};
use crate::filter::{self, Senders, Unchecked};
use crate::flows::{Flow, Flows};
use crate::integrity::Integrity;
use crate::multicast;
use crate::options::{PortUse, Shards, SocketOptions, SourcePort};
use crate::packets::PacketSocket;
use crate::partial_icrc::PartialIcrc;
use crate::port_group::{PortGroup, SolePort, claim_port};
use crate::process_fd::ProcessFd;
use crate::qpn_range::QpnRange;
use crate::raw_socket::RawSocket;
use crate::reuseport;
use crate::single_datagram;
use crate::socket_option;

/// An unconnected UDP socket that forbids fragmentation. Linux then sets IPv4's identification to 0, and counts up from
/// there over the segments of one send. The ICRC covers that field.
pub struct Socket {
    socket: ProcessFd,
    state: UdpSocketState,
    local: SocketAddr,
    receive_buffer: usize,
    /// Transmit sockets for connections, if those have source ports of their own.
    flows: Option<Flows>,
    /// Receives packets without a UDP checksum; over IPv4, if the process has CAP_NET_RAW.
    raw: Option<RawSocket>,
    /// Carries raw packets; opened for the first queue pair that asks for them.
    packets: OnceLock<PacketSocket>,
    /// The senders that the kernel filter currently admits.
    senders: Mutex<Senders>,
    /// Drops that the kernel counted while the socket belonged to another device.
    earlier_drops: u64,
    range: QpnRange,
    /// The device's claim to the port. Declared last: once it is dropped others may take the port, so the sockets must
    /// be closed by then.
    port: Arc<Port>,
}

/// A device's claim to its UDP port.
enum Port {
    /// The whole port, through a single socket.
    Exclusive,
    /// The whole port, through several sockets; the name keeps port groups from joining them.
    Sole { _name: SolePort },
    /// Slots of a port group.
    Shared(PortGroup),
}

impl Socket {
    /// Binds the sockets of a device, one per shard. Port 0 picks a free port.
    pub fn bind_shards(options: &SocketOptions, shards: Shards) -> Result<Vec<Self>> {
        let address = options.address;
        let ip = address.ip();
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(Error::AddressNotUnicast(ip));
        }
        let (port, sockets) = match options.port_use {
            PortUse::Exclusive => Port::bind(address, shards)?,
            PortUse::Shared => {
                let (group, sockets) = PortGroup::join(address, shards)?;
                (Port::Shared(group), sockets)
            }
        };
        let port = Arc::new(port);
        let count = sockets.len();
        let new = |(shard, socket)| {
            let range = port.range(shard, count);
            Self::new(socket, range, options, Arc::clone(&port))
        };
        sockets.into_iter().enumerate().map(new).collect()
    }

    /// Binds the only socket of a device that has the port to itself.
    #[cfg(test)]
    pub(crate) fn bind(address: SocketAddr, wanted: usize) -> Result<Self> {
        let options = SocketOptions {
            address,
            port_use: PortUse::Exclusive,
            receive_buffer: wanted,
            source_port: SourcePort::OfAddress,
        };
        Ok(Self::bind_shards(&options, Shards::Exactly(1))?.remove(0))
    }

    /// Configures a bound socket.
    fn new(
        socket: ProcessFd,
        range: QpnRange,
        options: &SocketOptions,
        port: Arc<Port>,
    ) -> Result<Self> {
        let wanted = options.receive_buffer;
        // SO_RCVBUFFORCE may exceed net.core.rmem_max, but needs CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&socket, wanted).is_err() {
            sockopt::set_socket_recv_buffer_size(&socket, wanted)
                .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
        }
        let receive_buffer = sockopt::socket_recv_buffer_size(&socket)
            .map_err(|errno| Error::os("getsockopt(SO_RCVBUF)", errno))?;
        limit_sending(socket.as_fd(), receive_buffer)
            .map_err(|source| Error::os("setsockopt(SO_SNDBUF)", source))?;
        let local = rustix::net::getsockname(&socket)
            .and_then(SocketAddr::try_from)
            .map_err(|errno| Error::os("getsockname", errno))?;
        if local.is_ipv6() {
            accept_without_checksum(&socket)
                .map_err(|source| Error::os("setsockopt(UDP_NO_CHECK6_RX)", source))?;
        }
        let state = UdpSocketState::new(UdpSockRef::from(&socket))
            .map_err(|source| Error::os("preparing a UDP socket", source))?;
        single_datagram::omit_control_messages(&socket);
        multicast::send_by_interface_of(socket.as_fd(), local.ip());
        let raw = match local {
            SocketAddr::V4(v4) => RawSocket::open(v4, range, wanted)
                .inspect_err(|error| {
                    tracing::debug!(%error, %local, "no raw socket; the ICRC is checked partially");
                })
                .ok(),
            SocketAddr::V6(_) => None,
        };
        let socket = Self {
            state,
            local,
            receive_buffer,
            flows: match options.source_port {
                SourcePort::OfAddress => None,
                SourcePort::Any => Some(Flows::new()),
            },
            raw,
            packets: OnceLock::new(),
            senders: Mutex::new(Senders::Any),
            earlier_drops: dropped(&socket),
            socket,
            range,
            port,
        };
        socket.accept_from([].iter(), [].iter())?;
        // Anything queued before the filter was attached belongs to an earlier device, or to none.
        reuseport::drain(socket.as_fd());
        Ok(socket)
    }

    /// Returns a new descriptor of the socket for management datagrams.
    ///
    /// # Errors
    /// [`Error::PortNotShared`] unless the port is shared; [`Error::Os`].
    pub fn management_socket(&self) -> Result<ProcessFd> {
        match &*self.port {
            Port::Shared(group) => group.management_socket(),
            Port::Exclusive | Port::Sole { .. } => Err(Error::PortNotShared {
                address: self.local,
            }),
        }
    }

    /// Lets the kernel drop datagrams from addresses that are not listed, except those for queue pairs in `open`. If
    /// either list is too long for a filter, everything is accepted.
    pub fn accept_from<'a>(
        &self,
        addresses: impl ExactSizeIterator<Item = &'a IpAddr>,
        open: impl ExactSizeIterator<Item = &'a Qpn>,
    ) -> Result<()> {
        let failed = |source| Error::os("setsockopt(SO_ATTACH_FILTER)", source);
        let mut senders = lock(&self.senders);
        let wanted = Senders::of(addresses, open);
        if wanted == *senders {
            return Ok(());
        }
        if let Some(raw) = &self.raw {
            raw.accept_from(&wanted).map_err(failed)?;
        }
        self.filter(&wanted, self.unchecked()).map_err(failed)?;
        *senders = wanted;
        Ok(())
    }

    fn filter(&self, senders: &Senders, unchecked: Unchecked) -> io::Result<()> {
        filter::attach(self.as_fd(), &filter::udp(senders, unchecked))
    }

    /// Returns what the UDP socket keeps of datagrams without a checksum.
    fn unchecked(&self) -> Unchecked {
        self.raw
            .as_ref()
            .map_or(Unchecked::Whole, RawSocket::unchecked)
    }

    /// Returns how many datagrams the kernel dropped at the UDP socket, by its filter or for lack of buffer space.
    pub fn kernel_drops(&self) -> u64 {
        dropped(&self.socket).saturating_sub(self.earlier_drops)
    }

    /// Returns a queue pair number whose packets the kernel delivers to this socket. Consecutive arguments give
    /// distinct numbers.
    pub fn own_qpn(&self, number: u32) -> Qpn {
        self.range.qpn(number)
    }

    /// Returns whether the kernel delivers packets for this queue pair number to this socket.
    pub fn owns(&self, qpn: Qpn) -> bool {
        let bits = self.range.mask_and_value();
        bits.is_none_or(|(mask, value)| qpn.get() & mask == value)
    }

    /// Returns the queue pair numbers whose packets the kernel delivers to this socket.
    pub fn range(&self) -> QpnRange {
        self.range
    }

    /// Returns which UDP ports connections send from.
    pub fn source_port(&self) -> SourcePort {
        match self.flows {
            None => SourcePort::OfAddress,
            Some(_) => SourcePort::Any,
        }
    }

    /// Prepares to send from queue pair `own` to the peer's `peer`. If no source port can be bound, their packets leave
    /// from the device's port.
    pub fn open_flow(&self, own: Qpn, peer: Qpn) {
        let Some(flows) = &self.flows else {
            return;
        };
        let opened = flows.open(self.local, own, peer, |flow| {
            multicast::send_by_interface_of(flow, self.local.ip());
            limit_sending(flow, self.receive_buffer)
        });
        if let Err(error) = opened {
            tracing::debug!(%error, local = %self.local, "a connection has no source port of its own");
        }
    }

    /// Returns the address that a packet is sent from.
    fn source_of(&self, packet: &[u8]) -> SocketAddr {
        let flow = self.flows.as_ref().and_then(|flows| flows.of(packet));
        flow.map_or(self.local, Flow::local)
    }

    /// Returns whether two packets are sent from the same port.
    pub(crate) fn is_same_flow(&self, one: &[u8], other: &[u8]) -> bool {
        self.flows.is_none() || self.source_of(one) == self.source_of(other)
    }

    /// Returns the descriptor to poll for writability after a send that would have blocked.
    pub fn blocked_fd(&self) -> BorrowedFd<'_> {
        let flow = self.flows.as_ref().and_then(Flows::blocked);
        flow.unwrap_or_else(|| self.as_fd())
    }

    /// Returns whether a datagram is queued, or the socket has failed.
    pub fn is_readable(&self) -> bool {
        let udp = PollFd::from_borrowed_fd(self.as_fd(), PollFlags::IN);
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let packets = self.packets();
        let raw = self.raw.as_ref().filter(|raw| raw.is_enabled());
        let ready = if raw.is_none() && packets.is_none() {
            rustix::event::poll(&mut [udp], Some(&now))
        } else {
            let mut all = SmallVec::<[PollFd<'_>; 3]>::from_iter([udp]);
            all.extend(raw.map(|raw| PollFd::from_borrowed_fd(raw.as_fd(), PollFlags::IN)));
            all.extend(packets.map(|packets| PollFd::new(packets, PollFlags::IN)));
            rustix::event::poll(&mut all, Some(&now))
        };
        // If poll(2) fails, the following receive reports why.
        !matches!(ready, Ok(0))
    }

    /// Returns how many packets one segmented send (GSO) can carry.
    pub(crate) fn max_segments(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Returns the local address.
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Returns the receive buffer size in bytes, including the kernel's bookkeeping.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Returns the descriptor of the UDP socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Returns the raw socket, if this process was allowed to open one.
    pub fn raw(&self) -> Option<&RawSocket> {
        self.raw.as_ref()
    }

    /// Returns the packet socket, if it is open.
    pub fn packets(&self) -> Option<&PacketSocket> {
        self.packets.get()
    }

    /// Opens the packet socket on the interface that has the device's address, unless it is open.
    pub fn open_packets(&self) -> Result<()> {
        if self.packets.get().is_none() {
            let opened = PacketSocket::open(self.local.ip(), self.receive_buffer / 2)?;
            // If another thread has opened a socket in the meantime, this one is closed.
            self.packets.get_or_init(|| opened);
        }
        Ok(())
    }

    /// Starts receiving packets without a checksum, if there is a raw socket.
    pub fn enable_raw(&self) {
        if let Some(raw) = &self.raw {
            raw.enable(|unchecked| self.filter(&lock(&self.senders), unchecked));
        }
    }

    /// Like [`Socket::enable_raw`], permanently.
    pub(crate) fn enable_raw_permanently(&self) {
        if let Some(raw) = &self.raw {
            raw.enable_permanently(|unchecked| self.filter(&lock(&self.senders), unchecked));
        }
    }

    /// Disables the raw socket, when no peer is expected to send packets without a checksum.
    pub fn disable_raw(&self) {
        if let Some(raw) = &self.raw {
            raw.disable(|unchecked| self.filter(&lock(&self.senders), unchecked));
        }
    }

    /// Returns how thoroughly received packets are checked. The ICRC covers IPv4's identification field, which a UDP
    /// socket does not report.
    pub fn integrity(&self) -> Integrity {
        match (self.local, &self.raw) {
            (SocketAddr::V6(_), _) => Integrity::Icrc,
            (SocketAddr::V4(_), Some(_)) => Integrity::IcrcOrChecksum,
            (SocketAddr::V4(_), None) => Integrity::PartialIcrc,
        }
    }

    /// Returns the header fields that the ICRC covers; `None` if the address families differ.
    pub fn path(src: SocketAddr, dst: SocketAddr, identification: u16) -> Option<Path> {
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

    /// Returns whether the ICRC of a received datagram is correct. `position` is its index among coalesced datagrams.
    pub(crate) fn is_intact(
        &self,
        partial: &PartialIcrc,
        src: SocketAddr,
        position: usize,
        datagram: &[u8],
    ) -> bool {
        // The identification is a guess, which is right if the sender is a socket like this one, which counts up from
        // 0.
        let path = Self::path(src, self.local, position as u16);
        path.is_some_and(|path| partial.is_intact(&path, datagram))
    }

    /// Receives datagrams, each possibly coalesced from several, without blocking. Returns how many buffers were
    /// filled.
    pub(crate) fn receive(
        &self,
        rooms: &mut [IoSliceMut<'_>],
        metas: &mut [RecvMeta],
    ) -> io::Result<usize> {
        let received = self
            .state
            .recv(UdpSockRef::from(&self.socket), rooms, metas);
        match received {
            Err(error) if is_nothing_received(error.kind()) => Ok(0),
            other => other,
        }
    }

    /// Writes the ICRC of the packet at index `position` of a segmented send.
    pub(crate) fn seal(
        &self,
        icrc: &IcrcCache,
        dst: SocketAddr,
        position: usize,
        datagram: &mut [u8],
    ) {
        // No truncation: a batch has fewer than 2^16 segments.
        if let Some(path) = Self::path(self.source_of(datagram), dst, position as u16) {
            icrc.seal(&path, datagram);
        }
    }

    /// Sends `contents` as one datagram, or as several of `segment` bytes each.
    pub(crate) fn send(
        &self,
        dst: SocketAddr,
        contents: &[u8],
        segment: Option<usize>,
    ) -> io::Result<()> {
        let flow = self.flows.as_ref().and_then(|flows| flows.of(contents));
        let (socket, state) = flow.map_or((&self.socket, &self.state), Flow::socket);
        let sent = match segment {
            None => single_datagram::send(socket.as_fd(), &dst, contents),
            Some(_) => {
                let transmit = Transmit {
                    destination: dst,
                    ecn: None,
                    contents,
                    segment_size: segment,
                    src_ip: None,
                };
                state.try_send(UdpSockRef::from(socket), &transmit)
            }
        };
        if let Some(flows) = &self.flows {
            let is_blocked = |error: &io::Error| error.kind() == io::ErrorKind::WouldBlock;
            let is_blocked = sent.as_ref().is_err_and(is_blocked);
            flows.set_blocked(is_blocked.then_some(contents));
        }
        sent
    }
}

impl Port {
    /// Binds the sockets of a device that has the port to itself.
    fn bind(address: SocketAddr, shards: Shards) -> Result<(Self, Vec<ProcessFd>)> {
        let first = UdpSocket::bind(address).map_err(|source| Error::binding(address, source))?;
        if shards.most() == 1 {
            return Ok((Self::Exclusive, vec![OwnedFd::from(first).into()]));
        }
        let address = first
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))?;
        let name = match claim_port(address)? {
            Some(name) => name,
            // Any process can have taken the name. A single socket does without.
            None if shards.fewest() == 1 => {
                tracing::debug!(%address, "another process has the name of the port; there is one shard");
                return Ok((Self::Exclusive, vec![OwnedFd::from(first).into()]));
            }
            None => return Err(Error::binding(address, io::ErrorKind::AddrInUse)),
        };
        match reuseport::add_shards(first, address, shards.most()) {
            Ok(sockets) => Ok((Self::Sole { _name: name }, sockets)),
            Err(error) if shards.fewest() > 1 => Err(error),
            Err(error) => {
                tracing::debug!(%error, %address, "the kernel does not steer; there is one shard");
                let socket =
                    UdpSocket::bind(address).map_err(|source| Error::binding(address, source))?;
                Ok((Self::Exclusive, vec![OwnedFd::from(socket).into()]))
            }
        }
    }

    /// Returns the queue pair numbers of shard `shard` of `count`.
    fn range(&self, shard: usize, count: usize) -> QpnRange {
        match self {
            Self::Shared(group) => QpnRange::Slot(group.slots()[shard]),
            Self::Exclusive | Self::Sole { .. } if count == 1 => QpnRange::All,
            Self::Exclusive | Self::Sole { .. } => QpnRange::Shard(shard as u8),
        }
    }
}

/// Makes the send buffer smaller than the receive buffer of `receive_buffer` bytes. Between sockets of one host, a
/// datagram counts against the send buffer until it is received, so the sender blocks before the receiver's kernel
/// drops packets.
fn limit_sending(socket: BorrowedFd<'_>, receive_buffer: usize) -> io::Result<()> {
    let send_buffer = receive_buffer / 4; // The kernel doubles what is set.
    if sockopt::set_socket_send_buffer_size_force(socket, send_buffer).is_err() {
        sockopt::set_socket_send_buffer_size(socket, send_buffer)?;
    }
    Ok(())
}

/// Returns how many datagrams the kernel has dropped at a socket.
fn dropped(socket: &ProcessFd) -> u64 {
    /// `SK_MEMINFO_DROPS` of linux/sock_diag.h: an index into an array of counters, here as its last.
    const DROPS: usize = 8;
    let mut numbers = [0_u32; DROPS + 1];
    let mut len = size_of_val(&numbers) as libc::socklen_t;
    // SAFETY: the option writes at most `len` bytes of the array; both outlive the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            numbers.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    match result {
        0 => numbers[DROPS].into(),
        // Linux before 4.12 lacks this option.
        _ => 0,
    }
}

/// Returns whether a receive error means that nothing is queued. The socket also reports ICMP errors of earlier sends
/// here; they are ignored, as a connection's retries detect a lost peer.
pub(crate) fn is_nothing_received(kind: io::ErrorKind) -> bool {
    matches!(
        kind,
        io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused | io::ErrorKind::Interrupted
    )
}

/// Accepts IPv6 datagrams without a UDP checksum, which Linux drops by default. Linux's rxe and network cards send such
/// packets, as RoCE's own CRC covers more.
pub fn accept_without_checksum(socket: &ProcessFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    let option = (libc::IPPROTO_UDP, libc::UDP_NO_CHECK6_RX);
    socket_option::set(socket.as_fd(), option, &on)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use super::*;

    #[test]
    fn a_taken_name_leaves_a_device_one_shard_at_a_port_of_its_own() {
        let address = "127.0.54.1:4791".parse().unwrap();
        let taken = claim_port(address).unwrap().unwrap();
        let (_, sockets) = Port::bind(address, Shards::AtMost(2)).unwrap();
        assert_eq!(sockets.len(), 1);
        drop(sockets);
        assert!(Port::bind(address, Shards::Exactly(2)).is_err());
        drop(taken);
    }
}
