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

/// Values of `sll_protocol`: all EtherTypes, and one that no frame has (reserved by IANA).
const ALL: u16 = libc::ETH_P_ALL as u16;
const NO_TYPE: u16 = 0xffff;

/// `struct virtio_net_hdr` of linux/virtio_net.h, in host byte order (`PACKET_VNET_HDR`).
const VNET_HEADER: usize = 10;
/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the frame's checksum was left to the network card.
const NEEDS_CHECKSUM: u8 = 1;
/// `TP_STATUS_VLAN_VALID` and `TP_STATUS_VLAN_TPID_VALID` of linux/if_packet.h: the kernel has stripped a VLAN tag from
/// the frame.
const VLAN_VALID: u32 = 1 << 4;
const VLAN_TYPE_VALID: u32 = 1 << 6;
/// Bytes of a VLAN tag, and of the two addresses before it.
const TAG: usize = 4;
const ADDRESSES: usize = 12;
/// The default EtherType of a VLAN tag.
const TYPE_VLAN: u16 = 0x8100;

/// The longest frame that a socket can receive: what the kernel coalesces by default (`GRO_MAX_SIZE`, more than any
/// interface's MTU), plus the Ethernet header and two tags.
pub const LONGEST_FRAME: usize = (1 << 16) + 14 + 2 * TAG;
/// Buffer size for one received frame, with space in front for restoring a stripped tag.
pub const ROOM: usize = LONGEST_FRAME + TAG;

/// Frames that the interface accepts in addition to those for its own address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Membership {
    /// Frames for this address, whose first octet is in bits 40 to 47.
    Address(u64),
    /// All multicast frames.
    AllMulticast,
    /// Every frame.
    Promiscuous,
}

/// The outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SentFrame {
    /// The kernel accepted the frame.
    Sent,
    /// The socket's send buffer is full.
    Blocked,
    /// The frame is longer than the interface allows.
    TooLong,
    /// The interface cannot send.
    Failed,
}

/// A packet socket, which receives nothing until it [listens](PacketSocket::listen).
pub struct PacketSocket {
    socket: ProcessFd,
    interface: c_int,
    /// The interface's Ethernet address.
    address: u64,
    loopback: Loopback,
}

/// How frames that this host sends to itself come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loopback {
    /// The interface receives every frame that it sends, so this socket does, too.
    ByInterface,
    /// The interface only transmits. A network card loops a frame for its own address, or a multicast frame, back to
    /// its receivers. To emulate that, this socket captures other sockets' frames on transmit, and its owner delivers
    /// the socket's own frames, which the kernel does not show to it.
    AsNetworkCard,
}

impl PacketSocket {
    /// Opens a packet socket on the interface that has the address `local`.
    ///
    /// # Errors
    ///
    /// [`Error::PacketSocketDenied`] without CAP_NET_RAW; [`Error::NotEthernet`]; [`Error::AddressNotLocal`];
    /// [`Error::Os`].
    pub(crate) fn open(local: IpAddr, receive_buffer: usize) -> Result<Self> {
        let interface = address::interface_index(local)?.cast_signed();
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` takes only integers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if fd < 0 {
            let source = io::Error::last_os_error();
            return Err(match source.kind() {
                io::ErrorKind::PermissionDenied => Error::PacketSocketDenied { source },
                _ => Error::os("socket(AF_PACKET)", source),
            });
        }
        // SAFETY: `fd` is a new, open descriptor that nothing else owns.
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
        // SO_RCVBUFFORCE may exceed net.core.rmem_max, but needs CAP_NET_ADMIN.
        if sockopt::set_socket_recv_buffer_size_force(&self.socket, receive_buffer).is_err() {
            sockopt::set_socket_recv_buffer_size(&self.socket, receive_buffer)
                .map_err(|errno| Error::os("setsockopt(SO_RCVBUF)", errno))?;
        }
        Ok(())
    }

    /// Selects which outgoing frames of this host the socket captures.
    fn select_outgoing(&mut self, hardware_type: u16) -> io::Result<()> {
        if hardware_type == libc::ARPHRD_ETHER {
            self.loopback = Loopback::AsNetworkCard;
            return filter::attach(self.as_fd(), &filter::frames_for(self.address));
        }
        // Linux before 4.20 lacks the option; `receive` drops such frames itself.
        let on: c_int = 1;
        if let Err(error) = self.set_option(libc::PACKET_IGNORE_OUTGOING, &on) {
            tracing::debug!(%error, "the kernel passes frames of this host, too");
        }
        Ok(())
    }

    /// Returns whether a network card would loop this frame back to this host, while the kernel does not show it to the
    /// socket that sent it.
    pub fn takes_back(&self, frame: &[u8]) -> bool {
        let is_for_us = match frame {
            [a, b, c, d, e, f, ..] => {
                a & 1 == 1 || u64::from_be_bytes([0, 0, *a, *b, *c, *d, *e, *f]) == self.address
            }
            _ => false,
        };
        self.loopback == Loopback::AsNetworkCard && is_for_us
    }

    /// Sets an option at level SOL_PACKET.
    fn set_option<T: Copy>(&self, name: c_int, value: &T) -> io::Result<()> {
        socket_option::set(self.socket.as_fd(), (libc::SOL_PACKET, name), value)
    }

    /// Returns the socket address of the interface, with an EtherType.
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
        // SAFETY: `name` is a socket address of the stated length that outlives the call.
        let result = unsafe {
            libc::bind(
                self.socket.as_raw_fd(),
                (&raw const name).cast(),
                size_of_val(&name) as libc::socklen_t,
            )
        };
        checked(result).map(drop)
    }

    /// Returns the bound address, including the interface's hardware type and Ethernet address.
    fn own_name(&self) -> io::Result<libc::sockaddr_ll> {
        let mut name = self.name(0);
        let mut len = size_of_val(&name) as libc::socklen_t;
        // SAFETY: `name` has room for `len` bytes; both outlive the call.
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

    /// Starts to receive the interface's frames.
    pub fn listen(&self) -> io::Result<()> {
        self.bind(ALL)
    }

    /// Stops receiving, and discards the queued packets.
    pub fn be_silent(&self, room: &mut [u8]) -> io::Result<()> {
        self.bind(NO_TYPE)?;
        while self.receive(room)?.is_some() {}
        Ok(())
    }

    /// Adds or drops frames that the interface accepts.
    pub fn set_membership(&self, membership: Membership, join: Join) -> io::Result<()> {
        let mut request = libc::packet_mreq {
            mr_ifindex: self.interface,
            mr_type: 0,
            mr_alen: 6,
            mr_address: [0; 8],
        };
        let kind = match membership {
            // The interface accepts frames for its own address anyway.
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

    /// Receives one frame into `room`, of [`ROOM`] bytes, without blocking. Returns it as on the wire, with its VLAN
    /// tag and checksums, or `None` if nothing is queued. Of the frames that other sockets of this host send, only
    /// those that [a network card would loop back](Self::takes_back) are returned.
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
        // SAFETY: `msghdr` consists of integers and pointers, for which all zeros are valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = name.as_mut_ptr().cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        message.msg_control = (&raw mut control).cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
        // SAFETY: every buffer of the message has its stated length and outlives the call.
        let received = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, flags) };
        if received < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(error),
            };
        }
        // SAFETY: it was zeroed, which is valid, and the kernel has written an address over it.
        let name = unsafe { name.assume_init() };
        Ok(Some(Arrival {
            len: received.cast_unsigned().saturating_sub(VNET_HEADER),
            is_outgoing: name.sll_pkttype == libc::PACKET_OUTGOING,
            header,
            tag: control.tag(&message),
        }))
    }

    /// Sends one frame without blocking.
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
        // SAFETY: `msghdr` consists of integers and pointers, for which all zeros are valid.
        let mut message: libc::msghdr = unsafe { mem::zeroed() };
        message.msg_name = (&raw mut name).cast();
        message.msg_namelen = size_of_val(&name) as libc::socklen_t;
        message.msg_iov = parts.as_mut_ptr();
        message.msg_iovlen = parts.len() as _;
        let fd = self.socket.as_raw_fd();
        // SAFETY: the kernel only reads the buffers of the message, which outlive the call.
        if unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT) } >= 0 {
            return Ok(SentFrame::Sent);
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::EINTR) => Ok(SentFrame::Blocked),
            Some(libc::EMSGSIZE) => Ok(SentFrame::TooLong),
            // The interface's queue was full: the frame is lost, as on the wire.
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

/// Whether an interface starts or stops accepting frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Start accepting them.
    Join,
    /// Stop accepting them, unless something else needs them.
    Leave,
}

/// A received frame that still has to be restored.
struct Arrival {
    len: usize,
    /// Captured on transmit.
    is_outgoing: bool,
    /// A `struct virtio_net_hdr`.
    header: [u8; VNET_HEADER],
    /// The EtherType and value of the VLAN tag that the kernel stripped.
    tag: Option<(u16, u16)>,
}

impl Arrival {
    /// Returns the frame as on the wire. The frame must hold at least its two addresses.
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

/// Space for the one control message that the socket requests, aligned like `struct cmsghdr`.
#[repr(C)]
struct Control([u64; 8]);

impl Control {
    /// Returns the VLAN tag from the auxiliary data of a received message.
    fn tag(&self, message: &libc::msghdr) -> Option<(u16, u16)> {
        // SAFETY: the kernel has filled the control buffer of the message, which is `self`.
        let first = unsafe { libc::CMSG_FIRSTHDR(message).as_ref() }?;
        let needed = size_of::<libc::tpacket_auxdata>();
        // SAFETY: CMSG_LEN only computes with its argument.
        let least = unsafe { libc::CMSG_LEN(needed as u32) } as usize;
        let kind = (first.cmsg_level, first.cmsg_type);
        if kind != (libc::SOL_PACKET, libc::PACKET_AUXDATA) || (first.cmsg_len as usize) < least {
            return None;
        }
        // SAFETY: the message is at least as long as this structure; the read does not assume alignment.
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

    /// Restores a frame as if it had just been received into a buffer.
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
        // UDP's checksum covers the frame from offset 34, after the Ethernet and IPv4 headers, and is 6 bytes further
        // on.
        let (start, offset) = (34_u16, 6_u16);
        let mut header = [0; VNET_HEADER];
        header[0] = NEEDS_CHECKSUM;
        header[6..8].copy_from_slice(&start.to_ne_bytes());
        header[8..10].copy_from_slice(&offset.to_ne_bytes());
        // With checksum offload, the field holds the sum of the pseudo header.
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
