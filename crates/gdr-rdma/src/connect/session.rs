//! Sessions: connections to peers after the greeting.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::auth::{SessionKey, SharedKey, Side, TAG};
use super::message::{FrameHeader, FrameKind, Hello, MOST_PAYLOAD, PeerInfo};
use super::service::Terms;
use super::stream::Stream;
use crate::device::Device;
use crate::error::{Error, HandshakeError, HandshakeStep, NicError, Result, SocketError};
use crate::types::{Endpoint, PeerText};
use gdr_nic::Deadline;
use gdr_nic::random_bytes;
use gdr_process::PeerUser;

/// The server's response to the client's proof.
pub(super) const ACCEPTED: u8 = 1;
pub(super) const REFUSED: u8 = 0;

/// The longest reason of a refusal in bytes.
const MOST_REASON: usize = 1000;

/// UDP ports below this belong to well-known services (RFC 6335); RDMA devices do not use them.
const FIRST_PORT: u16 = 1024;

/// Which peers are accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Security {
    /// Any process of the same user or of root on this host, connected through a loopback address.
    ///
    /// Both sides ask the kernel for the user of the socket at the other end, so neither a client nor a
    /// process that took the port first can belong to another user.
    Loopback,
    /// Any peer that has the key.
    Key(SharedKey),
    /// Any peer; only for trusted networks.
    Insecure,
}

/// A connection to a peer that has sent its greeting and, if a key was required, has proved that it has
/// the key.
pub struct Session {
    stream: Stream,
    side: Side,
    key: Option<SessionKey>,
    /// The numbers of frames sent and received.
    sent: u64,
    received: u64,
}

impl Session {
    /// Connects to a [`Listener`](super::Listener).
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Deadline`], [`Error::Handshake`], [`SocketError::Os`](crate::SocketError::Os). With
    /// [`Security::Loopback`], [`HandshakeError::OtherUser`] if another user's process listens there, before
    /// it receives anything but a greeting.
    pub fn connect<'a>(
        address: SocketAddr,
        terms: impl Into<Terms<'a>>,
        deadline: Deadline,
    ) -> Result<Self> {
        let stream = Stream::connect(address, deadline)?;
        Self::handshake(stream, terms.into(), deadline)
    }

    /// Like [`Session::connect`], but connects from the given address of this host. Without a key, the
    /// peer accepts only the source address of the connection as this side's RDMA address, so pass the
    /// device's address.
    ///
    /// # Errors
    /// Same as [`Session::connect`]; [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal).
    pub fn connect_from<'a>(
        from: IpAddr,
        address: SocketAddr,
        terms: impl Into<Terms<'a>>,
        deadline: Deadline,
    ) -> Result<Self> {
        let stream = Stream::connect_from(from, address, deadline)?;
        Self::handshake(stream, terms.into(), deadline)
    }

    /// Like [`Session::connect`], for queue pairs of `device`. Without a key, it connects from the device's
    /// own address, which is the only RDMA address that the peer accepts.
    ///
    /// # Errors
    /// Same as [`Session::connect`].
    pub fn connect_for<'a>(
        device: &Device,
        address: SocketAddr,
        terms: impl Into<Terms<'a>>,
        deadline: Deadline,
    ) -> Result<Self> {
        let from = device.address().ip();
        let terms = terms.into();
        let anywhere = || Self::connect(address, terms, deadline);
        // With a key the peer accepts any RDMA address, and TCP may use another interface.
        if matches!(terms.security, Security::Key(_)) || from.is_ipv4() != address.is_ipv4() {
            return anywhere();
        }
        match Self::connect_from(from, address, terms, deadline) {
            // The GID of a NIC need not be an address of this host.
            Err(Error::Nic(NicError::Socket(SocketError::AddressNotLocal { .. }))) => anywhere(),
            session => session,
        }
    }

    /// Makes a session of a connection after greeting and proof.
    pub(super) fn after_handshake(stream: Stream, side: Side, key: Option<SessionKey>) -> Self {
        Self {
            stream,
            side,
            key,
            sent: 0,
            received: 0,
        }
    }

    /// Returns the reason of a peer that has refused this side and hung up: its socket has no owner any more.
    fn last_words(mut self, deadline: Deadline) -> Option<Error> {
        let is_due = self.watch().is_ok_and(|watch| watch.is_due());
        let said = is_due.then(|| self.receive(deadline).err()).flatten();
        said.filter(|said| matches!(said, Error::Handshake(HandshakeError::Refused(_))))
    }

    /// Performs the client's part of the greeting.
    fn handshake(mut stream: Stream, terms: Terms<'_>, deadline: Deadline) -> Result<Self> {
        let Terms { security, service } = terms;
        let step = HandshakeStep::Greeting;
        let key = security.key_for(stream.peer()?, stream.local()?)?;
        let ours = Hello {
            keyed: key.is_some(),
            service,
            nonce: random_bytes()?,
        };
        stream.send(&ours.emit(), step, deadline)?;
        let mut prefix = [0; Hello::PREFIX];
        stream.receive(&mut prefix, step, deadline)?;
        Hello::check_prefix(&prefix)?;
        let mut bytes = [0; Hello::LEN - Hello::PREFIX];
        stream.receive(&mut bytes, step, deadline)?;
        let theirs = Hello::parse(&bytes)?;
        ours.check_peer(&theirs)?;
        // The peer has answered, so it has accepted the connection and its socket has an owner.
        if let Err(refused) = security.check_user(stream.peer()?, stream.local()?) {
            let ended = matches!(refused, HandshakeError::UnknownUser)
                .then(|| Self::after_handshake(stream, Side::Client, None).last_words(deadline));
            return Err(ended.flatten().unwrap_or_else(|| refused.into()));
        }
        let key = key.map(|key| SessionKey::new(key, &ours.nonce, &theirs.nonce));
        if let Some(key) = &key {
            prove_first(&mut stream, key, deadline)?;
        }
        Ok(Self::after_handshake(stream, Side::Client, key))
    }

    /// Returns the peer's TCP address.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn peer(&self) -> Result<SocketAddr> {
        self.stream.peer()
    }

    /// Returns the user ID of the process at the other end, if it is on this host and the kernel knows the user.
    pub fn peer_user(&self) -> Option<u32> {
        let (local, peer) = (self.stream.local().ok()?, self.stream.peer().ok()?);
        PeerUser::number_of_tcp(local, peer)
    }

    /// Returns whether the peer has proved that it has the shared key.
    pub fn is_authenticated(&self) -> bool {
        self.key.is_some()
    }

    /// Sends `ours` to the peer and receives the peer's information. If this side refuses that, it sends the reason.
    ///
    /// # Errors
    /// [`HandshakeError::Mtu`] if the path MTUs differ; [`HandshakeError::OtherAddress`] if the peer
    /// announces another address than its own and did not prove that it has a key;
    /// [`HandshakeError::NotAnAddress`] if no device can have the address;
    /// [`Error::Deadline`], [`Error::Handshake`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn introduce(&mut self, ours: &PeerInfo, deadline: Deadline) -> Result<PeerInfo> {
        let step = HandshakeStep::PeerInfo;
        self.send_frame(FrameKind::PeerInfo, &ours.emit()?, step, deadline)?;
        let payload = self.receive_frame(FrameKind::PeerInfo, step, deadline)?;
        let peer = self.peer()?;
        match self.check_introduction(ours, &payload, peer) {
            Ok(theirs) => Ok(theirs),
            Err(error) => {
                // Best effort: the original error is returned either way.
                let _ = self.refuse(&format!("your side {error}"), deadline);
                Err(error.into())
            }
        }
    }

    /// Parses and checks the peer's introduction.
    fn check_introduction(
        &self,
        ours: &PeerInfo,
        payload: &[u8],
        peer: SocketAddr,
    ) -> std::result::Result<PeerInfo, HandshakeError> {
        let mut theirs = PeerInfo::parse(payload)?;
        self.check_address(&ours.endpoint, &theirs.endpoint, peer.ip().to_canonical())?;
        if ours.path_mtu != theirs.path_mtu {
            let (ours, theirs) = (ours.path_mtu, theirs.path_mtu);
            return Err(HandshakeError::Mtu { ours, theirs });
        }
        // A link-local address is valid only on one interface: the TCP connection's.
        if let (SocketAddr::V6(address), SocketAddr::V6(tcp)) = (&mut theirs.endpoint.address, peer)
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(tcp.scope_id());
        }
        Ok(theirs)
    }

    /// Fails if packets must not be sent to the address that the peer announces.
    fn check_address(
        &self,
        ours: &Endpoint,
        theirs: &Endpoint,
        tcp: IpAddr,
    ) -> std::result::Result<(), HandshakeError> {
        let named = theirs.address;
        let refused = |what| Err(HandshakeError::NotAnAddress { named, what });
        if named == ours.address && theirs.qpn == ours.qpn {
            return refused("this side's own queue pair");
        }
        // On InfiniBand the LID is used, and the address is a GID of its subnet.
        if ours.lid.is_some() {
            return Ok(());
        }
        if self.key.is_none() {
            if named.ip() != tcp {
                return Err(HandshakeError::OtherAddress { tcp, named });
            }
            if named.port() < FIRST_PORT {
                return refused("a UDP port of other services");
            }
        }
        if is_broadcast(named) {
            return refused("a broadcast address");
        }
        Ok(())
    }

    /// Sends the peer the reason why this side does not continue. The peer's next receive fails with
    /// [`HandshakeError::Refused`].
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn refuse(&mut self, reason: &str, deadline: Deadline) -> Result<()> {
        let reason = cut(reason);
        self.send_frame(FrameKind::Refusal, reason, HandshakeStep::Refusal, deadline)
    }

    /// Closes the connection if the peer's host does not respond for `limit`, even while neither side
    /// sends. A busy peer still responds, because its kernel does.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn give_up_after(&self, limit: Duration) -> Result<()> {
        self.stream.give_up_after(limit)
    }

    /// Returns a handle that shows whether the peer sent a message or closed the connection, while
    /// this side waits for something else.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn watch(&self) -> Result<Watch> {
        let failed = |source| Error::os("duplicating a TCP socket", source);
        self.stream.duplicate().map(Watch).map_err(failed)
    }

    /// Waits until the peer has reached the same barrier.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn barrier(&mut self, deadline: Deadline) -> Result<()> {
        let step = HandshakeStep::Barrier;
        self.send_frame(FrameKind::Barrier, &[], step, deadline)?;
        self.receive_frame(FrameKind::Barrier, step, deadline)?;
        Ok(())
    }

    /// Sends a message of the program, of at most 64 KiB.
    ///
    /// # Errors
    /// [`HandshakeError::TooLong`], in which case the message is not sent; [`Error::Deadline`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()> {
        self.send_frame(FrameKind::Program, message, HandshakeStep::Send, deadline)
    }

    /// Receives a message that the peer [sent](Session::send).
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`SocketError::Os`](crate::SocketError::Os).
    pub fn receive(&mut self, deadline: Deadline) -> Result<Vec<u8>> {
        self.receive_frame(FrameKind::Program, HandshakeStep::Receive, deadline)
    }

    fn send_frame(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        step: HandshakeStep,
        deadline: Deadline,
    ) -> Result<()> {
        let len = payload.len();
        if len > MOST_PAYLOAD {
            let most = MOST_PAYLOAD;
            return Err(HandshakeError::TooLong { len, most }.into());
        }
        let header = FrameHeader { kind, len }.emit();
        let mut frame = Vec::with_capacity(header.len() + len + TAG);
        frame.extend(header);
        frame.extend(payload);
        if let Some(key) = &self.key {
            frame.extend(key.tag(self.side, self.sent, &header, payload));
        }
        self.sent += 1;
        self.stream.send(&frame, step, deadline)
    }

    fn receive_frame(
        &mut self,
        kind: FrameKind,
        step: HandshakeStep,
        deadline: Deadline,
    ) -> Result<Vec<u8>> {
        let mut header = [0; FrameHeader::LEN];
        self.stream.receive(&mut header, step, deadline)?;
        let FrameHeader { kind: theirs, len } = FrameHeader::parse(&header)?;
        let mut payload = vec![0; len];
        self.stream.receive(&mut payload, step, deadline)?;
        if let Some(key) = &self.key {
            let mut tag = [0; TAG];
            self.stream.receive(&mut tag, step, deadline)?;
            let side = self.side.other();
            if !key.tags(side, self.received, &header, &payload, &tag) {
                return Err(HandshakeError::WrongKey.into());
            }
        }
        self.received += 1;
        if theirs == FrameKind::Refusal {
            return Err(HandshakeError::Refused(PeerText::from_bytes(&payload)).into());
        }
        if theirs != kind {
            return Err(HandshakeError::Malformed("an unexpected kind of message").into());
        }
        Ok(payload)
    }
}

impl Security {
    /// Returns the key that the peer of a connection must have; fails if there is none and one is
    /// needed.
    pub(super) fn key_for(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> std::result::Result<Option<&SharedKey>, HandshakeError> {
        let peer = peer.ip().to_canonical();
        let loopback = peer.is_loopback() && local.ip().to_canonical().is_loopback();
        match self {
            Self::Loopback if !loopback => Err(HandshakeError::KeyNeeded(peer)),
            Self::Loopback | Self::Insecure => Ok(None),
            Self::Key(key) => Ok(Some(key)),
        }
    }

    /// Fails if the peer of a connection within this host must be of another user than it is. Root is
    /// accepted, as by ssh-agent(1): it can read and change the memory of every process anyway.
    pub(super) fn check_user(
        &self,
        peer: SocketAddr,
        local: SocketAddr,
    ) -> std::result::Result<(), HandshakeError> {
        if !matches!(self, Self::Loopback) {
            return Ok(());
        }
        match PeerUser::of_tcp(local, peer) {
            PeerUser::Own | PeerUser::Root => Ok(()),
            PeerUser::Other(uid) => Err(HandshakeError::OtherUser { uid }),
            PeerUser::Unknown => Err(HandshakeError::UnknownUser),
        }
    }
}

/// Watches the connection of a [`Session`]: shows whether the peer has sent something, and can end the
/// connection.
#[derive(Debug)]
pub struct Watch(TcpStream);

impl Watch {
    /// Returns whether there is something to receive, a message or the end of the connection. Does not
    /// wait.
    pub fn is_due(&self) -> bool {
        self.is_due_within(Duration::ZERO)
    }

    /// Waits until there is something to receive, and returns whether there is: `false` after the deadline,
    /// or if a signal interrupted the wait.
    pub fn wait(&self, deadline: Deadline) -> bool {
        self.is_due_within(deadline.remaining())
    }

    /// Ends the connection for both sides. May be called from any thread; waiting calls of the session fail
    /// with [`HandshakeError::Gone`].
    pub fn end_connection(&self) {
        // It fails only for a connection that has ended.
        let _ended = self.0.shutdown(Shutdown::Both);
    }

    fn is_due_within(&self, limit: Duration) -> bool {
        let fd = self.0.as_fd();
        // A limit beyond the range of the kernel's type counts as no limit.
        let limit = Timespec::try_from(limit).ok();
        let mut interest = [PollFd::new(&fd, PollFlags::IN)];
        // If poll(2) fails, a receive reports why.
        poll(&mut interest, limit.as_ref()).is_ok_and(|ready| ready > 0)
    }
}

/// Returns a frame with the reason of a refusal, for a session without a key.
pub(super) fn refusal(reason: &str) -> Vec<u8> {
    let (kind, reason) = (FrameKind::Refusal, cut(reason));
    let header = FrameHeader {
        kind,
        len: reason.len(),
    };
    [&header.emit()[..], reason].concat()
}

/// Returns as much of a reason as is sent. The receiver replaces a character that is cut in two.
fn cut(reason: &str) -> &[u8] {
    &reason.as_bytes()[..reason.len().min(MOST_REASON)]
}

/// Returns whether it is a broadcast address of one of the host's networks. Connecting a UDP socket sends nothing.
fn is_broadcast(address: SocketAddr) -> bool {
    let errno = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
        .and_then(|socket| socket.connect(address))
        .err()
        .and_then(|error| error.raw_os_error());
    address.is_ipv4() && errno == Some(libc::EACCES)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("side", &self.side)
            .field("authenticated", &self.is_authenticated())
            .finish_non_exhaustive()
    }
}

/// Performs the client's part of the proof. The server sends its proof only to a client that has the key.
fn prove_first(stream: &mut Stream, key: &SessionKey, deadline: Deadline) -> Result<()> {
    let step = HandshakeStep::ServerProof;
    stream.send(&key.proof(Side::Client), step, deadline)?;
    let mut verdict = [0];
    stream.receive(&mut verdict, step, deadline)?;
    if verdict != [ACCEPTED] {
        return Err(HandshakeError::WrongKey.into());
    }
    let mut proof = [0; TAG];
    stream.receive(&mut proof, step, deadline)?;
    if key.proves(Side::Server, &proof) {
        return Ok(());
    }
    Err(HandshakeError::WrongKey.into())
}
