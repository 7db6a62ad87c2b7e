//! Sessions: a connection from greeting to end.

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener};

use super::message::{FrameHeader, FrameKind, Hello, Introduction, MOST_PAYLOAD};
use super::secret::{SessionKey, SharedKey, Side, TAG};
use super::stream::{self, Stream};
use crate::deadline::Deadline;
use crate::error::{Error, HandshakeError, Result};
use crate::random;

/// The server's word on the client's proof.
const ACCEPTED: u8 = 1;
const REFUSED: u8 = 0;

/// Whom to talk to.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Security {
    /// Anybody on this host by a loopback address, and nobody else.
    Loopback,
    /// Whoever knows the key, wherever it is.
    Key(SharedKey),
    /// Anybody at all: for networks that keep strangers out themselves.
    Insecure,
}

/// Waits for peers.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Listens on a TCP address; port 0 takes any.
    ///
    /// # Errors
    /// [`Error::ListenPortInUse`], [`Error::AddressNotLocal`], [`Error::Os`].
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::ListenPortInUse { address, source },
            io::ErrorKind::AddrNotAvailable => Error::AddressNotLocal { address, source },
            _ => Error::os("listening on a TCP port", source),
        })?;
        listener
            .set_nonblocking(true)
            .map_err(|source| Error::os("preparing a TCP socket", source))?;
        Ok(Self(listener))
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn address(&self) -> Result<SocketAddr> {
        self.0
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))
    }

    /// Takes the next peer, up to the end of greeting and proof. A peer that fails these ends this
    /// call with its error, but not the listener.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`Error::Os`].
    pub fn accept(&self, security: &Security, deadline: Deadline) -> Result<Session> {
        let stream = stream::accept(&self.0, deadline)?;
        Session::greet(stream, Side::Server, security, deadline)
    }
}

/// A connection to a peer that has greeted and, where a key was asked for, proved that it knows
/// it.
pub struct Session {
    stream: Stream,
    side: Side,
    key: Option<SessionKey>,
    /// Frames sent and received.
    sent: u64,
    received: u64,
}

impl Session {
    /// Connects to a [`Listener`].
    ///
    /// # Errors
    /// [`Error::Connect`], [`Error::Deadline`], [`Error::Handshake`], [`Error::Os`].
    pub fn connect(address: SocketAddr, security: &Security, deadline: Deadline) -> Result<Self> {
        let stream = Stream::connect(address, deadline)?;
        Self::greet(stream, Side::Client, security, deadline)
    }

    fn greet(
        mut stream: Stream,
        side: Side,
        security: &Security,
        deadline: Deadline,
    ) -> Result<Self> {
        let step = "the peer's greeting";
        let peer = stream.peer()?.ip().to_canonical();
        let local = stream.local()?.ip().to_canonical();
        let on_this_host = peer.is_loopback() && local.is_loopback();
        let key = match security {
            Security::Loopback if !on_this_host => {
                return Err(HandshakeError::KeyNeeded(peer).into());
            }
            Security::Loopback | Security::Insecure => None,
            Security::Key(key) => Some(key),
        };
        let ours = Hello {
            keyed: key.is_some(),
            nonce: random::bytes()?,
        };
        stream.send(&ours.emit(), step, deadline)?;
        let mut bytes = [0; Hello::LEN];
        stream.receive(&mut bytes, step, deadline)?;
        let theirs = Hello::parse(&bytes)?;
        if ours.keyed != theirs.keyed {
            let theirs = theirs.keyed;
            return Err(HandshakeError::KeyMissing { theirs }.into());
        }
        let key = key.map(|key| match side {
            Side::Client => SessionKey::new(key, &ours.nonce, &theirs.nonce),
            Side::Server => SessionKey::new(key, &theirs.nonce, &ours.nonce),
        });
        if let Some(key) = &key {
            match side {
                Side::Client => prove_first(&mut stream, key, deadline)?,
                Side::Server => prove_second(&mut stream, key, deadline)?,
            }
        }
        Ok(Self {
            stream,
            side,
            key,
            sent: 0,
            received: 0,
        })
    }

    /// The TCP address of the peer.
    ///
    /// # Errors
    /// [`Error::Os`].
    pub fn peer(&self) -> Result<SocketAddr> {
        self.stream.peer()
    }

    /// Whether the peer proved that it knows the shared key.
    pub fn is_authenticated(&self) -> bool {
        self.key.is_some()
    }

    /// Tells the peer what it must know, and learns the same of it.
    ///
    /// # Errors
    /// [`HandshakeError::Mtu`] where the two would use different packets; [`Error::Deadline`],
    /// [`Error::Handshake`], [`Error::Os`].
    pub fn introduce(&mut self, ours: &Introduction, deadline: Deadline) -> Result<Introduction> {
        let step = "the peer's introduction";
        self.send_frame(FrameKind::Introduction, &ours.emit()?, step, deadline)?;
        let payload = self.receive_frame(FrameKind::Introduction, step, deadline)?;
        let mut theirs = Introduction::parse(&payload)?;
        if ours.path_mtu != theirs.path_mtu {
            let (ours, theirs) = (ours.path_mtu, theirs.path_mtu);
            return Err(HandshakeError::Mtu { ours, theirs }.into());
        }
        // A link-local address means something on one interface only: the one that TCP came by.
        if let (SocketAddr::V6(address), SocketAddr::V6(tcp)) =
            (&mut theirs.endpoint.address, self.stream.peer()?)
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(tcp.scope_id());
        }
        Ok(theirs)
    }

    /// Returns when the peer has come to the same barrier.
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`Error::Os`].
    pub fn barrier(&mut self, deadline: Deadline) -> Result<()> {
        let step = "the peer's arrival at a barrier";
        self.send_frame(FrameKind::Barrier, &[], step, deadline)?;
        self.receive_frame(FrameKind::Barrier, step, deadline)?;
        Ok(())
    }

    /// Sends a message of the program's own, 64 KiB at most.
    ///
    /// # Errors
    /// [`HandshakeError::TooLong`], with nothing sent; [`Error::Deadline`], [`Error::Os`].
    pub fn send(&mut self, message: &[u8], deadline: Deadline) -> Result<()> {
        self.send_frame(FrameKind::Program, message, "sending a message", deadline)
    }

    /// Receives a message that the peer [sent](Session::send).
    ///
    /// # Errors
    /// [`Error::Deadline`], [`Error::Handshake`], [`Error::Os`].
    pub fn receive(&mut self, deadline: Deadline) -> Result<Vec<u8>> {
        self.receive_frame(FrameKind::Program, "a message of the peer", deadline)
    }

    fn send_frame(
        &mut self,
        kind: FrameKind,
        payload: &[u8],
        step: &'static str,
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
        step: &'static str,
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
        if theirs != kind {
            return Err(HandshakeError::Malformed("a message out of turn").into());
        }
        Ok(payload)
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("side", &self.side)
            .field("authenticated", &self.is_authenticated())
            .finish_non_exhaustive()
    }
}

/// The client's half. The server proves nothing to who has proved nothing.
fn prove_first(stream: &mut Stream, key: &SessionKey, deadline: Deadline) -> Result<()> {
    let step = "the server's proof of the shared key";
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

/// The server's half.
fn prove_second(stream: &mut Stream, key: &SessionKey, deadline: Deadline) -> Result<()> {
    let step = "the client's proof of the shared key";
    let mut proof = [0; TAG];
    stream.receive(&mut proof, step, deadline)?;
    if !key.proves(Side::Client, &proof) {
        stream.send(&[REFUSED], step, deadline)?;
        return Err(HandshakeError::WrongKey.into());
    }
    let mut answer = [ACCEPTED; 1 + TAG];
    answer[1..].copy_from_slice(&key.proof(Side::Server));
    stream.send(&answer, step, deadline)
}
