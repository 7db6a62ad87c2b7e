//! One end of a reliable connection.

mod attributes;

use std::collections::VecDeque;

pub use attributes::{Capabilities, Pace, RtrAttributes, RtsAttributes, State};

use crate::completion::{Completion, Event};
use crate::error::{PostError, StateError};
use crate::key::Qpn;
use crate::memory::{Access, Memory};
use crate::request::{RecvRequest, SendRequest};
use crate::timer::Time;
use crate::wire::Packet;

/// One end of a reliable connection: a requester and a responder.
#[derive(Debug)]
pub struct QueuePair {
    qpn: Qpn,
    caps: Capabilities,
    pace: Pace,
    state: State,
    access: Access,
    completions: VecDeque<Completion>,
    events: VecDeque<Event>,
}

impl QueuePair {
    /// A queue pair in RESET.
    pub fn new(qpn: Qpn, caps: Capabilities) -> Self {
        Self::with_pace(qpn, caps, Pace::default())
    }

    /// A queue pair in RESET with a pace of its own.
    pub fn with_pace(qpn: Qpn, caps: Capabilities, pace: Pace) -> Self {
        Self {
            qpn,
            caps,
            pace,
            state: State::Reset,
            access: Access::empty(),
            completions: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// What it was made with.
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// How it paces itself.
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Where it stands.
    pub const fn state(&self) -> State {
        self.state
    }

    /// RESET to INIT: receives can be posted. `access` is what the peer may do at all.
    ///
    /// # Errors
    ///
    /// When it is not in RESET.
    pub fn to_init(&mut self, access: Access) -> Result<(), StateError> {
        self.step(State::Reset, State::Init)?;
        self.access = access;
        Ok(())
    }

    /// INIT to RTR: the peer's requests are served.
    ///
    /// # Errors
    ///
    /// When it is not in INIT.
    pub fn to_rtr(&mut self, _attributes: &RtrAttributes) -> Result<(), StateError> {
        self.step(State::Init, State::ReadyToReceive)
    }

    /// RTR to RTS: requests can be posted.
    ///
    /// # Errors
    ///
    /// When it is not in RTR.
    pub fn to_rts(&mut self, _attributes: &RtsAttributes) -> Result<(), StateError> {
        self.step(State::ReadyToReceive, State::ReadyToSend)
    }

    /// To ERR, from any state but RESET: flushes all that is posted.
    pub fn to_error(&mut self) {
        if self.state != State::Reset {
            self.state = State::Error;
        }
    }

    /// To RESET, from any state.
    pub fn to_reset(&mut self) {
        self.state = State::Reset;
    }

    fn step(&mut self, from: State, to: State) -> Result<(), StateError> {
        if self.state != from {
            return Err(StateError {
                from: self.state,
                to,
            });
        }
        self.state = to;
        Ok(())
    }

    /// Puts a request on the send queue.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn post_send(&mut self, _request: &SendRequest<'_>) -> Result<(), PostError> {
        Err(PostError::State(self.state))
    }

    /// Puts a request on the receive queue.
    ///
    /// # Errors
    ///
    /// See [`PostError`].
    pub fn post_recv(&mut self, _request: &RecvRequest<'_>) -> Result<(), PostError> {
        Err(PostError::State(self.state))
    }

    /// Takes a packet whose ICRC was judged.
    pub fn receive(&mut self, _now: Time, _packet: &Packet<'_>, _memory: &mut dyn Memory) {}

    /// Writes the next packet to the front of `out` and tells its length, ICRC included: the last
    /// four bytes are left for [`wire::icrc::seal`](crate::wire::icrc::seal).
    pub fn poll_transmit(
        &mut self,
        _now: Time,
        _memory: &mut dyn Memory,
        _out: &mut [u8],
    ) -> Option<usize> {
        None
    }

    /// When [`handle_deadline`](Self::handle_deadline) is to be called.
    pub fn next_deadline(&self) -> Option<Time> {
        None
    }

    /// Says that time has passed.
    pub fn handle_deadline(&mut self, _now: Time) {}

    /// The next completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.completions.pop_front()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}
