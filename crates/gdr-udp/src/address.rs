//! Addresses of this host at which a soft device can be opened.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::{mem, ptr};

use gdr_roce::Mtu;
use gdr_roce::wire::UDP_PORT;
use rustix::net::{self, sockopt};

use crate::error::{Error, Result};

/// Bytes of a packet other than payload and IP header: BTH, RETH, immediate data, ICRC, UDP.
const HEADERS: usize = 12 + 16 + 4 + 4 + 8;

/// An address of this host at which a soft device can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftAddress {
    /// The IP address.
    pub address: IpAddr,
    /// The name of the network interface that has it.
    pub interface: String,
    /// The interface's MTU in bytes, IP header included; `None` if unknown.
    pub link_mtu: Option<u32>,
    /// The largest path MTU that the interface carries without fragmentation; `None` if unknown, or if even the
    /// smallest does not fit.
    pub path_mtu: Option<Mtu>,
}

/// Lists the addresses of interfaces that are up, in the system's order. Link-local IPv6 addresses are left out, as
/// they are meaningful only together with an interface.
pub fn list() -> Result<Vec<SoftAddress>> {
    let mut first = ptr::null_mut();
    // SAFETY: `first` is writable for the call; the list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(Error::os("getifaddrs", std::io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: list entries and the data they point to stay valid until `freeifaddrs` below.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: as above; `ifa_addr` is null or points to an address as long as its family requires.
        if let Some(address) = unsafe { address(entry.ifa_addr) }.filter(|_| up) {
            // SAFETY: as above; `ifa_name` is a NUL-terminated string.
            let interface = unsafe { CStr::from_ptr(entry.ifa_name) };
            let interface = interface.to_string_lossy().into_owned();
            let link_mtu = link_mtu(&interface);
            found.push(SoftAddress {
                path_mtu: link_mtu.and_then(|mtu| path_mtu(mtu, address)),
                address,
                interface,
                link_mtu,
            });
        }
    }
    // SAFETY: `first` is the list that `getifaddrs` returned, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns the IP address if a device can have it.
///
/// # Safety
/// `raw` must be null, or point to a socket address as long as its family requires.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller guarantees that `raw` is null or valid.
    let family = i32::from(unsafe { raw.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an AF_INET address is a `sockaddr_in`; the read does not assume alignment.
            let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: likewise, AF_INET6 and `sockaddr_in6`.
            let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (!address.is_unicast_link_local()).then_some(address.into())
        }
        _ => None,
    }
}

/// Returns the name of the interface that has an address. All of 127.0.0.0/8 belongs to the loopback interface, though
/// the kernel lists only 127.0.0.1.
pub(crate) fn interface_of(local: IpAddr) -> Result<String> {
    let is_loopback = |address: IpAddr| address.is_ipv4() && address.is_loopback();
    let found = list()?
        .into_iter()
        .find(|own| own.address == local || (is_loopback(local) && is_loopback(own.address)));
    found.map(|own| own.interface).ok_or_else(|| {
        let source = std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        let address = (local, 0).into();
        Error::AddressNotLocal { address, source }
    })
}

/// Returns the index of the interface that has an address.
pub(crate) fn interface_index(local: IpAddr) -> Result<u32> {
    let name = CString::new(interface_of(local)?).unwrap_or_default();
    // SAFETY: `name` is a NUL-terminated string that outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Error::os("if_nametoindex", std::io::Error::last_os_error())),
        index => Ok(index),
    }
}

/// Returns the MTU of an interface. It is read through a socket because `/sys` may show another network namespace, for
/// instance in a process that has entered one.
fn link_mtu(interface: &str) -> Option<u32> {
    let (family, kind) = (net::AddressFamily::INET, net::SocketType::DGRAM);
    let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None).ok()?;
    // SAFETY: `ifreq` consists of integers and byte arrays, for which all zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // Leaves the last byte 0, to terminate the name.
    let room = request.ifr_name.len() - 1;
    if interface.len() > room {
        return None;
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name and writes the MTU of `request`, which outlives the call (netdevice(7)).
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: SIOCGIFMTU has set `ifru_mtu`.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// Returns the largest path MTU whose packets fit into IP packets of `link` bytes.
pub(crate) fn path_mtu(link: u32, address: IpAddr) -> Option<Mtu> {
    let ip = if address.is_ipv4() { 20 } else { 40 };
    Mtu::at_most((link as usize).saturating_sub(ip + HEADERS))
}

/// Returns the largest path MTU that the route from `local` to `peer` carries without fragmentation, as far as this
/// host can tell.
pub fn path_mtu_to(local: IpAddr, peer: IpAddr) -> Result<Mtu> {
    if local.is_ipv4() != peer.is_ipv4() {
        return Err(Error::AddressFamily { local, peer });
    }
    // Connecting a UDP socket looks up the route and sends nothing.
    let probe = UdpSocket::bind((local, 0)).map_err(|source| Error::os("bind", source))?;
    probe
        .connect((peer, UDP_PORT))
        .map_err(|source| Error::NoRoute { peer, source })?;
    let mtu = match peer {
        IpAddr::V4(_) => sockopt::ip_mtu(&probe),
        IpAddr::V6(_) => sockopt::ipv6_mtu(&probe),
    };
    let mtu = mtu.map_err(|errno| Error::os("getsockopt(IP_MTU)", errno))?;
    path_mtu(mtu, peer).ok_or(Error::MtuTooSmall { peer, mtu })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_address_is_among_them() {
        let listed = list().unwrap();
        let own = listed
            .iter()
            .find(|own| own.address == IpAddr::V4(Ipv4Addr::LOCALHOST));
        let own = own.unwrap();
        assert_eq!(own.interface, "lo");
        let text = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap();
        assert_eq!(own.link_mtu, text.trim().parse().ok());
        assert_eq!(link_mtu("an interface whose name is too long"), None);
    }

    #[test]
    fn a_path_mtu_leaves_room_for_all_headers() {
        let (v4, v6): (IpAddr, IpAddr) =
            ("10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap());
        assert_eq!(path_mtu(1500, v4), Some(Mtu::B1024));
        assert_eq!(path_mtu(9000, v6), Some(Mtu::B4096));
        assert_eq!(path_mtu(4096 + 44 + 20, v4), Some(Mtu::B4096));
        assert_eq!(path_mtu(4096 + 44 + 20, v6), Some(Mtu::B2048));
        assert_eq!(path_mtu(100, v4), None);
    }
}
