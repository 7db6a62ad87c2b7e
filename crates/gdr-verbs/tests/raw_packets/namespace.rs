//! Network interfaces in a namespace of this process.
#![allow(dead_code)] // Each test binary uses a part of this module.

use std::ffi::{CStr, c_ulong};
use std::io;
use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Moves the calling thread to a new network namespace. Without privileges, also moves it to a new user namespace, in
/// which it has them. Only makes calls that a child may make after a fork.
pub(crate) fn enter() -> io::Result<()> {
    // SAFETY: takes no pointers.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    match unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    match result {
        -1 => Err(io::Error::last_os_error()),
        result => Ok(result),
    }
}

fn socket(family: libc::c_int, kind: libc::c_int, protocol: libc::c_int) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers; the descriptor is new.
    let fd = check(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, protocol) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn change(name: &CStr, request: c_ulong, set: impl FnOnce(&mut libc::ifreq)) -> io::Result<()> {
    ask(name, request, set).map(drop)
}

/// Makes a request about an interface (netdevice(7)); returns the structure as the Linux kernel filled it in.
fn ask(
    name: &CStr,
    request: c_ulong,
    set: impl FnOnce(&mut libc::ifreq),
) -> io::Result<libc::ifreq> {
    let socket = socket(libc::AF_INET, libc::SOCK_DGRAM, 0)?;
    // SAFETY: a C struct of integers, for which all zeros is a valid value.
    let mut wanted: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in wanted.ifr_name.iter_mut().zip(name.to_bytes()) {
        *to = *from as libc::c_char;
    }
    set(&mut wanted);
    // SAFETY: the request reads and writes only this structure.
    check(unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut wanted) })?;
    Ok(wanted)
}

/// Returns the Ethernet address of an interface.
pub(crate) fn hardware_address(name: &CStr) -> io::Result<[u8; 6]> {
    let answer = ask(name, libc::SIOCGIFHWADDR as c_ulong, |_| {})?;
    // SAFETY: the request has set this member.
    let found = unsafe { answer.ifr_ifru.ifru_hwaddr };
    let [a, b, c, d, e, f, ..] = found.sa_data.map(|octet| octet as u8);
    Ok([a, b, c, d, e, f])
}

/// Sets the address of an interface.
pub(crate) fn set_address(name: &CStr, address: Ipv4Addr) -> io::Result<()> {
    // SAFETY: as in `change`.
    let mut wanted: libc::sockaddr_in = unsafe { mem::zeroed() };
    wanted.sin_family = libc::AF_INET as libc::sa_family_t;
    wanted.sin_addr.s_addr = u32::from_ne_bytes(address.octets());
    change(name, libc::SIOCSIFADDR as c_ulong, |request| {
        // SAFETY: both are plain C structs of 16 bytes that start with the address family.
        request.ifr_ifru.ifru_addr =
            unsafe { mem::transmute::<libc::sockaddr_in, libc::sockaddr>(wanted) };
    })
}

/// Removes the address of an interface.
pub(crate) fn remove_address(name: &CStr) -> io::Result<()> {
    set_address(name, Ipv4Addr::UNSPECIFIED)
}

/// Sets an interface up.
pub(crate) fn set_up(name: &CStr) -> io::Result<()> {
    change(name, libc::SIOCSIFFLAGS as c_ulong, |request| {
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    })
}

/// Sets an interface down.
pub(crate) fn set_down(name: &CStr) -> io::Result<()> {
    change(name, libc::SIOCSIFFLAGS as c_ulong, |request| {
        request.ifr_ifru.ifru_flags = 0;
    })
}

/// Sets the MTU of an interface.
pub(crate) fn set_mtu(name: &CStr, mtu: u16) -> io::Result<()> {
    change(name, libc::SIOCSIFMTU as c_ulong, |request| {
        request.ifr_ifru.ifru_mtu = mtu.into();
    })
}

/// A message of rtnetlink(7), with nested attributes.
struct Message(Vec<u8>);

impl Message {
    /// Starts a request about an interface, which the Linux kernel acknowledges.
    fn new(kind: u16, flags: libc::c_int) -> Self {
        let flags = flags | libc::NLM_F_REQUEST | libc::NLM_F_ACK;
        let mut message = Self(Vec::new());
        message.0.extend(0_u32.to_ne_bytes());
        message.0.extend(kind.to_ne_bytes());
        message.0.extend((flags as u16).to_ne_bytes());
        message.0.extend([0; 8]);
        message.interface();
        message
    }

    /// Adds an attribute; `add` appends its value.
    fn attribute(&mut self, kind: u16, add: impl FnOnce(&mut Self)) {
        let start = self.0.len();
        self.0.extend([0, 0]);
        self.0.extend(kind.to_ne_bytes());
        add(self);
        let len = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(self.0.len().next_multiple_of(4), 0);
    }

    fn name(&mut self, name: &CStr) {
        self.attribute(libc::IFLA_IFNAME, |it| {
            it.0.extend(name.to_bytes_with_nul())
        });
    }

    /// Appends a `struct ifinfomsg` without an index.
    fn interface(&mut self) {
        self.0.extend([0; 16]);
    }

    /// Sends the request, and waits for the answer.
    fn request(mut self) -> io::Result<()> {
        let len = self.0.len() as u32;
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        let socket = socket(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE)?;
        let (fd, bytes) = (socket.as_raw_fd(), self.0.as_ptr().cast());
        // SAFETY: the message outlives the call.
        let sent = unsafe { libc::send(fd, bytes, self.0.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut answer = [0_u8; 1024];
        // SAFETY: the buffer outlives the call. The Linux kernel has already answered.
        let received = unsafe { libc::recv(fd, answer.as_mut_ptr().cast(), answer.len(), 0) };
        if received < 20 {
            return Err(io::Error::last_os_error());
        }
        // `struct nlmsgerr` follows the header: a negative error number, or 0.
        let error = i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
        match error {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

/// Creates two interfaces that are connected to each other (veth(4)).
pub(crate) fn add_veth_pair(one: &CStr, other: &CStr) -> io::Result<()> {
    /// `VETH_INFO_PEER` of linux/veth.h.
    const PEER: u16 = 1;
    let mut message = Message::new(libc::RTM_NEWLINK, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    message.name(one);
    message.attribute(libc::IFLA_LINKINFO, |it| {
        it.attribute(libc::IFLA_INFO_KIND, |it| it.0.extend(b"veth"));
        it.attribute(libc::IFLA_INFO_DATA, |it| {
            it.attribute(PEER, |it| {
                it.interface();
                it.name(other);
            });
        });
    });
    message.request()
}

/// Removes an interface, together with the interface that it is connected to.
pub(crate) fn remove(name: &CStr) -> io::Result<()> {
    let mut message = Message::new(libc::RTM_DELLINK, 0);
    message.name(name);
    message.request()
}
