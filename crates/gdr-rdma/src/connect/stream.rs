//! TCP with deadlines.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};

use crate::error::{Awaited, Error, HandshakeError, HandshakeStep, Result, SocketError};
use gdr_nic::Deadline;

/// A connection whose every read and write ends by a deadline.
pub(super) struct Stream(TcpStream);

impl Stream {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        // Accepted sockets do not inherit this on Linux, but do not rely on it.
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true));
        ready.map_err(|source| Error::os("preparing a TCP socket", source))?;
        Ok(Self(stream))
    }

    pub(super) fn connect(address: SocketAddr, deadline: Deadline) -> Result<Self> {
        let step = HandshakeStep::Connect;
        let limit = left(deadline, step)?;
        let stream = TcpStream::connect_timeout(&address, limit).map_err(|source| {
            if is_timeout(&source) {
                late(step)
            } else {
                Error::Connect { address, source }
            }
        })?;
        Self::new(stream)
    }

    /// Connects from an address of this host.
    pub(super) fn connect_from(from: IpAddr, to: SocketAddr, deadline: Deadline) -> Result<Self> {
        let step = HandshakeStep::Connect;
        let os = |call| move |errno| Error::os(call, errno);
        let family = match to {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        if from.is_ipv4() != to.is_ipv4() {
            let (local, peer) = (from, to.ip());
            return Err(SocketError::AddressFamily { local, peer }.into());
        }
        let mut local = SocketAddr::new(from, 0);
        if let (SocketAddr::V6(local), SocketAddr::V6(to)) = (&mut local, to)
            && local.ip().is_unicast_link_local()
        {
            local.set_scope_id(to.scope_id());
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(os("socket"))?;
        bind(&socket, &local).map_err(|errno| SocketError::AddressNotLocal {
            address: local,
            source: errno.into(),
        })?;
        let failed = |errno: rustix::io::Errno| Error::Connect {
            address: to,
            source: errno.into(),
        };
        match connect(&socket, &to) {
            Ok(()) => {}
            Err(rustix::io::Errno::INPROGRESS | rustix::io::Errno::INTR) => loop {
                let limit = left(deadline, step)?;
                let timeout = Timespec::try_from(limit).ok();
                let mut interest = [PollFd::new(&socket, PollFlags::OUT)];
                match rustix::event::poll(&mut interest, timeout.as_ref()) {
                    Ok(0) | Err(rustix::io::Errno::INTR) => {}
                    Ok(_) => {
                        let pending = sockopt::socket_error(&socket);
                        pending
                            .map_err(os("getsockopt(SO_ERROR)"))?
                            .map_err(failed)?;
                        break;
                    }
                    Err(errno) => return Err(Error::os("poll", errno)),
                }
            },
            Err(errno) => return Err(failed(errno)),
        }
        Self::new(TcpStream::from(socket))
    }

    /// Enables TCP keepalive, and closes the connection if the peer's kernel does not respond for
    /// `limit`.
    pub(super) fn give_up_after(&self, limit: Duration) -> Result<()> {
        let failed = |errno| Error::os("setsockopt(TCP_USER_TIMEOUT)", errno);
        // Whole seconds, at least one: the kernel refuses 0.
        let pause = Duration::from_secs((limit.as_secs() / 4).clamp(1, 60));
        // The kernel reads a C `int`, and refuses a negative one.
        let longest = i32::MAX as u32;
        let limit = u32::try_from(limit.as_millis()).map_or(longest, |limit| limit.min(longest));
        sockopt::set_socket_keepalive(&self.0, true)
            .and_then(|()| sockopt::set_tcp_keepidle(&self.0, pause))
            .and_then(|()| sockopt::set_tcp_keepintvl(&self.0, pause))
            .and_then(|()| sockopt::set_tcp_user_timeout(&self.0, limit.max(1)))
            .map_err(failed)
    }

    /// Duplicates the descriptor of the connection.
    pub(super) fn duplicate(&self) -> io::Result<TcpStream> {
        self.0.try_clone()
    }

    pub(super) fn peer(&self) -> Result<SocketAddr> {
        let failed = |source| Error::os("getpeername", source);
        self.0.peer_addr().map_err(failed)
    }

    pub(super) fn local(&self) -> Result<SocketAddr> {
        let failed = |source| Error::os("getsockname", source);
        self.0.local_addr().map_err(failed)
    }

    /// Sends all of `bytes`, or fails at the deadline.
    pub(super) fn send(
        &mut self,
        mut bytes: &[u8],
        step: HandshakeStep,
        deadline: Deadline,
    ) -> Result<()> {
        while !bytes.is_empty() {
            let limit = left(deadline, step)?;
            self.0
                .set_write_timeout(Some(limit))
                .map_err(|source| Error::os("setsockopt(SO_SNDTIMEO)", source))?;
            match self.0.write(bytes) {
                Ok(count) => bytes = bytes.get(count..).unwrap_or_default(),
                Err(error) => retry_or_fail(error, step)?,
            }
        }
        Ok(())
    }

    /// Fills all of `bytes`, or fails at the deadline, however slowly they arrive.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        step: HandshakeStep,
        deadline: Deadline,
    ) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            let limit = left(deadline, step)?;
            self.0
                .set_read_timeout(Some(limit))
                .map_err(|source| Error::os("setsockopt(SO_RCVTIMEO)", source))?;
            match self.0.read(&mut bytes[filled..]) {
                Ok(0) => return Err(HandshakeError::Gone { step }.into()),
                Ok(count) => filled += count,
                Err(error) => retry_or_fail(error, step)?,
            }
        }
        Ok(())
    }
}

/// Returns the time until a deadline, at least the smallest that a socket option can hold.
fn left(deadline: Deadline, step: HandshakeStep) -> Result<Duration> {
    let left = deadline.remaining();
    if left.is_zero() {
        return Err(late(step));
    }
    // The kernel counts microseconds, and zero means no timeout.
    Ok(left.max(Duration::from_micros(1)))
}

fn retry_or_fail(error: io::Error, step: HandshakeStep) -> Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        // EAGAIN is a timeout of the call; ETIMEDOUT is a timeout of the connection.
        io::ErrorKind::WouldBlock => Err(late(step)),
        _ => Err(failure(error, step)),
    }
}

/// Translates an error that ended a connection.
pub(super) fn failure(error: io::Error, step: HandshakeStep) -> Error {
    match error.kind() {
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => HandshakeError::Gone { step }.into(),
        io::ErrorKind::TimedOut
        | io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::NetworkDown => HandshakeError::Lost { step }.into(),
        _ => Error::os("exchanging messages with the peer", error),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

pub(super) fn late(step: HandshakeStep) -> Error {
    Error::Deadline(Awaited::Handshake(step))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::connect::Session;
    use crate::connect::auth::Side;
    use crate::error::NicError;

    /// Returns both ends of a loopback connection.
    fn ends() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn giving_up_after_a_limit_sets_keepalive_and_the_user_timeout() {
        for (limit, seconds, milliseconds) in [
            // The kernel accepts no pause of 0 s, and a timeout of 0 ms ends no connection.
            (Duration::ZERO, 1, 1),
            (Duration::from_millis(700), 1, 700),
            (Duration::from_secs(40), 10, 40_000),
            (Duration::from_secs(240), 60, 240_000),
            (Duration::from_secs(3600), 60, 3_600_000),
            (Duration::MAX, 60, i32::MAX as u32),
        ] {
            let (near, _far) = ends();
            let seen = near.try_clone().unwrap();
            let session = Session::after_handshake(Stream::new(near).unwrap(), Side::Client, None);
            assert!(!sockopt::socket_keepalive(&seen).unwrap());
            session.give_up_after(limit).unwrap();
            assert!(sockopt::socket_keepalive(&seen).unwrap(), "{limit:?}");
            let pause = Duration::from_secs(seconds);
            let pauses = [
                sockopt::tcp_keepidle(&seen).unwrap(),
                sockopt::tcp_keepintvl(&seen).unwrap(),
            ];
            assert_eq!(pauses, [pause; 2], "{limit:?}");
            let timeout = sockopt::tcp_user_timeout(&seen).unwrap();
            assert_eq!(timeout, milliseconds, "{limit:?}");
        }
    }

    #[test]
    fn a_connection_that_the_kernel_gave_up_is_lost_and_one_that_the_peer_ended_is_gone() {
        let step = HandshakeStep::Receive;
        let of = |errno| failure(io::Error::from_raw_os_error(errno), step);
        for errno in [
            libc::ETIMEDOUT,
            libc::EHOSTUNREACH,
            libc::ENETUNREACH,
            libc::ENETDOWN,
        ] {
            let is_lost = matches!(of(errno), Error::Handshake(HandshakeError::Lost { .. }));
            assert!(is_lost, "{errno}");
        }
        for errno in [libc::ECONNRESET, libc::EPIPE, libc::ECONNABORTED] {
            let is_gone = matches!(of(errno), Error::Handshake(HandshakeError::Gone { .. }));
            assert!(is_gone, "{errno}");
        }
        assert!(matches!(
            of(libc::EIO),
            Error::Nic(NicError::Socket(SocketError::Os { .. }))
        ));
        // ETIMEDOUT of a read ends the connection; it is not the timeout of the read.
        let timed_out = io::Error::from_raw_os_error(libc::ETIMEDOUT);
        let ended = retry_or_fail(timed_out, step).unwrap_err();
        assert!(matches!(
            ended,
            Error::Handshake(HandshakeError::Lost { .. })
        ));
        let would_block = io::Error::from_raw_os_error(libc::EAGAIN);
        let ended = retry_or_fail(would_block, step).unwrap_err();
        assert!(matches!(ended, Error::Deadline { .. }));
    }
}
