//! Listening for peers.

use std::cmp::Reverse;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::handshake::{Handshake, Progress};
use super::service::{Service, Terms};
use super::session::{Security, Session};
use super::stream::late;
use crate::error::{Error, HandshakeError, HandshakeStep, Result, SocketError};
use gdr_nic::Deadline;
use gdr_process::lock::lock;

/// The default limit for greeting and proof of a connection, which take two round trips.
const LIMIT: Duration = Duration::from_secs(2);
/// How many connections are handled at a time.
const MOST: usize = 32;
/// How many connections are accepted before the others are polled again.
const AT_ONCE: usize = 8;
/// How long to leave connections in the kernel's queue if the process has no descriptor or no memory
/// for them.
const PAUSE: Duration = Duration::from_millis(100);

/// Waits for peers.
///
/// Other connections, such as port scans, health checks or clients without the key, do not delay a
/// peer. Up to 32 connections are handled at a time, each for at most two seconds, however slowly its
/// bytes arrive. If there are more, the address with the most connections loses its oldest one that has
/// sent nothing.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    limit: Duration,
    pending: Mutex<Pending>,
    failed: AtomicU64,
}

/// The handshakes that were in progress when the last call ended.
#[derive(Debug, Default)]
struct Pending {
    handshakes: Vec<(Security, Service, Handshake)>,
    /// When it ended.
    since: Option<Instant>,
}

impl Listener {
    /// Listens on a TCP address; port 0 picks a free port.
    ///
    /// # Errors
    /// [`Error::ListenPortInUse`], [`SocketError::AddressNotLocal`](crate::SocketError::AddressNotLocal), [`SocketError::Os`](crate::SocketError::Os).
    pub fn bind(address: SocketAddr) -> Result<Self> {
        let socket = TcpListener::bind(address).map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => Error::ListenPortInUse { address, source },
            io::ErrorKind::AddrNotAvailable => {
                SocketError::AddressNotLocal { address, source }.into()
            }
            _ => Error::os("listening on a TCP port", source),
        })?;
        socket
            .set_nonblocking(true)
            .map_err(|source| Error::os("preparing a TCP socket", source))?;
        Ok(Self {
            socket,
            limit: LIMIT,
            pending: Mutex::default(),
            failed: AtomicU64::new(0),
        })
    }

    /// Sets the time limit for a connection's greeting and proof.
    #[must_use]
    pub fn greeting_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the address that it listens on.
    ///
    /// # Errors
    /// [`SocketError::Os`](crate::SocketError::Os).
    pub fn address(&self) -> Result<SocketAddr> {
        self.socket
            .local_addr()
            .map_err(|source| Error::os("getsockname", source))
    }

    /// Returns how many connections were closed because they did not come from a peer.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Accepts the next peer, after its greeting and proof. Connections that fail either are closed,
    /// counted and logged, and the wait continues.
    ///
    /// # Errors
    /// [`Error::Deadline`] if there was no connection, [`Error::NoPeer`] if none came from a peer;
    /// [`Error::ListenNeedsKey`] at once; [`SocketError::Os`](crate::SocketError::Os).
    pub fn accept<'a>(&self, terms: impl Into<Terms<'a>>, deadline: Deadline) -> Result<Session> {
        self.accept_noting(terms, deadline, |_, _| ())
    }

    /// Like [`Listener::accept`]; calls `note` for each connection that failed, with the error.
    ///
    /// # Errors
    /// Same as [`Listener::accept`].
    pub fn accept_noting<'a>(
        &self,
        terms: impl Into<Terms<'a>>,
        deadline: Deadline,
        mut note: impl FnMut(SocketAddr, &Error),
    ) -> Result<Session> {
        let terms = terms.into();
        self.check(terms.security)?;
        let mut note = |peer: SocketAddr, error: &Error| {
            self.failed.fetch_add(1, Ordering::Relaxed);
            tracing::info!(%peer, %error, "a connection is not a peer's");
            note(peer, error);
        };
        let now = Instant::now();
        let Pending { handshakes, since } = std::mem::take(&mut *lock(&self.pending));
        let unserved = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        let mut reception = Reception {
            incoming: &self.socket,
            terms,
            limit: self.limit,
            handshakes: Vec::new(),
            accept_from: now,
        };
        for (security, service, mut handshake) in handshakes {
            if security == *terms.security && service == terms.service {
                handshake.postpone(unserved);
                reception.handshakes.push(handshake);
            }
        }
        let outcome = reception.run(deadline, &mut note);
        let left = reception.handshakes.into_iter();
        let mut pending = lock(&self.pending);
        pending
            .handshakes
            .extend(left.map(|handshake| (terms.security.clone(), terms.service, handshake)));
        pending.since = Some(Instant::now());
        drop(pending);
        outcome
    }

    /// Checks that peers can be accepted at this address, to detect a problem before the first
    /// [`Listener::accept`].
    ///
    /// # Errors
    /// [`Error::ListenNeedsKey`]; [`SocketError::Os`](crate::SocketError::Os).
    pub fn check(&self, security: &Security) -> Result<()> {
        let address = self.address()?;
        let ip = address.ip().to_canonical();
        // An unspecified address includes the loopback address.
        if *security == Security::Loopback && !ip.is_loopback() && !ip.is_unspecified() {
            return Err(Error::ListenNeedsKey { address });
        }
        Ok(())
    }
}

/// A source of connections.
trait Incoming {
    fn fd(&self) -> BorrowedFd<'_>;

    /// Accepts the next connection, without waiting.
    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)>;
}

impl Incoming for TcpListener {
    fn fd(&self) -> BorrowedFd<'_> {
        self.as_fd()
    }

    fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        Self::accept(self)
    }
}

/// What an error of accept(2) means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// There is no connection.
    Empty,
    /// This connection failed; the next one may be accepted.
    Connection,
    /// There are no descriptors or no memory.
    Exhausted,
    /// The listener failed.
    Listener,
}

impl Refusal {
    fn of(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Self::Empty,
            // accept(2), "Error handling": pending network errors of the new socket.
            Some(
                libc::EINTR
                | libc::ECONNABORTED
                | libc::ENETDOWN
                | libc::EPROTO
                | libc::ENOPROTOOPT
                | libc::EHOSTDOWN
                | libc::ENONET
                | libc::EHOSTUNREACH
                | libc::EOPNOTSUPP
                | libc::ENETUNREACH
                | libc::ETIMEDOUT
                | libc::ECONNRESET
                | libc::EPERM,
            ) => Self::Connection,
            Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) => Self::Exhausted,
            _ => Self::Listener,
        }
    }
}

/// Handshakes, until one of them yields a peer.
struct Reception<'a, I> {
    incoming: &'a I,
    terms: Terms<'a>,
    limit: Duration,
    /// The oldest first.
    handshakes: Vec<Handshake>,
    /// When the next connection may be accepted.
    accept_from: Instant,
}

impl<I: Incoming> Reception<'_, I> {
    fn run(
        &mut self,
        deadline: Deadline,
        note: &mut dyn FnMut(SocketAddr, &Error),
    ) -> Result<Session> {
        let mut failed = 0_u64;
        let mut last = None;
        loop {
            let mut fail = |peer, error| {
                note(peer, &error);
                failed += 1;
                last = Some((peer, error));
            };
            if let Some(session) = self.poll(&mut fail)? {
                return Ok(session);
            }
            if deadline.has_passed() {
                return Err(match last {
                    Some((peer, error)) => Error::NoPeer {
                        failed,
                        peer,
                        last: Box::new(error),
                    },
                    None => late(HandshakeStep::Accept),
                });
            }
            let taken = self.accept(&mut fail)?;
            if !taken {
                self.sleep(deadline)?;
            }
        }
    }

    /// Polls every handshake.
    fn poll(&mut self, fail: &mut dyn FnMut(SocketAddr, Error)) -> Result<Option<Session>> {
        let mut at = 0;
        while let Some(handshake) = self.handshakes.get_mut(at) {
            let outcome = match handshake.poll() {
                // A handshake that completed in time counts.
                Ok(Progress::Waiting) if Instant::now() >= handshake.until() => {
                    Err(handshake.late())
                }
                outcome => outcome,
            };
            match outcome {
                Ok(Progress::Waiting) => at += 1,
                Ok(Progress::Done) => {
                    let handshake = self.handshakes.remove(at);
                    let peer = handshake.peer();
                    match handshake.finish() {
                        Ok(session) => return Ok(Some(session)),
                        Err(error) => fail(peer, error),
                    }
                }
                Err(error) => {
                    let handshake = self.handshakes.remove(at);
                    fail(handshake.peer(), error);
                    handshake.close();
                }
            }
        }
        Ok(None)
    }

    /// Accepts connections; returns whether there were any.
    fn accept(&mut self, fail: &mut dyn FnMut(SocketAddr, Error)) -> Result<bool> {
        if Instant::now() < self.accept_from {
            return Ok(false);
        }
        for taken in 0..AT_ONCE {
            let (stream, peer) = match self.incoming.accept() {
                Ok(accepted) => accepted,
                Err(error) => match Refusal::of(&error) {
                    Refusal::Empty => return Ok(taken > 0),
                    Refusal::Connection => {
                        tracing::debug!(%error, "a connection failed before it was accepted");
                        continue;
                    }
                    Refusal::Exhausted => {
                        tracing::warn!(%error, "no connection can be accepted for the moment");
                        self.accept_from = Instant::now() + PAUSE;
                        // This frees a descriptor.
                        self.make_room(1, fail);
                        return Ok(taken > 0);
                    }
                    Refusal::Listener => return Err(Error::os("accept", error)),
                },
            };
            self.make_room(MOST, fail);
            match Handshake::new(stream, peer, self.terms, self.limit, Instant::now()) {
                Ok(handshake) => self.handshakes.push(handshake),
                Err(error) => fail(peer, error),
            }
        }
        Ok(true)
    }

    /// Closes connections until there are fewer than `most`: of the address that has the most, first
    /// those that have sent nothing, the oldest first.
    fn make_room(&mut self, most: usize, fail: &mut dyn FnMut(SocketAddr, Error)) {
        while self.handshakes.len() >= most {
            let of = |ip: IpAddr| {
                let peers = self.handshakes.iter().map(|it| it.peer().ip());
                peers.filter(|peer| *peer == ip).count()
            };
            let numbered = self.handshakes.iter().enumerate();
            let key = |(at, it): &(usize, &Handshake)| {
                (Reverse(of(it.peer().ip())), !it.is_silent(), *at)
            };
            let Some((at, _)) = numbered.min_by_key(key) else {
                return;
            };
            let handshake = self.handshakes.remove(at);
            fail(handshake.peer(), HandshakeError::Crowded.into());
            handshake.close();
        }
    }

    /// Sleeps until a descriptor is ready or a deadline has passed.
    fn sleep(&self, deadline: Deadline) -> Result<()> {
        let now = Instant::now();
        let mut until = deadline.instant();
        let mut interest = Vec::with_capacity(1 + self.handshakes.len());
        if now < self.accept_from {
            until = until.min(self.accept_from);
        } else {
            interest.push(PollFd::from_borrowed_fd(self.incoming.fd(), PollFlags::IN));
        }
        for handshake in &self.handshakes {
            until = until.min(handshake.until());
            interest.push(PollFd::from_borrowed_fd(
                handshake.fd(),
                handshake.interest(),
            ));
        }
        // A timeout beyond the range of the type waits without limit.
        let timeout = Timespec::try_from(until.saturating_duration_since(now)).ok();
        match poll(&mut interest, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Error::os("poll", errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        reason = "a fixture that fails is a test that fails"
    )]

    use std::cell::RefCell;

    use super::*;
    use crate::error::NicError;

    /// A listener whose first attempts to accept fail.
    struct Failing {
        socket: TcpListener,
        errors: RefCell<Vec<i32>>,
    }

    impl Incoming for Failing {
        fn fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }

        fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
            match self.errors.borrow_mut().pop() {
                Some(errno) => Err(io::Error::from_raw_os_error(errno)),
                None => self.socket.accept(),
            }
        }
    }

    fn run(errors: &[i32]) -> Result<Session> {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        socket.set_nonblocking(true).unwrap();
        let address = socket.local_addr().unwrap();
        let deadline = Deadline::after(Duration::from_secs(60));
        let security = Security::Loopback;
        let client =
            std::thread::spawn(move || Session::connect(address, &Security::Loopback, deadline));
        let failing = Failing {
            socket,
            errors: RefCell::new(errors.to_vec()),
        };
        let mut reception = Reception {
            incoming: &failing,
            terms: Terms::from(&security),
            limit: LIMIT,
            handshakes: Vec::new(),
            accept_from: Instant::now(),
        };
        let outcome = reception.run(deadline, &mut |_, _| ());
        drop(reception);
        // Closes the connection of a client that was not accepted.
        drop(failing);
        let _ = client.join().unwrap();
        outcome
    }

    #[test]
    fn transient_errors_of_accept_do_not_end_the_wait() {
        for errno in [
            libc::ECONNABORTED,
            libc::EPROTO,
            libc::ENETDOWN,
            libc::EHOSTUNREACH,
            libc::ETIMEDOUT,
            libc::EPERM,
            libc::EINTR,
            libc::EMFILE,
            libc::ENFILE,
            libc::ENOBUFS,
            libc::ENOMEM,
        ] {
            run(&[errno]).unwrap();
        }
        run(&[libc::EPROTO; 40]).unwrap();
        let ended = run(&[libc::EINVAL]);
        assert!(matches!(
            ended,
            Err(Error::Nic(NicError::Socket(SocketError::Os {
                call: "accept",
                ..
            })))
        ));
    }

    #[test]
    fn the_address_with_the_most_connections_makes_room_first() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let (security, now) = (Security::Loopback, Instant::now());
        let mut clients = Vec::new();
        let mut handshake = |peer: &str| {
            clients.push(TcpStream::connect(address).unwrap());
            let (stream, _) = socket.accept().unwrap();
            Handshake::new(
                stream,
                peer.parse().unwrap(),
                Terms::from(&security),
                LIMIT,
                now,
            )
            .unwrap()
        };
        let peers = [
            "127.0.0.1:1",
            "127.0.0.2:1",
            "127.0.0.2:2",
            "127.0.0.2:3",
            "127.0.0.1:2",
        ];
        let handshakes = peers.map(&mut handshake);
        let mut reception = Reception {
            incoming: &socket,
            terms: Terms::from(&security),
            limit: LIMIT,
            handshakes: handshakes.into(),
            accept_from: now,
        };
        let mut ended = Vec::new();
        reception.make_room(3, &mut |peer, _| ended.push(peer.to_string()));
        assert_eq!(ended, ["127.0.0.2:1", "127.0.0.1:1", "127.0.0.2:2"]);
    }
}
