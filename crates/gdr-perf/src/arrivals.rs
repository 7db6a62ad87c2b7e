//! Peers that have connected but have not yet sent their first message.
//!
//! A connected process may stay silent. Therefore each peer's first message is awaited on a thread of its own, so that
//! a silent peer does not delay the others.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, Scope};
use std::time::Duration;

use gdr_rdma::{
    Awaited, Deadline, Error as RdmaError, HandshakeError, HandshakeStep, Listener, Session, Terms,
    Watch,
};
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::peer_message::receive;

/// Maximum number of peers that are awaited at a time. One more displaces the oldest.
const MOST: usize = 256;
/// How long to wait for the next peer while a connected one may still send its first message.
const TURN: Duration = Duration::from_millis(5);

/// The listener that peers arrive at, and the time they have.
#[derive(Clone, Copy)]
pub(crate) struct Arrivals<'a> {
    pub(crate) listener: &'a Listener,
    pub(crate) terms: Terms<'a>,
    /// A peer must have connected by then.
    pub(crate) deadline: Deadline,
    /// How long each peer may take to send its first message.
    pub(crate) limit: Duration,
}

/// A peer with its first message, or with the reason why there is none.
type Arrival<M> = (Session, Result<M>);

impl Arrivals<'_> {
    /// Accepts the first peer that sends a message. Peers that stay silent or hang up do not delay it. A message that
    /// is not an `M` counts as well: it is a mistake of that peer.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`]. If peers connected but none sent a message, how the last one failed.
    pub(crate) fn first<M: DeserializeOwned + Send + 'static>(self) -> Result<Arrival<M>> {
        let mut last = None;
        let first = self.each(|session, message| {
            Ok(match message {
                Err(Error::Rdma(error)) if is_silence(&error) => {
                    last = Some(error);
                    ControlFlow::Continue(())
                }
                message => ControlFlow::Break((session, message)),
            })
        });
        match (first, last) {
            (Err(Error::Rdma(RdmaError::Deadline(_) | RdmaError::NoPeer { .. })), Some(last)) => {
                Err(last.into())
            }
            (first, _) => first,
        }
    }

    /// Passes each peer to `take` with its first message, in the order in which messages arrive, until `take` breaks.
    ///
    /// # Errors
    /// The errors of [`Listener::accept`], and of `take`.
    pub(crate) fn each<M: DeserializeOwned + Send + 'static, R>(
        self,
        mut take: impl FnMut(Session, Result<M>) -> Result<ControlFlow<R>>,
    ) -> Result<R> {
        let (said, arrived) = channel();
        let mut failed_connections = 0;
        let mut last = RdmaError::Deadline(Awaited::Handshake(HandshakeStep::Accept));
        thread::scope(|scope| {
            let mut hearing = Hearing {
                scope,
                said,
                limit: self.limit,
                waiting: VecDeque::new(),
                next: 0,
            };
            loop {
                let is_late = self.deadline.has_passed();
                if is_late && hearing.waiting.is_empty() {
                    return Err(last.into());
                }
                // Peers that connected in time keep their whole limit.
                let turn = Deadline::after(if is_late { TURN } else { Duration::ZERO });
                while let Ok((number, (session, message))) = arrived.recv_timeout(turn.remaining())
                {
                    hearing.waiting.retain(|(waits, _)| *waits != number);
                    if let ControlFlow::Break(taken) = take(session, message)? {
                        return Ok(taken);
                    }
                }
                if is_late {
                    continue;
                }
                let turn = match hearing.waiting.is_empty() {
                    true => self.deadline,
                    false => Deadline::after(TURN.min(self.deadline.remaining())),
                };
                match self.listener.accept(self.terms, turn) {
                    Ok(session) => hearing.hear(session),
                    Err(RdmaError::Deadline(_)) => {}
                    Err(RdmaError::NoPeer {
                        failed,
                        peer,
                        last: error,
                    }) => {
                        failed_connections += failed;
                        last = RdmaError::NoPeer {
                            failed: failed_connections,
                            peer,
                            last: error,
                        };
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }
}

/// Returns whether a peer has connected and has not said anything.
fn is_silence(error: &RdmaError) -> bool {
    matches!(
        error,
        RdmaError::Deadline(_)
            | RdmaError::Handshake(HandshakeError::Gone { .. } | HandshakeError::Lost { .. })
    )
}

/// Threads that await first messages.
struct Hearing<'scope, 'env, M> {
    scope: &'scope Scope<'scope, 'env>,
    said: Sender<(u64, Arrival<M>)>,
    limit: Duration,
    /// The oldest first.
    waiting: VecDeque<(u64, Watch)>,
    next: u64,
}

impl<M: DeserializeOwned + Send + 'static> Hearing<'_, '_, M> {
    /// Starts to await the first message of a peer.
    fn hear(&mut self, mut session: Session) {
        // A peer is dropped if there is no descriptor or thread to await it with; the others go on.
        let Ok(watch) = session.watch() else {
            return;
        };
        if self.waiting.len() >= MOST
            && let Some((_, oldest)) = self.waiting.pop_front()
        {
            oldest.end_connection();
        }
        let (number, limit, said) = (self.next, self.limit, self.said.clone());
        self.next += 1;
        let receives = move || {
            let message = receive(&mut session, Deadline::after(limit));
            // Without a receiver, all peers have been given up.
            let _ = said.send((number, (session, message)));
        };
        let thread = thread::Builder::new().name("gdr-arrival".to_owned());
        if thread.spawn_scoped(self.scope, receives).is_ok() {
            self.waiting.push_back((number, watch));
        }
    }
}

impl<M> Drop for Hearing<'_, '_, M> {
    /// Gives up the silent peers, which ends their threads at once.
    fn drop(&mut self) {
        for (_, watch) in &self.waiting {
            watch.end_connection();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use gdr_rdma::Security;

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);
    const SECURITY: &Security = &Security::Loopback;

    fn connect(listener: &Listener) -> Session {
        let address = listener.address().unwrap();
        Session::connect(address, SECURITY, Deadline::after(LIMIT)).unwrap()
    }

    /// Returns a listener, and connections that have been greeted.
    fn greeted(count: usize) -> (Listener, Vec<Session>) {
        let listener = Listener::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        (listener, Vec::with_capacity(count))
    }

    /// Returns what the first to speak after this many silent peers says.
    fn first_behind(silent: usize, said: &[u8]) -> Result<String> {
        let (listener, mut silent_peers) = greeted(silent);
        thread::scope(|scope| {
            let arrivals = Arrivals {
                listener: &listener,
                terms: SECURITY.into(),
                deadline: Deadline::after(LIMIT),
                // Far longer than the test takes.
                limit: 10 * LIMIT,
            };
            let first = scope.spawn(move || arrivals.first::<String>());
            for _ in 0..silent {
                silent_peers.push(connect(&listener));
            }
            // A peer that hangs up.
            drop(connect(&listener));
            let mut speaker = connect(&listener);
            speaker.send(said, Deadline::after(LIMIT)).unwrap();
            first.join().unwrap()?.1
        })
    }

    #[test]
    fn silent_peers_do_not_delay_one_that_speaks() {
        for silent in [0, 3, MOST + 20] {
            assert_eq!(first_behind(silent, br#""here""#).unwrap(), "here");
        }
    }

    #[test]
    fn a_message_of_another_protocol_is_the_mistake_of_a_peer() {
        let error = first_behind(1, b"7").unwrap_err();
        assert!(matches!(error, Error::Peer(_)), "{error}");
    }

    #[test]
    fn peers_of_which_none_says_anything_end_with_the_last_ones_reason() {
        let brief = Duration::from_millis(100);
        let (listener, _) = greeted(0);
        let arrivals = Arrivals {
            listener: &listener,
            terms: SECURITY.into(),
            deadline: Deadline::after(brief),
            limit: brief,
        };
        let none = arrivals.first::<String>().map(drop).unwrap_err();
        assert!(none.to_string().contains("did not happen"), "{none}");
        thread::scope(|scope| {
            let client = scope.spawn(|| connect(&listener));
            let arrivals = Arrivals {
                deadline: Deadline::after(LIMIT.min(Duration::from_secs(2))),
                ..arrivals
            };
            let silent = arrivals.first::<String>().map(drop).unwrap_err();
            let is_of_receive = silent.to_string().contains("did not happen");
            assert!(is_of_receive, "{silent}");
            drop(client.join().unwrap());
        });
    }
}
