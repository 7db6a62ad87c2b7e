//! The addresses of this host at which a soft device can be opened.

use std::ffi::{CStr, CString};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::{mem, ptr};

use gdr_roce::Mtu;
use gdr_roce::wire::UDP_PORT;
use rustix::net::{self, sockopt};

use crate::error::{Error, Result};

/// The bytes of a packet besides its payload and IP header: BTH, RETH, immediate, ICRC, UDP.
const HEADERS: usize = 12 + 16 + 4 + 4 + 8;

/// An address of this host at which a soft device can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SoftAddress {
    /// The address.
    pub address: IpAddr,
    /// Its network interface.
    pub interface: String,
    /// The longest IP packet of the interface in bytes; `None` if it is unknown.
    pub link_mtu: Option<u32>,
    /// The largest path MTU that the interface carries without fragments; `None` if it is unknown or
    /// even the smallest is too large.
    pub path_mtu: Option<Mtu>,
}

/// Lists the addresses of interfaces that are up, in the system's order, without link-local IPv6
/// addresses, which are valid only with their interface.
pub fn list() -> Result<Vec<SoftAddress>> {
    let mut first = ptr::null_mut();
    // SAFETY: the pointer is writable; the list is freed below.
    if unsafe { libc::getifaddrs(&mut first) } != 0 {
        return Err(Error::os("getifaddrs", std::io::Error::last_os_error()));
    }
    let mut found = Vec::new();
    let mut next = first;
    // SAFETY: the entries of the list, and the data they point to, are valid until it is freed.
    while let Some(entry) = unsafe { next.as_ref() } {
        next = entry.ifa_next;
        let up = entry.ifa_flags & libc::IFF_UP as u32 != 0;
        // SAFETY: as above; an address is null or has the length of its family.
        if let Some(address) = unsafe { address(entry.ifa_addr) }.filter(|_| up) {
            // SAFETY: as above; names are C strings.
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
    // SAFETY: the list is not used afterwards.
    unsafe { libc::freeifaddrs(first) };
    Ok(found)
}

/// Returns an IP address that a device can have.
///
/// # Safety
/// `raw` is null, or points to an address with the length of its family.
unsafe fn address(raw: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { raw.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: an address of this family has this type; it may be less aligned.
            let v4 = unsafe { raw.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let v6 = unsafe { raw.cast::<libc::sockaddr_in6>().read_unaligned() };
            let address = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            (!address.is_unicast_link_local()).then_some(address.into())
        }
        _ => None,
    }
}

/// The name of the interface that has an address. All of 127.0.0.0/8 belongs to the loopback
/// interface, and only 127.0.0.1 is listed.
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

/// The number of the interface that has an address.
pub(crate) fn interface_index(local: IpAddr) -> Result<u32> {
    let name = CString::new(interface_of(local)?).unwrap_or_default();
    // SAFETY: a C string.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(Error::os("if_nametoindex", std::io::Error::last_os_error())),
        index => Ok(index),
    }
}

/// The MTU of an interface, from a socket: `/sys` may belong to another network namespace, as in a
/// process that has entered one.
fn link_mtu(interface: &str) -> Option<u32> {
    let (family, kind) = (net::AddressFamily::INET, net::SocketType::DGRAM);
    let socket = net::socket_with(family, kind, net::SocketFlags::CLOEXEC, None).ok()?;
    // SAFETY: names, numbers and addresses that are not read; all zeros are valid.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    // The last byte stays 0.
    let room = request.ifr_name.len() - 1;
    if interface.len() > room {
        return None;
    }
    for (place, byte) in request.ifr_name.iter_mut().zip(interface.bytes()) {
        *place = byte as libc::c_char;
    }
    // SAFETY: a socket, and a request that this call reads and writes (netdevice(7)).
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCGIFMTU, &raw mut request) } != 0 {
        return None;
    }
    // SAFETY: the call has set this member.
    u32::try_from(unsafe { request.ifr_ifru.ifru_mtu }).ok()
}

/// The largest path MTU whose packets fit `link`, the longest IP packet.
pub(crate) fn path_mtu(link: u32, address: IpAddr) -> Option<Mtu> {
    let ip = if address.is_ipv4() { 20 } else { 40 };
    Mtu::at_most((link as usize).saturating_sub(ip + HEADERS))
}

/// The largest path MTU that the route from `local` to `peer` carries without fragments, as far as
/// this host knows.
pub fn path_mtu_to(local: IpAddr, peer: IpAddr) -> Result<Mtu> {
    if local.is_ipv4() != peer.is_ipv4() {
        return Err(Error::AddressFamily { local, peer });
    }
    // Connecting a UDP socket looks the route up and sends nothing.
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
