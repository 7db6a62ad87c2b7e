//! IP multicast: sockets that receive from groups, and the options for sending to groups.
//!
//! A socket bound to a device's address receives nothing sent to a group. So each group that a device joins gets a
//! socket of its own. It receives what arrives at the device's interface, including datagrams from this host, and
//! coexists with the sockets of other devices in the group. On the loopback interface this works without IFF_MULTICAST,
//! but IPv6 needs a route (`ip -6 route add ff00::/8 dev lo table local`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use gdr_roce::wire::Grh;
use gdr_roce::wire::icrc::LEN;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrAny, SocketFlags, SocketType, recvfrom, socket_with,
    sockopt,
};

use crate::address::interface_index;
use crate::error::{Error, Result};
use crate::partial_icrc::PartialIcrc;
use crate::process_fd::ProcessFd;
use crate::rx::Datagram;
use crate::socket::{Socket, accept_without_checksum};
use crate::socket_option;

/// Makes a socket send multicast through the device's interface, with the same hop limit as unicast.
pub(crate) fn send_by_interface_of(socket: BorrowedFd<'_>, local: IpAddr) {
    if let Err(error) = select_interface(socket, local) {
        tracing::debug!(%error, %local, "datagrams to groups leave by the routes of this host");
    }
}

fn select_interface(socket: BorrowedFd<'_>, local: IpAddr) -> Result<()> {
    let hops = Grh::HOP_LIMIT;
    let set = match local {
        IpAddr::V4(address) => sockopt::set_ip_multicast_if(socket, &address)
            .and_then(|()| sockopt::set_ip_multicast_ttl(socket, hops.into())),
        IpAddr::V6(_) => sockopt::set_ipv6_multicast_if(socket, interface_index(local)?)
            .and_then(|()| sockopt::set_ipv6_multicast_hops(socket, hops.into())),
    };
    set.map_err(|errno| Error::os("setsockopt(IP_MULTICAST_IF)", errno))
}

/// The socket of a group that a device has joined. Closing it leaves the group.
pub struct MulticastSocket {
    socket: ProcessFd,
    group: SocketAddr,
    partial: PartialIcrc,
}

impl MulticastSocket {
    /// Joins a group on the interface of the device at `local`, for datagrams to that device's port.
    ///
    /// # Errors
    ///
    /// [`Error::NotMulticast`], [`Error::AddressFamily`], [`Error::AddressNotLocal`], [`Error::PortInUse`],
    /// [`Error::Os`].
    pub fn join(local: SocketAddr, group: IpAddr) -> Result<Self> {
        if !group.is_multicast() {
            return Err(Error::NotMulticast(group));
        }
        let family = match (local.ip(), group) {
            (IpAddr::V4(_), IpAddr::V4(_)) => AddressFamily::INET,
            (IpAddr::V6(_), IpAddr::V6(_)) => AddressFamily::INET6,
            (local, peer) => return Err(Error::AddressFamily { local, peer }),
        };
        let group = SocketAddr::new(group, local.port());
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)
            .map_err(|errno| Error::os("socket", errno))?;
        let socket = ProcessFd::from(socket);
        // Every device of this host that joins binds the same address.
        sockopt::set_socket_reuseaddr(&socket, true)
            .map_err(|errno| Error::os("setsockopt(SO_REUSEADDR)", errno))?;
        only_own_memberships(socket.as_fd(), family)
            .map_err(|source| Error::os("setsockopt(IP_MULTICAST_ALL)", source))?;
        rustix::net::bind(&socket, &group).map_err(|errno| Error::binding(group, errno))?;
        let joined = match (local.ip(), group.ip()) {
            (IpAddr::V4(local), IpAddr::V4(group)) => {
                sockopt::set_ip_add_membership(&socket, &group, &local)
            }
            (local, IpAddr::V6(group)) => {
                accept_without_checksum(&socket)
                    .map_err(|source| Error::os("setsockopt(UDP_NO_CHECK6_RX)", source))?;
                sockopt::set_ipv6_add_membership(&socket, &group, interface_index(local)?)
            }
            (IpAddr::V6(_), IpAddr::V4(_)) => Err(Errno::AFNOSUPPORT),
        };
        joined.map_err(|errno| Error::os("setsockopt(IP_ADD_MEMBERSHIP)", errno))?;
        Ok(Self {
            socket,
            group,
            partial: PartialIcrc::new(),
        })
    }

    /// Receives one datagram without blocking. A datagram that cannot be a packet, or whose ICRC is wrong, is
    /// [`Received::Damaged`].
    ///
    /// # Errors
    ///
    /// [`Error::Os`].
    pub fn receive<'a>(&self, room: &'a mut [u8]) -> Result<Received<'a>> {
        let (len, source) = match recvfrom(&self.socket, &mut *room, RecvFlags::TRUNC) {
            Ok((len, _, source)) => (len, source),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
            Err(errno) => return Err(Error::os("recvfrom", errno)),
        };
        let source = source.and_then(|source: SocketAddrAny| SocketAddr::try_from(source).ok());
        let (Some(source), Some(payload)) = (source, room.get(..len)) else {
            return Ok(Received::Damaged);
        };
        // The identification is a guess, which is right if the sender is a device like this one.
        let Some(path) = Socket::path(source, self.group, 0) else {
            return Ok(Received::Damaged);
        };
        if len < LEN || !self.partial.is_intact(&path, payload) {
            return Ok(Received::Damaged);
        }
        let datagram = Datagram::of_group(source, payload, self.group);
        Ok(Received::Datagram(datagram))
    }
}

impl AsFd for MulticastSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The result of [`MulticastSocket::receive`].
pub enum Received<'a> {
    /// Nothing is queued.
    Nothing,
    /// A datagram to discard.
    Damaged,
    /// A datagram whose ICRC is correct, as far as that can be verified.
    Datagram(Datagram<'a>),
}

/// Excludes datagrams for groups that only other sockets have joined, on other interfaces.
fn only_own_memberships(socket: BorrowedFd<'_>, family: AddressFamily) -> io::Result<()> {
    let option = match family {
        AddressFamily::INET => (libc::IPPROTO_IP, libc::IP_MULTICAST_ALL),
        _ => (libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL),
    };
    let off: libc::c_int = 0;
    socket_option::set(socket, option, &off)
}
