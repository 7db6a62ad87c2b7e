//! One end of a reliable connection.

mod attributes;

pub use attributes::{Capabilities, Pace, RtrAttributes, RtsAttributes, State};

use crate::completion::{Completion, Event};
use crate::error::{PostError, StateError};
use crate::key::{PartitionKey, Qpn};
use crate::link::{Broken, Link, Results};
use crate::memory::{Access, Memory};
use crate::mtu::Mtu;
use crate::request::{RecvRequest, SendRequest};
use crate::requester::Requester;
use crate::responder::Responder;
use crate::timer::Time;
use crate::wire::{MAX_DATAGRAM, Opcode, Packet};

/// One end of a reliable connection: a requester and a responder.
///
/// It owns no memory, socket or clock. Its owner
///
/// 1. hands it every packet for its number by [`receive`](Self::receive),
/// 2. sends what [`poll_transmit`](Self::poll_transmit) writes, until that is `None`,
/// 3. calls [`handle_deadline`](Self::handle_deadline) when [`next_deadline`](Self::next_deadline)
///    has come, and goes on with 2,
/// 4. takes what [`poll_completion`](Self::poll_completion) and
///    [`poll_event`](Self::poll_event) have to tell.
///
/// The same calls with the same arguments give the same results, always.
#[derive(Debug)]
pub struct QueuePair {
    caps: Capabilities,
    pace: Pace,
    state: State,
    link: Link,
    requester: Requester,
    responder: Responder,
    results: Results,
    /// Whether the next packet is rather a request than one of many READ responses.
    request_next: bool,
    communicating: bool,
}

impl QueuePair {
    /// A queue pair in RESET.
    pub fn new(qpn: Qpn, caps: Capabilities) -> Self {
        Self::with_pace(qpn, caps, Pace::default())
    }

    /// A queue pair in RESET with a pace of its own.
    pub fn with_pace(qpn: Qpn, caps: Capabilities, pace: Pace) -> Self {
        Self {
            caps,
            pace,
            state: State::Reset,
            link: Link {
                qpn,
                dest_qpn: Qpn::default(),
                mtu: Mtu::B256,
            },
            requester: Requester::new(qpn, pace),
            responder: Responder::new(qpn, &pace),
            results: Results::default(),
            request_next: false,
            communicating: false,
        }
    }

    /// Its number.
    pub const fn qpn(&self) -> Qpn {
        self.link.qpn
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
        self.responder.allow(access);
        Ok(())
    }

    /// INIT to RTR: the peer's requests are served.
    ///
    /// # Errors
    ///
    /// When it is not in INIT.
    pub fn to_rtr(&mut self, attributes: &RtrAttributes) -> Result<(), StateError> {
        self.step(State::Init, State::ReadyToReceive)?;
        self.link.dest_qpn = attributes.dest_qpn;
        self.link.mtu = attributes.path_mtu;
        self.responder.connect(attributes);
        Ok(())
    }

    /// RTR to RTS: requests can be posted.
    ///
    /// # Errors
    ///
    /// When it is not in RTR.
    pub fn to_rts(&mut self, attributes: &RtsAttributes) -> Result<(), StateError> {
        self.step(State::ReadyToReceive, State::ReadyToSend)?;
        self.requester.connect(attributes);
        Ok(())
    }

    /// To ERR, from any state but RESET: what is posted ends with
    /// [`WrFlushed`](crate::WcStatus::WrFlushed), and no packet is taken any more.
    ///
    /// Replies that are due, such as the refusal that led here, can still be polled.
    pub fn to_error(&mut self) {
        if matches!(self.state, State::Reset | State::Error) {
            return;
        }
        self.state = State::Error;
        self.requester.flush(&mut self.results);
        self.responder.flush(&mut self.results);
    }

    /// To RESET, from any state: what is posted is forgotten without a completion. Completions
    /// and events that were there before can still be polled.
    pub fn to_reset(&mut self) {
        let results = std::mem::take(&mut self.results);
        *self = Self {
            results,
            ..Self::with_pace(self.link.qpn, self.caps, self.pace)
        };
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

    /// Puts a request on the send queue. In ERR it is flushed at once.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; before RTS, [`PostError::State`].
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match self.state {
            State::ReadyToSend => self.requester.post(request, &self.caps, self.link.mtu),
            State::Error => {
                self.requester.post(request, &self.caps, self.link.mtu)?;
                self.requester.flush(&mut self.results);
                Ok(())
            }
            state => Err(PostError::State(state)),
        }
    }

    /// Puts a request on the receive queue. In ERR it is flushed at once.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; in RESET, [`PostError::State`].
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.post(request, &self.caps)?;
        if self.state == State::Error {
            self.responder.flush(&mut self.results);
        }
        Ok(())
    }

    /// Takes a packet. Its ICRC must have been judged before, by
    /// [`wire::icrc::matches`](crate::wire::icrc::matches), or by a lower layer that is trusted;
    /// nothing else about it is trusted.
    ///
    /// Packets for another queue pair or partition, and those that the state does not allow, are
    /// dropped without a word.
    pub fn receive(&mut self, now: Time, packet: &Packet<'_>, memory: &mut dyn Memory) {
        let bth = packet.bth();
        let opcode = packet.opcode();
        if bth.dest_qpn != self.link.qpn || !bth.partition.matches(PartitionKey::DEFAULT) {
            return;
        }
        // Nobody is told to slow down yet: the window bounds what is on its way.
        if opcode == Opcode::CongestionNotification {
            return;
        }
        let (link, results) = (&self.link, &mut self.results);
        let taken = match self.state {
            State::ReadyToSend if opcode.is_response() => {
                self.requester.receive(now, packet, link, memory, results)
            }
            State::ReadyToReceive | State::ReadyToSend if !opcode.is_response() => {
                if self.state == State::ReadyToReceive && !self.communicating {
                    self.communicating = true;
                    results.events.push_back(Event::CommunicationEstablished);
                }
                self.responder.receive(packet, link, memory, results)
            }
            _ => Ok(()),
        };
        self.settle(taken);
    }

    /// Writes the next packet to the front of `out` and tells its length. Its last four bytes are
    /// zeros: [`wire::icrc::seal`](crate::wire::icrc::seal) puts the ICRC there.
    ///
    /// # Panics
    ///
    /// When `out` is shorter than [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM).
    pub fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Option<usize> {
        assert!(
            out.len() >= MAX_DATAGRAM,
            "out holds {} bytes, not {MAX_DATAGRAM}",
            out.len()
        );
        let reading = self.responder.is_reading();
        let request_first = reading && self.request_next;
        self.request_next = !request_first;
        if request_first && let Some(len) = self.poll_request(now, memory, out) {
            return Some(len);
        }
        let reply = self
            .responder
            .poll(&self.link, memory, out, &mut self.results);
        match reply {
            Ok(Some(len)) => Some(len),
            Ok(None) if request_first => None,
            Ok(None) => self.poll_request(now, memory, out),
            Err(broken) => {
                self.settle(Err(broken));
                // The refusal that it left behind.
                self.responder
                    .poll(&self.link, memory, out, &mut self.results)
                    .unwrap_or(None)
            }
        }
    }

    fn poll_request(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Option<usize> {
        if self.state != State::ReadyToSend {
            return None;
        }
        match self
            .requester
            .poll(now, &self.link, memory, out, &mut self.results)
        {
            Ok(len) => len,
            Err(broken) => {
                self.settle(Err(broken));
                None
            }
        }
    }

    /// Whether packets of requests were sent and are not answered yet.
    pub fn is_on_its_way(&self) -> bool {
        self.requester.is_on_its_way()
    }

    /// When [`handle_deadline`](Self::handle_deadline) is to be called; it may change with every
    /// other call. `None`: not at all.
    pub fn next_deadline(&self) -> Option<Time> {
        self.requester.next_deadline()
    }

    /// Says what time it is. Something may be to send afterwards. Early calls do nothing.
    pub fn handle_deadline(&mut self, now: Time) {
        let handled = self.requester.handle_deadline(now, &mut self.results);
        self.settle(handled);
    }

    /// A broken connection goes to ERR.
    fn settle(&mut self, outcome: Result<(), Broken>) {
        if let Err(Broken) = outcome {
            self.to_error();
        }
    }

    /// The next completion, oldest first.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.results.completions.pop_front()
    }

    /// The next event, oldest first.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.results.events.pop_front()
    }
}
