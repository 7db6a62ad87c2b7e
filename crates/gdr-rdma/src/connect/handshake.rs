//! The server's part of greeting and proof, as a state machine, so that several can run at once.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::auth::{SessionKey, SharedKey, Side, TAG};
use super::message::Hello;
use super::service::Terms;
use super::session::{ACCEPTED, REFUSED, Session, refusal};
use super::stream::{Stream, failure, late};
use crate::error::{Error, HandshakeError, HandshakeStep, Result};
use gdr_nic::random_bytes;

/// A connection that is not yet authenticated.
pub(super) struct Handshake {
    stream: TcpStream,
    peer: SocketAddr,
    until: Instant,
    ours: Hello,
    key: Option<SharedKey>,
    /// Why the client is not accepted as a peer, regardless of what it sends.
    refused: Option<HandshakeError>,
    state: State,
    received: Vec<u8>,
    to_send: Vec<u8>,
}

/// What is received next.
enum State {
    /// The client's greeting.
    Greeting,
    /// Its proof that it has the key.
    Proof(SessionKey),
    /// All was received.
    Done(Option<SessionKey>),
    /// The end of the connection, in which the client receives why it is not a peer. The client asks the kernel for the
    /// owner of this side's socket, which has an owner only while it is open.
    End(HandshakeError),
}

/// The progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The client has to send more.
    Waiting,
    /// The client is a peer.
    Done,
}

impl Handshake {
    /// Starts with a connection that was accepted at `now`.
    pub(super) fn new(
        stream: TcpStream,
        peer: SocketAddr,
        Terms { security, service }: Terms<'_>,
        limit: Duration,
        now: Instant,
    ) -> Result<Self> {
        let local = stream
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))?;
        let key = security.key_for(peer, local)?.cloned();
        // Check this now: a client that refuses this side hangs up as soon as it has its greeting.
        let refused = security.check_user(peer, local).err();
        stream
            .set_nonblocking(true)
            .and_then(|()| stream.set_nodelay(true))
            .map_err(|source| Error::os("preparing a TCP socket", source))?;
        let ours = Hello {
            keyed: key.is_some(),
            service,
            nonce: random_bytes()?,
        };
        Ok(Self {
            stream,
            peer,
            until: now + limit,
            to_send: ours.emit().to_vec(),
            ours,
            key,
            refused,
            state: State::Greeting,
            received: Vec::with_capacity(Hello::LEN + TAG),
        })
    }

    pub(super) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns its deadline, which received bytes do not extend.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Extends the deadline by the time for which the connection was not served.
    pub(super) fn postpone(&mut self, unserved: Duration) {
        self.until += unserved;
    }

    /// Returns whether no byte was received.
    pub(super) fn is_silent(&self) -> bool {
        self.received.is_empty()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    pub(super) fn interest(&self) -> PollFlags {
        if self.to_send.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        }
    }

    /// Returns the error for a deadline that has passed.
    pub(super) fn late(&mut self) -> Error {
        match std::mem::replace(&mut self.state, State::Greeting) {
            State::End(error) => error.into(),
            _ => late(self.step()),
        }
    }

    /// Returns the step that it waits for.
    fn step(&self) -> HandshakeStep {
        if self.received.len() < Hello::LEN {
            HandshakeStep::Greeting
        } else {
            HandshakeStep::ClientProof
        }
    }

    /// Sends and receives what is possible without waiting.
    pub(super) fn poll(&mut self) -> Result<Progress> {
        loop {
            self.send()?;
            match std::mem::replace(&mut self.state, State::Greeting) {
                State::Greeting => {
                    let is_whole = self.receive(Hello::LEN);
                    // A greeting of another version may be shorter.
                    if let Some(prefix) = self.received.first_chunk() {
                        Hello::check_prefix(prefix)?;
                    }
                    if !is_whole? {
                        return Ok(Progress::Waiting);
                    }
                    self.state = self.after_hello()?;
                }
                State::Proof(key) => {
                    if !self.receive(Hello::LEN + TAG)? {
                        self.state = State::Proof(key);
                        return Ok(Progress::Waiting);
                    }
                    self.prove(&key)?;
                    self.state = State::Done(Some(key));
                }
                State::End(error) => {
                    if self.is_ended() {
                        return Err(error.into());
                    }
                    self.state = State::End(error);
                    return Ok(Progress::Waiting);
                }
                done @ State::Done(_) => {
                    self.state = done;
                    return Ok(match self.to_send.is_empty() {
                        true => Progress::Done,
                        false => Progress::Waiting,
                    });
                }
            }
        }
    }

    /// Processes the client's greeting, which was received completely.
    fn after_hello(&mut self) -> Result<State> {
        let bytes = self.received.get(Hello::PREFIX..);
        let theirs = match bytes.and_then(<[u8]>::first_chunk) {
            Some(bytes) => Hello::parse(bytes)?,
            None => return Err(HandshakeError::Malformed("it ends too early").into()),
        };
        self.ours.check_peer(&theirs)?;
        if let Some(error) = self.refused.take() {
            let reason = format!("your side {error}");
            self.to_send.extend(refusal(&reason));
            return Ok(State::End(error));
        }
        Ok(match &self.key {
            Some(key) => State::Proof(SessionKey::new(key, &theirs.nonce, &self.ours.nonce)),
            None => State::Done(None),
        })
    }

    /// Returns whether the client has closed the connection. What it sent is dropped.
    fn is_ended(&mut self) -> bool {
        let mut bytes = [0; 256];
        match self.stream.read(&mut bytes) {
            Ok(count) => count == 0,
            Err(error) => self.wait_or_fail(error).is_err(),
        }
    }

    /// Checks the client's proof, which was received completely, and responds.
    fn prove(&mut self, key: &SessionKey) -> Result<()> {
        let proof = self.received[Hello::LEN..].first_chunk();
        if proof.is_some_and(|proof| key.proves(Side::Client, proof)) {
            self.to_send.push(ACCEPTED);
            self.to_send.extend(key.proof(Side::Server));
            return Ok(());
        }
        self.to_send.push(REFUSED);
        // Best effort: one byte fits, and a client that is gone needs no response.
        let _ = self.send();
        Err(HandshakeError::WrongKey.into())
    }

    fn send(&mut self) -> Result<()> {
        while !self.to_send.is_empty() {
            match self.stream.write(&self.to_send) {
                Ok(count) => {
                    self.to_send.drain(..count);
                }
                Err(error) => return self.wait_or_fail(error),
            }
        }
        Ok(())
    }

    /// Receives until there are `len` bytes in total, but no more, because later bytes belong to the session. Returns
    /// whether they are complete.
    fn receive(&mut self, len: usize) -> Result<bool> {
        let mut bytes = [0; Hello::LEN + TAG];
        while self.received.len() < len {
            let room = &mut bytes[..len - self.received.len()];
            match self.stream.read(room) {
                Ok(0) => {
                    let step = self.step();
                    return Err(HandshakeError::Gone { step }.into());
                }
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.wait_or_fail(error).map(|()| false),
            }
        }
        Ok(true)
    }

    fn wait_or_fail(&self, error: io::Error) -> Result<()> {
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
            _ => Err(failure(error, self.step())),
        }
    }

    /// Returns the session.
    pub(super) fn finish(self) -> Result<Session> {
        let key = match self.state {
            State::Done(key) => key,
            State::Greeting | State::Proof(_) | State::End(_) => {
                return Err(HandshakeError::Malformed("it ends too early").into());
            }
        };
        Ok(Session::after_handshake(
            Stream::new(self.stream)?,
            Side::Server,
            key,
        ))
    }

    /// Closes the connection; bytes sent before still arrive.
    pub(super) fn close(self) {
        // This fails if the client has closed it.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("peer", &self.peer)
            .field("received", &self.received.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use std::net::TcpListener;

    use super::super::session::Security;
    use super::*;

    #[test]
    fn bytes_that_arrive_slowly_do_not_extend_the_deadline() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (stream, peer) = listener.accept().unwrap();
        let (start, limit) = (Instant::now(), Duration::from_secs(2));
        let security = Security::Loopback;
        let terms = Terms::from(&security);
        let mut handshake = Handshake::new(stream, peer, terms, limit, start).unwrap();
        for (sent, byte) in b"gdr-rdma".chunks(1).enumerate() {
            client.write_all(byte).unwrap();
            while handshake.received.len() == sent {
                assert_eq!(handshake.poll().unwrap(), Progress::Waiting);
            }
            assert_eq!(handshake.until(), start + limit);
        }
        assert!(handshake.late().to_string().contains("the peer's greeting"));
    }
}
