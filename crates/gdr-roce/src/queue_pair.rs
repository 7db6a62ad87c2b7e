//! The queue pair: its states, and the calls of its owner.

use crate::attributes::{Capabilities, RtrAttributes, RtsAttributes, State, TransportConfig};
use crate::completion::{Completion, Event, WcOpcode, WcStatus};
use crate::connection::{Connection, ConnectionFailed, LossRecovery, Notifications, Reliability};
use crate::error::{PostError, StateError};
use crate::ids::{PartitionKey, Qpn, XrcSrqn};
use crate::memory::{Access, Memory};
use crate::mtu::Mtu;
use crate::packet_budget::PacketBudget;
use crate::psn::Psn;
use crate::receive_queue::ReceiveQueue;
use crate::request::{RecvRequest, SendRequest};
use crate::requester::Requester;
use crate::responder::{Polled, Responder};
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::statistics::{Served, Statistics};
use crate::timer::{RnrTimer, Time};
use crate::wire::{MAX_DATAGRAM, Packet, SERVICE};
use crate::xrc_domain::XrcDomain;

/// How many request packets go before an acknowledgement that waits: about as many as leave by one
/// system call, whose last packet may be the shorter acknowledgement.
const REQUESTS_AHEAD: u32 = 16;

/// One end of a connection: a requester and a responder. The connection is reliable unless
/// [`QueuePair::unreliable`] made it.
///
/// It owns no memory, socket or clock. Its owner
///
/// 1. passes every packet for its number to [`receive`](Self::receive),
/// 2. calls [`poll_transmit`](Self::poll_transmit) and sends the packet, until there is none,
/// 3. calls [`handle_deadline`](Self::handle_deadline) at [`next_deadline`](Self::next_deadline),
///    and continues with 2,
/// 4. calls [`poll_completion`](Self::poll_completion) and [`poll_event`](Self::poll_event).
///
/// It is deterministic: the same calls with the same arguments give the same results, as long as what it shares
/// with others ([`SharedReceiveQueue`], [`PacketBudget`]) is in the same state.
#[derive(Debug)]
pub struct QueuePair {
    caps: Capabilities,
    config: TransportConfig,
    state: State,
    connection: Connection,
    requester: Requester,
    responder: Responder,
    notifications: Notifications,
    /// Whether the next packet is a request, while READ responses are queued: both take turns.
    request_next: bool,
    /// How many requests went before the acknowledgement that waits.
    requests_ahead: u32,
    established: bool,
    /// The state is SQD, and the end of the requests that were begun was not reported.
    draining: bool,
}

impl QueuePair {
    /// Creates a queue pair in RESET with the default [`TransportConfig`].
    pub fn new(qpn: Qpn, caps: Capabilities) -> Self {
        Self::with_config(qpn, caps, TransportConfig::default())
    }

    /// Creates a queue pair in RESET.
    pub fn with_config(qpn: Qpn, caps: Capabilities, config: TransportConfig) -> Self {
        let receives = ReceiveQueue::new(None);
        Self::with_receives(qpn, caps, config, Reliability::Reliable, receives)
    }

    /// Creates a queue pair in RESET that takes its receives from `shared`.
    pub fn with_shared_receives(
        qpn: Qpn,
        caps: Capabilities,
        config: TransportConfig,
        shared: &SharedReceiveQueue,
    ) -> Self {
        let receives = ReceiveQueue::new(Some(shared.clone()));
        Self::with_receives(qpn, caps, config, Reliability::Reliable, receives)
    }

    /// Creates the end of an extended reliable connection (XRC) that sends requests, in RESET. They are posted with
    /// [`post_send_to`](Self::post_send_to). This end receives no requests.
    pub fn initiator(qpn: Qpn, caps: Capabilities, config: TransportConfig) -> Self {
        let receives = ReceiveQueue::new(None);
        Self::with_receives(qpn, caps, config, Reliability::Extended, receives)
    }

    /// Creates the end of an extended reliable connection (XRC) that receives requests, in RESET. Requests take their
    /// receives from the queues in `domain` that they name; a request that names an unknown queue is invalid.
    /// Completions carry the number of this queue pair.
    pub fn target(qpn: Qpn, config: TransportConfig, domain: &XrcDomain) -> Self {
        let caps = Capabilities {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_inline: 0,
        };
        let receives = ReceiveQueue::named(domain.clone());
        Self::with_receives(qpn, caps, config, Reliability::Extended, receives)
    }

    /// Creates one end of an unreliable connection (UC), in RESET. It takes its receives from `shared`, if that is
    /// given.
    ///
    /// It supports only SEND and WRITE, which complete when their last packet has been sent. Nothing is acknowledged
    /// or retransmitted. A message is dropped if one of its packets is lost, if it is not permitted or does not fit,
    /// or if it needs a receive and none is posted; if it has already taken a receive, the next message uses it. A
    /// receive whose segments are not registered completes with
    /// [`WcStatus::LocalProtection`](crate::WcStatus::LocalProtection), and the state changes to ERR. A request whose
    /// segments are not registered completes with the same status, and the state changes to SQE.
    ///
    /// The attributes in [`RtrAttributes`] and [`RtsAttributes`] that limit READs or concern acknowledgements and
    /// retries have no effect.
    pub fn unreliable(qpn: Qpn, caps: Capabilities, shared: Option<&SharedReceiveQueue>) -> Self {
        let (config, service) = (TransportConfig::default(), Reliability::Unreliable);
        let receives = ReceiveQueue::new(shared.cloned());
        Self::with_receives(qpn, caps, config, service, receives)
    }

    fn with_receives(
        qpn: Qpn,
        caps: Capabilities,
        config: TransportConfig,
        reliability: Reliability,
        receives: ReceiveQueue,
    ) -> Self {
        Self {
            caps,
            config,
            state: State::Reset,
            connection: Connection {
                reliability,
                qpn,
                dest_qpn: Qpn::default(),
                mtu: Mtu::B256,
            },
            requester: Requester::new(qpn, config),
            responder: Responder::new(qpn, &config, receives),
            notifications: Notifications::default(),
            request_next: false,
            requests_ahead: 0,
            established: false,
            draining: false,
        }
    }

    /// Counts the packets that it keeps after a gap against `budget`, which several queue pairs may share. By default,
    /// each queue pair has its own budget of [`PacketBudget::DEFAULT`].
    #[must_use]
    pub fn with_packet_budget(mut self, budget: &PacketBudget) -> Self {
        self.responder.set_budget(budget.clone());
        self
    }

    /// Returns the queue pair number.
    pub const fn qpn(&self) -> Qpn {
        self.connection.qpn
    }

    /// Returns the service of the connection.
    pub const fn reliability(&self) -> Reliability {
        self.connection.reliability
    }

    /// Returns the sizes that it was created with.
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// Returns the flow control parameters that it was created with.
    pub const fn config(&self) -> &TransportConfig {
        &self.config
    }

    /// Returns the current state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Changes the state from RESET to INIT, in which receives can be posted. `access` limits what the peer may do,
    /// whatever the memory regions permit.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RESET.
    pub fn to_init(&mut self, access: Access) -> Result<(), StateError> {
        self.state.transition(State::Reset, State::Init)?;
        self.responder.set_access(access);
        Ok(())
    }

    /// Changes what the peer may do, in any state. RESET permits nothing.
    pub fn set_access(&mut self, access: Access) {
        if self.state != State::Reset {
            self.responder.set_access(access);
        }
    }

    /// Changes the state from INIT to RTR, in which requests of the peer are served.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not INIT.
    pub fn to_rtr(&mut self, attributes: &RtrAttributes) -> Result<(), StateError> {
        self.state.transition(State::Init, State::ReadyToReceive)?;
        self.connection.dest_qpn = attributes.dest_qpn;
        self.connection.mtu = attributes.path_mtu;
        self.responder.connect(attributes);
        Ok(())
    }

    /// Changes the state from RTR to RTS, in which requests can be posted.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTR.
    pub fn to_rts(&mut self, attributes: &RtsAttributes) -> Result<(), StateError> {
        self.state
            .transition(State::ReadyToReceive, State::ReadyToSend)?;
        self.requester
            .connect(attributes, self.connection.reliability);
        Ok(())
    }

    /// Changes the state from RTS to SQD: requests in progress are finished, and others stay in the queue. Then
    /// [`Event::SendQueueDrained`] is reported.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTS.
    pub fn to_sqd(&mut self) -> Result<(), StateError> {
        self.state
            .transition(State::ReadyToSend, State::SendQueueDrained)?;
        self.requester.drain();
        self.draining = true;
        // If nothing is outstanding, no later call would report it.
        self.report_drained();
        Ok(())
    }

    /// Changes the state from SQD, or from SQE, to RTS.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is neither.
    pub fn resume(&mut self) -> Result<(), StateError> {
        self.state.resume()?;
        self.requester.resume();
        self.draining = false;
        Ok(())
    }

    /// Returns whether the state is SQD, and requests are still in progress.
    pub const fn is_draining(&self) -> bool {
        self.draining
    }

    /// Reports once that the send queue is drained.
    fn report_drained(&mut self) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            self.notifications.events.push_back(Event::SendQueueDrained);
        }
    }

    /// Sets how losses are recovered; the peer must use the same method. This must be called before RTR. An
    /// unreliable connection does not recover losses.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is neither RESET nor INIT.
    pub fn set_loss_recovery(&mut self, recovery: LossRecovery) -> Result<(), StateError> {
        if !matches!(self.state, State::Reset | State::Init) {
            let (from, to) = (self.state, State::ReadyToReceive);
            return Err(StateError { from, to });
        }
        self.requester.recovery = recovery;
        self.responder.set_recovery(recovery);
        Ok(())
    }

    /// Changes the attributes of the requester, except for the PSN.
    pub fn set_rts_attributes(&mut self, attributes: &RtsAttributes) {
        self.requester
            .set_attributes(attributes, self.connection.reliability);
    }

    /// Notes that packets go through a network from here on, after some whose payload was elsewhere.
    pub fn send_by_network(&mut self) {
        self.requester.send_by_network();
    }

    /// Changes the wait time in RNR NAKs.
    pub fn set_min_rnr_timer(&mut self, timer: RnrTimer) {
        self.responder.set_rnr_timer(timer);
    }

    /// Changes how many READs and atomics the peer may have outstanding.
    pub fn set_max_dest_rd_atomic(&mut self, most: u8) {
        self.responder.set_max_rd_atomic(most);
    }

    /// Changes the state to ERR, from any state but RESET. Posted requests complete with
    /// [`WrFlushed`](crate::WcStatus::WrFlushed). Packets are neither received nor sent any more:
    /// queued responses are dropped, the rest of a READ included, and memory is not read again.
    pub fn to_error(&mut self) {
        if matches!(self.state, State::Reset | State::Error) {
            return;
        }
        self.state = State::Error;
        self.draining = false;
        self.requester.flush(&mut self.notifications);
        self.responder.flush(&mut self.notifications);
        // After the last completion: from here on the program may end what its shared receives use.
        if self.responder.receives().is_shared() {
            self.notifications.events.push_back(Event::LastWqeReached);
        }
    }

    /// Changes the state to ERR because bytes that its [`Memory`] has accepted did not reach their destination. Requests
    /// that have arrived but were not [polled](Self::poll_completion) complete with
    /// [`LocalOperation`](crate::WcStatus::LocalOperation), and are not acknowledged.
    pub fn fail_placement(&mut self) {
        // A completion that was polled cannot be taken back, so only the others change.
        for completion in &mut self.notifications.completions {
            let has_bytes = completion.opcode.is_receive() || completion.opcode == WcOpcode::Read;
            if has_bytes && completion.status == WcStatus::Success {
                (completion.status, completion.byte_len) = (WcStatus::LocalOperation, 0);
            }
        }
        self.to_error();
    }

    /// Changes the state to SQE: the rest of the send queue is flushed.
    fn stop_sends(&mut self) {
        self.state = State::SendQueueError;
        self.draining = false;
        // It may have been draining, and must begin requests again when it returns to RTS.
        self.requester.resume();
        self.requester.flush(&mut self.notifications);
    }

    /// Changes the state to RESET, from any state. Posted requests are discarded without a
    /// completion; a receive of a shared queue is put back there. Earlier completions and events can
    /// still be polled.
    pub fn to_reset(&mut self) {
        let notifications = std::mem::take(&mut self.notifications);
        self.responder.put_back();
        let receives = self.responder.receives().renewed();
        let Connection {
            qpn, reliability, ..
        } = self.connection;
        let fresh = Self::with_receives(qpn, self.caps, self.config, reliability, receives);
        let fresh = fresh.with_packet_budget(self.responder.budget());
        *self = Self {
            notifications,
            ..fresh
        };
    }

    /// Posts a request to the send queue. In ERR and SQE it is flushed immediately.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; before RTS, [`PostError::State`].
    pub fn post_send(&mut self, request: &SendRequest<'_>) -> Result<(), PostError> {
        match self.state {
            State::ReadyToSend | State::SendQueueDrained => {
                self.requester
                    .post(request, &self.caps, self.connection.mtu)
            }
            State::Error | State::SendQueueError => {
                let (caps, mtu) = (&self.caps, self.connection.mtu);
                self.requester
                    .post_flushed(request, caps, mtu, &mut self.notifications)
            }
            state => Err(PostError::State(state)),
        }
    }

    /// Like [`post_send`](Self::post_send), with the number of the shared receive queue from which the peer of an
    /// [`initiator`](Self::initiator) takes the receive. Other services do not send this number.
    ///
    /// # Errors
    ///
    /// Like [`post_send`](Self::post_send).
    pub fn post_send_to(
        &mut self,
        receives: XrcSrqn,
        request: &SendRequest<'_>,
    ) -> Result<(), PostError> {
        self.post_send(request)?;
        self.requester.name_receives(receives);
        Ok(())
    }

    /// Takes back the last `count` requests posted to the send queue, as if they had not been posted: they are not
    /// sent, and do not complete. There must be no other call between those posts and this one.
    pub fn withdraw_sends(&mut self, count: usize) {
        match self.state {
            State::Error | State::SendQueueError => self.notifications.withdraw(count),
            _ => self.requester.withdraw(count),
        }
    }

    /// Posts a request to the receive queue. In ERR it is flushed immediately.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; in RESET, [`PostError::State`]; with a shared receive queue,
    /// [`PostError::SharedReceives`].
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.post(request, &self.caps)?;
        // It was posted for the checks, which are the same in every state.
        if self.state == State::Error {
            self.responder.flush(&mut self.notifications);
        }
        Ok(())
    }

    /// Processes a packet. The caller must have checked its ICRC, by
    /// [`wire::icrc::matches`](crate::wire::icrc::matches) or by a trusted lower layer; everything
    /// else about it is untrusted.
    ///
    /// Packets for another queue pair or partition, and packets that the state does not allow, are
    /// dropped silently.
    pub fn receive(&mut self, now: Time, packet: &Packet<'_>, memory: &mut dyn Memory) {
        let bth = packet.bth();
        let opcode = packet.opcode();
        if bth.dest_qpn != self.connection.qpn || !bth.partition.matches(PartitionKey::DEFAULT) {
            return;
        }
        // So is a congestion notification, which has bits of its own: the congestion window follows losses and round
        // trips, and no packet is sent as one that the network may mark.
        if bth.opcode & SERVICE != self.connection.reliability as u8 {
            return;
        }
        let (connection, notifications) = (&self.connection, &mut self.notifications);
        let outcome = match self.state {
            State::ReadyToSend | State::SendQueueDrained if opcode.is_response() => self
                .requester
                .receive(now, packet, connection, memory, notifications),
            state if state.is_receiving() && !opcode.is_response() => {
                // The last message of the connection manager may be lost; the first packet shows as
                // well that the peer is in RTS.
                if self.state == State::ReadyToReceive && !self.established {
                    self.established = true;
                    notifications
                        .events
                        .push_back(Event::CommunicationEstablished);
                }
                match self.connection.reliability {
                    // An initiator answers no requests.
                    Reliability::Extended if !self.responder.receives().is_named() => Ok(()),
                    Reliability::Reliable | Reliability::Extended => {
                        self.responder
                            .receive(now, packet, connection, memory, notifications);
                        Ok(())
                    }
                    Reliability::Unreliable => {
                        self.responder
                            .receive_unreliable(packet, connection, memory, notifications)
                    }
                }
            }
            _ => Ok(()),
        };
        self.enter_error_on_failure(outcome);
        self.report_drained();
    }

    /// Answers the expected packet as if no receive were posted for it (RNR NAK), instead of
    /// [`receive`](Self::receive), to test how the peer reacts. Returns whether the packet with this PSN is the expected
    /// one; if not, nothing happens.
    pub fn refuse_not_ready(&mut self, psn: Psn) -> bool {
        let receives = matches!(
            self.state,
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
        );
        receives && self.responder.refuse_not_ready(psn)
    }

    /// Writes the next packet to the start of `out` and returns its length, or `None` if there is no packet to send.
    /// An acknowledgement follows the first requests that are ready, so that a single system call can send all of
    /// them. The last four bytes are zeros, which [`wire::icrc::seal`](crate::wire::icrc::seal) replaces with the ICRC.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM).
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
        // The limit: a program that always has requests would hold the acknowledgement back for
        // ever.
        let goes_behind = self.requests_ahead < REQUESTS_AHEAD && self.requester.has_unsent();
        let owed = self.responder.owed_acknowledgement();
        if let Some(owed) = owed.filter(|_| goes_behind) {
            self.requests_ahead += 1;
            if let Some(len) = self.poll_request(now, memory, out) {
                return Some(len);
            }
            if self.state == State::Error {
                // A failure of a request drops the responses, but the peer's were executed before it.
                return Some(owed.emit(&self.connection, out));
            }
        }
        self.requests_ahead = 0;
        // A long READ of the peer has thousands of responses, and must not stop the requests of
        // this side.
        let reading = self.responder.is_reading();
        let request_first = reading && self.request_next;
        self.request_next = !request_first;
        if request_first && let Some(len) = self.poll_request(now, memory, out) {
            return Some(len);
        }
        let response = self
            .responder
            .poll(&self.connection, memory, out, &mut self.notifications);
        match response {
            Polled::Packet(len) => Some(len),
            Polled::FatalNak(len) => {
                // The NAK is in `out` already, so ERR does not drop it with the other responses.
                self.to_error();
                Some(len)
            }
            Polled::Nothing if request_first => None,
            Polled::Nothing => self.poll_request(now, memory, out),
        }
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) has to be called. If not, neither a response nor a
    /// request waits to be sent, and it would return `None`.
    pub fn may_transmit(&self) -> bool {
        self.responder.has_responses() || self.requester.has_unsent()
    }

    /// Returns whether an acknowledgement is all that waits to be sent. The owner may hold it back for a moment, much
    /// shorter than the peer's timeout, so that it can be sent together with the program's answer to the peer's
    /// message.
    pub fn owes_only_acknowledgement(&self) -> bool {
        self.responder.owed_acknowledgement().is_some() && !self.requester.has_unsent()
    }

    /// Queues the acknowledgement of all executed messages, if it is due or will be, and returns whether one is
    /// queued. This is for a connection that is about to end, so that its peer does not run into a timeout.
    pub fn acknowledge(&mut self) -> bool {
        self.responder.acknowledge_unrequested();
        self.responder.owed_acknowledgement().is_some()
    }

    /// Completes requests that the peer has not acknowledged, and all later ones, with
    /// [`WcStatus::RetryExceeded`](crate::WcStatus), as if all retries were exhausted, because the owner knows that the
    /// peer has ended. An unreliable connection is not affected.
    pub fn end_peer(&mut self) {
        self.requester.end_peer();
    }

    /// How many more requests the send queue takes.
    pub fn send_room(&self) -> u32 {
        self.requester.room(&self.caps)
    }

    /// Returns whether READs and atomics may be posted.
    pub fn takes_reads(&self) -> bool {
        self.requester.takes_reads()
    }

    /// Returns whether a request may wait to be sent.
    pub fn has_unsent_requests(&self) -> bool {
        self.requester.has_unsent()
    }

    fn poll_request(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Option<usize> {
        if !matches!(self.state, State::ReadyToSend | State::SendQueueDrained) {
            return None;
        }
        let (connection, notifications) = (&self.connection, &mut self.notifications);
        let polled = match connection.reliability {
            Reliability::Reliable | Reliability::Extended => {
                self.requester
                    .poll(now, connection, memory, out, notifications)
            }
            Reliability::Unreliable => {
                self.requester
                    .poll_unreliable(connection, memory, out, notifications)
            }
        };
        match polled {
            Ok(len) => {
                self.report_drained();
                len
            }
            Err(ConnectionFailed) => {
                // Without acknowledgements a failed request says nothing about what is received, so
                // only the send queue stops (IBTA 10.3.1.6).
                match self.connection.reliability {
                    Reliability::Reliable | Reliability::Extended => self.to_error(),
                    Reliability::Unreliable => self.stop_sends(),
                }
                None
            }
        }
    }

    /// Returns whether request packets were sent that are not acknowledged.
    pub fn has_outstanding(&self) -> bool {
        self.requester.has_outstanding()
    }

    /// Returns when [`handle_deadline`](Self::handle_deadline) must be called, or `None` if it need not be. Every other
    /// call may change this.
    pub fn next_deadline(&self) -> Option<Time> {
        let deadlines = [
            self.requester.next_deadline(),
            self.responder.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Processes the timers that have expired at `now`, after which packets may be ready for transmission. Does nothing
    /// before the deadline.
    pub fn handle_deadline(&mut self, now: Time) {
        self.responder.handle_deadline(now);
        let handled = self.requester.handle_deadline(now, &mut self.notifications);
        self.enter_error_on_failure(handled);
    }

    /// Changes the state to ERR if the connection has failed.
    fn enter_error_on_failure(&mut self, outcome: Result<(), ConnectionFailed>) {
        if let Err(ConnectionFailed) = outcome {
            self.to_error();
        }
    }

    /// Returns the counters of this connection. RESET sets them to zero.
    pub fn statistics(&self) -> Statistics {
        self.requester.statistics + self.responder.statistics
    }

    /// Returns counters of what it has done for the peer. RESET sets them to zero.
    pub fn served(&self) -> Served {
        self.responder.served
    }

    /// Removes and returns the oldest completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.notifications.completions.pop_front()
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.notifications.events.pop_front()
    }
}
