//! How two devices of one host set up a ring: the names at which they listen, and the messages that they exchange.
//!
//! The sending device connects to the other one's name, and sends [`Hello`] with the ring's segment and the eventfd
//! that wakes the sender. The receiving device answers with [`Welcome`] and the eventfd that wakes the receiver. The
//! connection stays open while the ring exists, and on it the sending device passes the descriptors of GPU memory
//! ([`ExportNumber`]).

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use gdr_process::PeerUser;
use gdr_roce::Qpn;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use super::process_memory::Token;
use gdr_udp::ProcessFd;
use gdr_udp::QpnRange;
use gdr_udp::Slot;
use gdr_udp::local_socket::{self, Connected};

/// The prefix of each message. It changes whenever the messages or the layout of segments do.
const VERSION: &str = "gdr wire 5";
/// The maximum length of a message in bytes.
const MOST: usize = 160;
/// The maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 64;

/// The request of the sending device: its identity, and the queue pair to reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    /// The address and port of the sending device.
    pub(super) source: SocketAddr,
    /// A queue pair of the receiving device.
    pub(super) qpn: Qpn,
    /// Proves to the receiver whether it can read the memory of this process.
    pub(super) token: Token,
}

/// The queue pairs that the ring reaches: all whose numbers have `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Welcome {
    pub(super) mask: u32,
    pub(super) value: u32,
}

impl Welcome {
    pub(crate) fn to(range: QpnRange) -> Self {
        let (mask, value) = range.mask_and_value().unwrap_or((0, 0));
        Self { mask, value }
    }
}

/// The number of the export that the accompanying descriptor opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExportNumber(pub(super) u64);

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (qpn, token) = (self.qpn.get(), self.token);
        write!(
            f,
            "{VERSION} {} {qpn} {} {}",
            self.source, token.addr, token.value
        )
    }
}

impl fmt::Display for Welcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} {} {}", self.mask, self.value)
    }
}

impl fmt::Display for ExportNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{VERSION} {}", self.0)
    }
}

/// Returns the words after the version, if there are exactly `N`.
fn words<const N: usize>(message: &[u8]) -> Option<[&str; N]> {
    let text = str::from_utf8(message).ok()?;
    let words = text.strip_prefix(VERSION)?.strip_prefix(' ')?.split(' ');
    words.collect::<Vec<_>>().try_into().ok()
}

impl Hello {
    fn parse(message: &[u8]) -> Option<Self> {
        let [source, qpn, addr, value] = words(message)?;
        Some(Self {
            source: source.parse().ok()?,
            qpn: Qpn::new(qpn.parse().ok()?),
            token: Token {
                addr: addr.parse().ok()?,
                value: value.parse().ok()?,
            },
        })
    }
}

impl Welcome {
    fn parse(message: &[u8]) -> Option<Self> {
        let [mask, value] = words(message)?;
        Some(Self {
            mask: mask.parse().ok()?,
            value: value.parse().ok()?,
        })
    }
}

impl ExportNumber {
    fn parse(message: &[u8]) -> Option<Self> {
        let [number] = words(message)?;
        number.parse().ok().map(Self)
    }
}

/// Returns the socket name of the devices that have the port at `address` for themselves, or of the device that has a
/// slot of a shared port.
fn name(address: SocketAddr, slot: Option<Slot>) -> Result<SocketAddrUnix, Errno> {
    let name = match slot {
        Some(slot) => format!("gdr-roce/{address}/wire/{}", slot.index()),
        None => format!("gdr-roce/{address}/wire"),
    };
    SocketAddrUnix::new_abstract_name(name.as_bytes())
}

/// Listens for devices that want to send to the queue pairs of `range` at `address`. Returns `None` if another process
/// has the name.
pub(super) fn listen(address: SocketAddr, range: QpnRange) -> Result<Option<ProcessFd>, Errno> {
    let slot = match range {
        QpnRange::Slot(slot) => Some(slot),
        QpnRange::All | QpnRange::Shard(_) => None,
    };
    local_socket::listen(&name(address, slot)?, SocketType::SEQPACKET, BACKLOG)
}

/// Connects to the device that has a queue pair. Returns `None` unless it is a device of this host and user.
pub(super) fn connect(address: SocketAddr, qpn: Qpn) -> Result<Option<ProcessFd>, Errno> {
    // A device that shares its port has its slot in the name; any other device does not.
    for slot in [Some(Slot::of(qpn)), None] {
        if let Connected::To(socket) =
            local_socket::connect(&name(address, slot)?, SocketType::SEQPACKET)?
            && is_of_own_user(socket.as_fd())
        {
            return Ok(Some(socket.into()));
        }
    }
    Ok(None)
}

/// Accepts a connection. Returns `None` if it comes from another user.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<Option<ProcessFd>, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::accept_with(listener, flags)?;
    Ok(is_of_own_user(socket.as_fd()).then(|| socket.into()))
}

fn is_of_own_user(socket: BorrowedFd<'_>) -> bool {
    PeerUser::of_unix(socket).0 == PeerUser::Own
}

/// Returns whether this host has an address, so that one of its devices can use it.
fn is_local(address: IpAddr) -> bool {
    UdpSocket::bind((address, 0)).is_ok()
}

/// Sends a message with descriptors, without waiting.
pub(super) fn send(
    socket: BorrowedFd<'_>,
    message: &impl fmt::Display,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(descriptors));
    rustix::net::sendmsg(
        socket,
        &[IoSlice::new(message.to_string().as_bytes())],
        &mut control,
        // Without NOSIGNAL, a closed peer would raise SIGPIPE, which ends this process.
        SendFlags::NOSIGNAL | SendFlags::DONTWAIT,
    )?;
    Ok(())
}

/// Receives the first message of a device, with the ring's segment and the eventfd that wakes the device.
pub(super) fn receive_hello(socket: BorrowedFd<'_>) -> Result<(Hello, [OwnedFd; 2]), Errno> {
    let (hello, descriptors) = receive(socket, Hello::parse)?;
    // Make the doorbell nonblocking: an engine must never wait for it, whatever the other process has passed.
    rustix::io::ioctl_fionbio(&descriptors[1], true)?;
    // The message can name any source, but packets from other hosts must not be forged through a ring.
    match is_local(hello.source.ip()) {
        true => Ok((hello, descriptors)),
        false => Err(Errno::ADDRNOTAVAIL),
    }
}

/// Receives the answer, with the eventfd that wakes the receiver.
pub(super) fn receive_welcome(socket: BorrowedFd<'_>) -> Result<(Welcome, [OwnedFd; 1]), Errno> {
    let (welcome, [doorbell]) = receive(socket, Welcome::parse)?;
    // Make it nonblocking: an engine must never wait for it, whatever the other process has passed.
    rustix::io::ioctl_fionbio(&doorbell, true)?;
    Ok((welcome, [doorbell]))
}

/// Receives the descriptor of an export, or `None` in its place if this process cannot open one more.
///
/// # Errors
/// `EAGAIN` if no message has arrived yet; after any other error but `EINTR`, none will.
pub(super) fn receive_export(
    socket: BorrowedFd<'_>,
) -> Result<(ExportNumber, Option<OwnedFd>), Errno> {
    let (number, descriptors) = receive_message(socket, ExportNumber::parse)?;
    Ok((number, descriptors.into_iter().next()))
}

fn receive<T, const N: usize>(
    socket: BorrowedFd<'_>,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<(T, [OwnedFd; N]), Errno> {
    let (parsed, descriptors) = receive_message(socket, parse)?;
    let descriptors = descriptors.try_into().map_err(|_| Errno::PROTO)?;
    Ok((parsed, descriptors))
}

fn receive_message<T>(
    socket: BorrowedFd<'_>,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<(T, Vec<OwnedFd>), Errno> {
    let mut message = [0; MOST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            // Take ownership of all descriptors, so that surplus ones are closed.
            descriptors.extend(rights);
        }
    }
    let parsed = parse(&message[..received.bytes.min(MOST)]).ok_or(Errno::PROTO)?;
    Ok((parsed, descriptors))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_survive_and_any_bytes_are_read_or_refused(
            port: u16, qpn: u32, addr: u64, mask: u32, value: u32, bytes: Vec<u8>,
        ) {
            for ip in ["127.0.0.1", "fe80::1"] {
                let source = SocketAddr::new(ip.parse().unwrap(), port);
                let token = Token { addr, value: value.into() };
                let hello = Hello { source, qpn: Qpn::new(qpn), token };
                prop_assert_eq!(Hello::parse(hello.to_string().as_bytes()), Some(hello));
            }
            let welcome = Welcome { mask, value };
            prop_assert_eq!(Welcome::parse(welcome.to_string().as_bytes()), Some(welcome));
            let number = ExportNumber(addr);
            prop_assert_eq!(ExportNumber::parse(number.to_string().as_bytes()), Some(number));
            let _ = (Hello::parse(&bytes), Welcome::parse(&bytes), ExportNumber::parse(&bytes));
        }
    }

    #[test]
    fn a_device_of_another_version_or_host_is_refused() {
        assert_eq!(Hello::parse(b"gdr wire 2 127.0.0.1:1 5 0 0"), None);
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        let said = |source: &str, descriptors: &[BorrowedFd<'_>]| {
            let hello = Hello {
                source: source.parse().unwrap(),
                qpn: Qpn::new(5),
                token: Token { addr: 1, value: 2 },
            };
            send(sender.as_fd(), &hello, descriptors).unwrap();
            receive_hello(receiver.as_fd()).map(|(hello, _)| hello.source)
        };
        let two = [sender.as_fd(), receiver.as_fd()];
        let own = "127.0.0.1:4791".parse().unwrap();
        assert_eq!(said("127.0.0.1:4791", &two), Ok(own));
        // An address for documentation (RFC 5737), which no host has.
        assert_eq!(said("192.0.2.1:4791", &two), Err(Errno::ADDRNOTAVAIL));
        assert_eq!(said("127.0.0.1:4791", &two[..1]), Err(Errno::PROTO));
    }
}
