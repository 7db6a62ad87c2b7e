//! Conversation between two processes that measure together: connection, checks, messages, and the reason why an end
//! cannot continue.

use std::net::SocketAddr;
use std::time::Duration;

use gdr_rdma::{Deadline, Device, Listener, Mtu, PeerInfo, Provider, Session, Terms, Watch};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::arrivals::Arrivals;
use crate::error::{Error, PeerError, Result};
use crate::loopback::{End, Timeouts};
use crate::peer_message::{self, refusal};

/// How long to exchange messages about a failure once its cause is known.
pub(crate) const AFTERMATH: Duration = Duration::from_secs(3);

/// Messages exchanged with the peer.
pub(crate) struct Conversation {
    session: Session,
    watch: Watch,
    /// Deadline of a single message.
    pub(crate) limit: Duration,
}

impl Conversation {
    /// Starts a conversation in which the peer has `limit` for each message.
    pub(crate) fn new(session: Session, limit: Duration) -> Result<Self> {
        session.give_up_after(limit)?;
        Ok(Self {
            watch: session.watch()?,
            session,
            limit,
        })
    }

    pub(crate) fn send<M: Serialize>(&mut self, message: &M) -> Result<()> {
        peer_message::send(&mut self.session, message, Deadline::after(self.limit))
    }

    pub(crate) fn receive<M: DeserializeOwned>(&mut self, limit: Duration) -> Result<M> {
        peer_message::receive(&mut self.session, Deadline::after(limit))
    }

    /// Waits for the first peer that sends a message, and also returns that message.
    pub(crate) fn accept<M: DeserializeOwned + Send + 'static>(
        listener: &Listener,
        terms: Terms<'_>,
        timeouts: Timeouts,
    ) -> Result<(Self, Result<M>)> {
        let (session, message) = arrivals(listener, terms, timeouts).first()?;
        Ok((Self::new(session, timeouts.step)?, message))
    }

    /// Exchanges queue pairs and regions with the peer, which is at the address `end`.
    pub(crate) fn introduce(
        &mut self,
        device: &Device,
        end: &End,
        ours: &PeerInfo,
        limit: Duration,
    ) -> Result<PeerInfo> {
        let deadline = Deadline::after(limit);
        let theirs = self.session.introduce(ours, deadline).map_err(refusal)?;
        check_end(device, end, &theirs)?;
        Ok(theirs)
    }

    /// Waits until both ends are connected.
    pub(crate) fn barrier(&mut self, limit: Duration) -> Result<()> {
        let deadline = Deadline::after(limit);
        self.session.barrier(deadline).map_err(refusal)
    }

    /// Returns whether the peer sent a message or closed the connection.
    pub(crate) fn is_due(&self) -> bool {
        self.watch.is_due()
    }

    /// Returns a handle for the same check, for a wait that has no access to the conversation.
    pub(crate) fn watch(&self) -> Result<Watch> {
        Ok(self.session.watch()?)
    }

    /// Sends the peer the reason why this end cannot continue. If a transfer failed here because the peer had ended
    /// with a reason, returns that reason as the error.
    pub(crate) fn conclude<T>(&mut self, outcome: Result<T>) -> Result<T> {
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        if matches!(error, Error::Transfer { .. } | Error::Rdma(_)) {
            // Messages before the reason are useless, and a peer could send them endlessly.
            let deadline = Deadline::after(AFTERMATH);
            while self.is_due() && !deadline.has_passed() {
                match self.session.receive(deadline) {
                    Ok(_) => {}
                    Err(ended) => match refusal(ended) {
                        refused @ Error::Peer(PeerError::Refused(_)) => return Err(refused),
                        _ => break,
                    },
                }
            }
        }
        let reason = match &error {
            Error::Peer(PeerError::Refused(_)) => return Err(error),
            Error::Peer(what) => format!("your side {what}"),
            error => error.to_string(),
        };
        // Best effort, as the peer may be gone. The first error is the one that is reported.
        let _ = self.session.refuse(&reason, Deadline::after(AFTERMATH));
        Err(error)
    }
}

/// Accepts peers of a listening end within these limits.
pub(crate) fn arrivals<'a>(
    listener: &'a Listener,
    terms: Terms<'a>,
    timeouts: Timeouts,
) -> Arrivals<'a> {
    Arrivals {
        listener,
        terms,
        deadline: Deadline::after(timeouts.peer),
        limit: timeouts.step,
    }
}

/// Opens a session with a listening peer. Without a key, connects from the device's own address.
pub(crate) fn reach(
    device: &Device,
    peer: SocketAddr,
    terms: Terms<'_>,
    limit: Duration,
) -> Result<Session> {
    let deadline = Deadline::after(limit);
    Ok(Session::connect_for(device, peer, terms, deadline)?)
}

/// Checks that the peer's queue pair has the address that its messages name, and that this is not an address of this
/// end.
pub(crate) fn check_end(device: &Device, end: &End, theirs: &PeerInfo) -> Result<()> {
    let (said, named) = (end.address, theirs.endpoint.address);
    if (said.ip(), said.port()) != (named.ip(), named.port()) {
        return Err(PeerError::TwoAddresses { said, named }.into());
    }
    // Two processes may share a network card, but not a UDP port.
    if device.provider() == Provider::Soft && named == device.address() {
        return Err(PeerError::OwnAddress(named).into());
    }
    Ok(())
}

/// Returns the path MTU that a peer names by its code.
pub(crate) fn known_mtu(mtu: u8) -> Result<Mtu> {
    Ok(Mtu::from_code(mtu).ok_or(PeerError::Mtu(mtu))?)
}

/// Returns the largest path MTU that both this end and the peer at `end`, which named `theirs`, can use.
pub(crate) fn common_mtu(device: &Device, end: &End, theirs: u8) -> Result<Mtu> {
    Ok(known_mtu(theirs)?.min(device.path_mtu(end.address.ip())?))
}
