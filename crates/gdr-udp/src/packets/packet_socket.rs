//! The packet socket of a network interface.

use std::ffi::{c_int, c_ushort};
use std::io;
use std::mem::{self, MaybeUninit};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::net::sockopt;

use super::frame::complete_checksum;
use crate::error::{Error, Result};
use crate::process_fd::ProcessFd;
use crate::socket_option;
use crate::{address, filter};

/// Ethernet types in `sll_protocol`: all, and one that no frame has (reserved by IANA).
const ALL: u16 = libc::ETH_P_ALL as u16;
const NO_TYPE: u16 = 0xffff;

/// `struct virtio_net_hdr` of linux/virtio_net.h, in host byte order (`PACKET_VNET_HDR`).
const VNET_HEADER: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum of the frame is left to the network card.
const NEEDS_CHECKSUM: u8 = 1;
/// `TP_STATUS_VLAN_VALID` and `TP_STATUS_VLAN_TPID_VALID` of linux/if_packet.h: the kernel has taken
/// a VLAN tag out of the frame.
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TYPE_VALID: u32 = 1 << 6;
/// The bytes of a VLAN tag, and of the two addresses before it.
const TAG: usize = 4;
const ADDRESSES: usize = 12;
/// The default type of a VLAN tag.
const TYPE_VLAN: u16 = 0x8100;

/// The longest frame of an interface: what the kernel merges at most by default (`GRO_MAX_SIZE`),
/// which is more than the MTU of any interface, with its Ethernet header and two tags.
pub const LONGEST_FRAME: usize = (1 << 16) + 14 + 2 * TAG;
/// Room for one received frame, and for a tag to put back in front.
pub const ROOM: usize = LONGEST_FRAME + TAG;

/// Frames that the interface receives besides those for its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// For this address; its first octet is in bits 40 to 47.
    Address(u64),
    /// For every group.
    AllMulticast,
    /// All.
    Promiscuous,
}

/// What came of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrame {
    /// The kernel has it.
    Sent,
    /// There is no room in the socket yet.
    Blocked,
    /// It is longer than the interface allows.
    TooLong,
    /// The interface cannot send.
    Failed,
}

/// A packet socket. It receives nothing until it [listens](PacketSocket::listen).
pub struct PacketSocket {
    socket: ProcessFd,
    interface: c_int,
    /// The interface's own address.
    address: u64,
    loopback: Loopback,
}

/// What becomes of frames that this host sends to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loopback {
    /// The interface receives every frame that it sends, and so does this socket.
    ByInterface,
    /// The interface sends them away. A network card passes a frame for its own address, or for a group,
    /// back to its receivers. So the frames of other sockets are taken as they leave, and this one's,
    /// which the kernel does not show it, by its owner.
    AsNetworkCard,
}

impl PacketSocket {
    /// Opens one on the interface that has this address.
    ///
    /// # Errors
    ///
    /// [`Error::PacketSocketDenied`] without CAP_NET_RAW; [`Error::NotEthernet`];
    /// [`Error::AddressNotLocal`]; [`Error::Os`].
    pub(crate) fn open(local: IpAddr, receive_buffer: usize) -> Result<Self> {
        let interface = address::interface_index(local)?.cast_signed();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call takes only numbers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.kind() {
                io::ErrorKind::PermissionDenied => Error::PacketSocketDenied { source },
                _ => Error::os("socket(AF_PACKET)", source),
            });
        }
        // SAFETY: a new descriptor, which only this value owns.
        let socket = ProcessFd::from(unsafe { OwnedFd::from_raw_fd(fd) });
        let mut packets = Self {
            socket,
            interface,
            address: 0,
            loopback: Loopback::ByInterface,
        };
        packets.prepare(receive_buffer)?;
        packets
            .bind(NO_TYPE)
            .map_err(|source| Error::os("bind(AF_PACKET)", source))?;
        let own = packets
            .own_name()
            .map_err(|source| Error::os("getsockname(AF_PACKET)", source))?;
        if !matches!(own.sll_hatype, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK) {
            return Err(Error::NotEthernet {
                interface: address::interface_of(local)?,
                hardware_type: own.sll_hatype,
            });
        }
        let [a, b, c, d, e, f, ..] = own.sll_addr;
        packets.address = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
        packets
            .select_outgoing(own.sll_hatype)
            .map_err(|source| Error::os("setsockopt(SO_ATTACH_FILTER)", source))?;
        Ok(packets)
    }

    fn prepare(&self, receive_buffer: usize) -> Result<()> {
        for (option, name) in [
            (libc::PACKET_VNET_HDR, "setsockopt(PACKET_VNET_HDR)"),
            (libc::PACKET_AUXDATA, "setsockopt(PACKET_AUXDATA)"),
        ] {
            let on: c_int = 1;
            self.set_option(option, &on)
                .map_err(|source| Error::os(name, source))?;
        }
        // The forced option may exceed net.core.rmem_max and needs CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&self.socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&self.socket, receive_buffer)
                .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
        }
        Ok(())
    }

    /// Decides which frames of this host are received while they leave.
    fn select_outgoing(&mut self, hardware_type: u16) -> io::Result<()> {
        if hardware_type == libc::ARPHRD_ETHER {
            self.loopback = Loopback::AsNetworkCard;
            return filter::attach(self.as_fd(), &filter::frames_for(self.address));
        }
        // Linux before 4.20 does not have it: `receive` drops such frames as well.
        let on: c_int = 1;
        if let Err(error) = self.set_option(libc::PACKET_IGNORE_OUTGOING, &on) {
            tracing::debug!(%error, "the kernel passes frames of this host, too");
        }
        Ok(())
    }

    /// Whether the interface receives this frame if it sends it, and the kernel does not show it to this
    /// socket.
    pub fn takes_back(&self, frame: &[u8]) -> bool {
        let is_for_us = match frame {
            [a, b, c, d, e, f, ..] => {
                a & 1 == 1 || u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]) == self.address
            }
            _ => false,
        };
        self.loopback == Loopback::AsNetworkCard && is_for_us
    }

    /// Sets an option of packet sockets.
    fn set_option<T: Copy>(&self, name: c_int, value: &T) -> io::Result<()> {
        socket_option::set(self.socket.as_fd(), (libc::SOL_PACKET, name), value)
    }

    /// Its interface, with an Ethernet type, as an address.
    fn name(&self, ether_type: u16) -> libc::sockaddr_ll {
        libc::sockaddr_ll {
            sll_family: libc::AF_PACKET as c_ushort,
            sll_protocol: ether_type.to_be(),
            sll_ifindex: self.interface,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        }
    }

    fn bind(&self, ether_type: u16) -> io::Result<()> {
        let name = self.name(ether_type);
        // SAFETY: an address of this length, which lives for the call.
        let result = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const name).cast(),
                size_of_val(&name) as libc::socklen_t,
            )
        };
        checked(result).map(drop)
    }

    /// Its address, with the type and the address of the interface.
    fn own_name(&self) -> io::Result<libc::sockaddr_ll> {
        let mut name = self.name(0);
        let mut len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: room for this many bytes, which lives for the call.
        let result = unsafe {
            libc::getsockname(
                self.socket.as_raw_fd(),
                (&raw mut name).cast(),
                &raw mut len,
            )
        };
        checked(result)?;
        Ok(name)
    }

    /// Receives the frames of the interface from now on.
    pub fn listen(&self) -> io::Result<()> {
        self.bind(ALL)
    }

    /// Receives nothing from now on, and drops what has arrived.
    pub fn be_silent(&self, room: &mut [u8]) -> io::Result<()> {
        self.bind(NO_TYPE)?;
        while self.receive(room)?.is_some() {}
        Ok(())
    }

    /// Lets the interface receive these frames, or no longer.
    pub fn set_membership(&self, membership: Membership, join: Join) -> io::Result<()> {
        let mut request = libc::packet_mreq {
            mr_ifindex: self.interface,
            mr_type: 0,
            mr_alen: 6,
            mr_address: [0; 8],
        };
        let kind = match membership {
            // The interface receives them anyway.
            Membership::Address(own) if own == self.address => return Ok(()),
            Membership::Address(address) => {
                request.mr_address = (address << 16).to_be_bytes();
                match address >> 40 & 1 {
                    0 => libc::PACKET_MR_UNICAST,
                    _ => libc::PACKET_MR_MULTICAST,
                }
            }
            Membership::AllMulticast => libc::PACKET_MR_ALLMULTI,
            Membership::Promiscuous => libc::PACKET_MR_PROMISC,
        };
        request.mr_type = kind as c_ushort;
        let option = match join {
            Join::Join => libc::PACKET_ADD_MEMBERSHIP,
            Join::Leave => libc::PACKET_DROP_MEMBERSHIP,
        };
        self.set_option(option, &request)
    }

    /// Receives one frame into `room`, of [`ROOM`] bytes, without waiting, as it is on the wire: with
    /// its VLAN tag and with its checksums. Of the frames that other sockets of this host send, these are
    /// those that [come back](Self::takes_back). `None` if nothing has arrived.
    pub fn receive<'a>(&self, room: &'a mut [u8]) -> io::Result<Option<&'a mut [u8]>> {
        loop {
            let Some(arrival) = self.receive_one(room)? else {
                return Ok(None);
            };
            let frame = room.get(TAG..).unwrap_or_default();
            let is_received = !arrival.is_outgoing || self.takes_back(frame);
            if is_received && arrival.len >= ADDRESSES && arrival.len <= LONGEST_FRAME {
                return Ok(Some(arrival.restore(room)));
            }
        }
    }

    fn receive_one(&self, room: &mut [u8]) -> io::Result<Option<Arrival>> {
        let mut name = MaybeUninit::<libc::sockaddr_ll>::zeroed();
        let mut header = [0_u8; VNET_HEADER];
        let frame = room.get_mut(TAG..).unwrap_or_default();
        let mut parts = [
            libc::iovec {
                iov_base: header.as_mut_ptr().cast(),
                iov_len: header.len(),
            },
            libc::iovec {
                iov_base: frame.as_mut_ptr().cast(),
                iov_len: frame.len(),
            },
        ];
        let mut control = Control([0; 8]);
        // SAFETY: a structure of numbers and pointers that may be null.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every part of the message has room for the stated length, and lives for the call.
        let received = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: zeroed, and the kernel has written an address.
        let name = unsafe { name.assume_init() };
        Ok(Some(Arrival {
            len: received.cast_unsigned().saturating_sub(VNET_HEADER),
            is_outgoing: name.sll_pkttype == libc::PACKET_OUTGOING,
            header,
            tag: control.tag(&message),
        }))
    }

    /// Sends a frame, without waiting.
    pub fn send(&self, frame: &[u8]) -> io::Result<SentFrame> {
        let mut name = self.name(0);
        let mut header = [0_u8; VNET_HEADER];
        let mut parts = [
            libc::iovec {
                iov_base: header.as_mut_ptr().cast(),
                iov_len: header.len(),
            },
            libc::iovec {
                iov_base: frame.as_ptr().cast_mut().cast(),
                iov_len: frame.len(),
            },
        ];
        // SAFETY: a structure of numbers and pointers that may be null.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of_val(&name) as libc::socklen_t;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel only reads the parts of the message, which live for the call.
        if unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT) } >= 0 {
            return Ok(SentFrame::Sent);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(SentFrame::Blocked),
            Some(libc::EMSGSIZE) => Ok(SentFrame::TooLong),
            // The queue of the interface was full: as lost on the wire.
            Some(libc::ENOBUFS) => Ok(SentFrame::Sent),
            _ => Err(error),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Whether an interface begins or ends to receive something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// It receives them from here on.
    Join,
    /// It need not.
    Leave,
}

/// A frame in the room of a receive.
struct Arrival {
    len: usize,
    /// This host sends it.
    is_outgoing: bool,
    /// A `struct virtio_net_hdr`.
    header: [u8; VNET_HEADER],
    /// The type and the value of the VLAN tag that the kernel has taken out.
    tag: Option<(u16, u16)>,
}

impl Arrival {
    /// The frame as it is on the wire. It has at least its two addresses.
    fn restore(self, room: &mut [u8]) -> &mut [u8] {
        let [flags, _, _, _, _, _, start, start_high, offset, offset_high] = self.header;
        if flags & NEEDS_CHECKSUM != 0 {
            let start = u16::from_ne_bytes([start, start_high]);
            let offset = u16::from_ne_bytes([offset, offset_high]);
            let frame = &mut room[TAG..TAG + self.len];
            complete_checksum(frame, start.into(), offset.into());
        }
        let Some((ether_type, tag)) = self.tag else {
            return &mut room[TAG..TAG + self.len];
        };
        room.copy_within(TAG..TAG + ADDRESSES, 0);
        room[ADDRESSES..][..2].copy_from_slice(&ether_type.to_be_bytes());
        room[ADDRESSES + 2..][..2].copy_from_slice(&tag.to_be_bytes());
        &mut room[..TAG + self.len]
    }
}

/// Room for the one control message that the socket asks for, aligned as `struct cmsghdr`.
#[repr(C)]
struct Control([u64; 8]);

impl Control {
    /// The VLAN tag in the auxiliary data of a received message.
    fn tag(&self, message: &libc::msghdr) -> Option<(u16, u16)> {
        // SAFETY: the kernel has filled the control part of the message, which is this value.
        let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
        let needed = size_of::<libc::tpacket_auxdata>();
        // SAFETY: the macro computes with numbers only.
        let least = unsafe { libc::CMSG_LEN(needed as u32) } as usize;
        let kind = (first.cmsg_level, first.cmsg_type);
        if kind != (libc::SOL_PACKET, libc::PACKET_AUXDATA) || (first.cmsg_len as usize) < least {
            return None;
        }
        // SAFETY: by its length the message has this structure, which may be less aligned.
        let data = unsafe {
            libc::CMSG_DATA(first)
                .cast::<libc::tpacket_auxdata>()
                .read_unaligned()
        };
        let has = |flag| data.tp_status & flag != 0;
        let ether_type = match has(VLAN_TYPE_VALID) {
            true => data.tp_vlan_tpid,
            false => TYPE_VLAN,
        };
        has(VLAN_VALID).then_some((ether_type, data.tp_vlan_tci))
    }
}

fn checked(result: c_int) -> io::Result<c_int> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

#[cfg(test)]
mod tests {
    use super::super::frame::Headers;
    use super::super::frame::tests::{tagged, udp_v4};
    use super::*;

    /// The frame of an arrival whose bytes are at their place in a room.
    fn restored(frame: &[u8], header: [u8; VNET_HEADER], tag: Option<(u16, u16)>) -> Vec<u8> {
        let mut room = [&[0; TAG], frame, &[0xee; 9]].concat();
        let arrival = Arrival {
            len: frame.len(),
            is_outgoing: false,
            header,
            tag,
        };
        arrival.restore(&mut room).to_vec()
    }

    #[test]
    fn a_tag_that_the_kernel_has_taken_out_is_put_back() {
        let frame = udp_v4(b"payload");
        assert_eq!(restored(&frame, [0; VNET_HEADER], None), frame);
        let back = restored(&frame, [0; VNET_HEADER], Some((TYPE_VLAN, 0x6005)));
        assert_eq!(back, tagged(&frame, 0x6005));
    }

    #[test]
    fn a_checksum_that_was_left_to_the_network_card_is_filled_in() {
        let mut whole = udp_v4(b"payload");
        Headers::parse(&whole).unwrap().fill_checksums(&mut whole);
        // What UDP's checksum covers begins after the Ethernet and IPv4 headers; the checksum is 6 bytes on.
        let (start, offset) = (34_u16, 6_u16);
        let mut header = [0; VNET_HEADER];
        header[0] = NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        // The kernel leaves the sum of the pseudo header there.
        let mut open = whole.clone();
        let pseudo = &whole[26..34];
        let words = pseudo
            .chunks(2)
            .map(|it| u32::from(it[0]) << 8 | u32::from(it[1]));
        let sum = words.sum::<u32>() + 17 + (whole.len() as u32 - 34);
        let sum = (sum & 0xffff) + (sum >> 16);
        open[40..42].copy_from_slice(&(sum as u16).to_be_bytes());
        assert_ne!(open, whole);
        assert_eq!(restored(&open, header, None), whole);
        assert_eq!(restored(&open, [0; VNET_HEADER], None), open);
    }
}
