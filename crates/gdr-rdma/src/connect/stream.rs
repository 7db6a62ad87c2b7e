//! TCP with deadlines.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::deadline::Deadline;
use crate::error::{Error, HandshakeError, Result};

/// A connection whose every read and write ends by a deadline.
pub(super) struct Stream(TcpStream);

impl Stream {
    pub(super) fn new(stream: TcpStream) -> Result<Self> {
        // Accepted sockets do not inherit it on Linux, and nothing here depends on that.
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true));
        ready.map_err(|source| Error::os("preparing a TCP socket", source))?;
        Ok(Self(stream))
    }

    pub(super) fn connect(address: SocketAddr, deadline: Deadline) -> Result<Self> {
        let step = "connecting";
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

    pub(super) fn peer(&self) -> Result<SocketAddr> {
        let failed = |source| Error::os("getpeername", source);
        self.0.peer_addr().map_err(failed)
    }

    pub(super) fn local(&self) -> Result<SocketAddr> {
        let failed = |source| Error::os("getsockname", source);
        self.0.local_addr().map_err(failed)
    }

    /// Sends all of `bytes`, or fails by the deadline.
    pub(super) fn send(
        &mut self,
        mut bytes: &[u8],
        step: &'static str,
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

    /// Fills all of `bytes`, or fails by the deadline, however slowly they come.
    pub(super) fn receive(
        &mut self,
        bytes: &mut [u8],
        step: &'static str,
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

/// Accepts the next connection, or fails by the deadline.
pub(super) fn accept(listener: &TcpListener, deadline: Deadline) -> Result<Stream> {
    let step = "a peer's connection";
    loop {
        let limit = left(deadline, step)?;
        // A limit beyond the type's range is for ever, as far as the kernel is concerned.
        let timeout = Timespec::try_from(limit).ok();
        let mut interest = [PollFd::new(listener, PollFlags::IN)];
        match rustix::event::poll(&mut interest, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(Error::os("poll", errno)),
        }
        match listener.accept() {
            Ok((stream, _)) => return Stream::new(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // The peer went away while it waited in the queue.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(source) => return Err(Error::os("accept", source)),
        }
    }
}

/// What is left of a deadline, at least what a socket option can hold.
fn left(deadline: Deadline, step: &'static str) -> Result<Duration> {
    let left = deadline.remaining();
    if left.is_zero() {
        return Err(late(step));
    }
    // The kernel counts microseconds, and zero would be for ever.
    Ok(left.max(Duration::from_micros(1)))
}

fn retry_or_fail(error: io::Error, step: &'static str) -> Result<()> {
    match error.kind() {
        io::ErrorKind::Interrupted => Ok(()),
        _ if is_timeout(&error) => Err(late(step)),
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::ConnectionAborted => Err(HandshakeError::Gone { step }.into()),
        _ => Err(Error::os("talking to the peer", error)),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

fn late(step: &'static str) -> Error {
    Error::Deadline {
        what: step,
        remedy: "see whether the peer runs and answers",
    }
}
