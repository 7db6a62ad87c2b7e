//! The queue pair: its state machine and its owner's interface.

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

/// The number of request packets that may precede a pending acknowledgement: about as many as one system call sends,
/// whose last packet may be the shorter acknowledgement.
const REQUESTS_AHEAD: u32 = 16;

/// One end of a connection: a requester and a responder. The connection is reliable unless created by
/// [`QueuePair::unreliable`].
///
/// It owns no memory, socket or clock. Its owner must:
///
/// 1. pass every packet addressed to it to [`receive`](Self::receive),
/// 2. call [`poll_transmit`](Self::poll_transmit) and send the packet, until there is none,
/// 3. call [`handle_deadline`](Self::handle_deadline) at [`next_deadline`](Self::next_deadline), then continue with 2,
/// 4. call [`poll_completion`](Self::poll_completion) and [`poll_event`](Self::poll_event).
///
/// It is deterministic: the same calls with the same arguments give the same results, provided that shared objects
/// ([`SharedReceiveQueue`], [`PacketBudget`]) are in the same state.
#[derive(Debug)]
pub struct QueuePair {
    caps: Capabilities,
    config: TransportConfig,
    state: State,
    connection: Connection,
    requester: Requester,
    responder: Responder,
    notifications: Notifications,
    /// Alternates between requests and queued READ responses: set if the next packet is a request.
    request_next: bool,
    /// Requests sent ahead of the pending acknowledgement.
    requests_ahead: u32,
    established: bool,
    /// In SQD, and the end of draining has not been reported yet.
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

    /// Creates the requesting end of an extended reliable connection (XRC), in RESET. Requests are posted with
    /// [`post_send_to`](Self::post_send_to). This end receives no requests.
    pub fn initiator(qpn: Qpn, caps: Capabilities, config: TransportConfig) -> Self {
        let receives = ReceiveQueue::new(None);
        Self::with_receives(qpn, caps, config, Reliability::Extended, receives)
    }

    /// Creates the receiving end of an extended reliable connection (XRC), in RESET. Requests consume receives from the
    /// queue in `domain` that they name; naming an unknown queue makes a request invalid. Completions carry this queue
    /// pair's number.
    pub fn target(qpn: Qpn, config: TransportConfig, domain: &XrcDomain) -> Self {
        let caps = Capabilities {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_inline: 0,
        };
        let receives = ReceiveQueue::named(domain.clone());
        Self::with_receives(qpn, caps, config, Reliability::Extended, receives)
    }

    /// Creates one end of an unreliable connection (UC), in RESET. Receives come from `shared`, if given.
    ///
    /// It supports only SEND and WRITE, which complete once their last packet is sent. Nothing is acknowledged or
    /// retransmitted. A message is dropped if one of its packets is lost, if it is not permitted or does not fit, or if
    /// it needs a receive and none is posted; if it had already taken a receive, the next message uses that. A receive
    /// whose segments are not registered completes with [`WcStatus::LocalProtection`], and the queue pair enters ERR. A
    /// send request with such segments completes with the same status, and the queue pair enters SQE.
    ///
    /// Attributes in [`RtrAttributes`] and [`RtsAttributes`] that limit READs or control acknowledgements and retries
    /// have no effect.
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

    /// Charges packets buffered beyond a gap to `budget`, which several queue pairs may share. By default, each queue
    /// pair has its own budget of [`PacketBudget::DEFAULT`].
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

    /// Returns the queue sizes it was created with.
    pub const fn capabilities(&self) -> &Capabilities {
        &self.caps
    }

    /// Returns the flow control parameters it was created with.
    pub const fn config(&self) -> &TransportConfig {
        &self.config
    }

    /// Returns the current state.
    pub const fn state(&self) -> State {
        self.state
    }

    /// Enters INIT from RESET; receives can then be posted. `access` limits the peer's access beyond what memory
    /// regions permit.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RESET.
    pub fn to_init(&mut self, access: Access) -> Result<(), StateError> {
        self.state.transition(State::Reset, State::Init)?;
        self.responder.set_access(access);
        Ok(())
    }

    /// Changes the peer's access rights, in any state but RESET, which permits nothing.
    pub fn set_access(&mut self, access: Access) {
        if self.state != State::Reset {
            self.responder.set_access(access);
        }
    }

    /// Enters RTR from INIT; the peer's requests are then served.
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

    /// Enters RTS from RTR; requests can then be posted.
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

    /// Enters SQD from RTS: requests in progress are finished, and others stay queued. [`Event::SendQueueDrained`]
    /// follows.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTS.
    pub fn to_sqd(&mut self) -> Result<(), StateError> {
        self.state
            .transition(State::ReadyToSend, State::SendQueueDrained)?;
        self.requester.drain();
        self.draining = true;
        // With nothing outstanding, no later call would report it.
        self.report_drained();
        Ok(())
    }

    /// Enters RTS from SQD or SQE.
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

    /// Reports, once, that the send queue is drained.
    fn report_drained(&mut self) {
        if self.draining && self.requester.is_drained() {
            self.draining = false;
            self.notifications.events.push_back(Event::SendQueueDrained);
        }
    }

    /// Sets the loss recovery method, which must match the peer's. Must be called before RTR. An unreliable connection
    /// does not recover losses.
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

    /// Changes the requester's attributes, except for the PSN.
    pub fn set_rts_attributes(&mut self, attributes: &RtsAttributes) {
        self.requester
            .set_attributes(attributes, self.connection.reliability);
    }

    /// Records that packets go through a network from now on, after packets whose payload was passed by reference.
    pub fn send_by_network(&mut self) {
        self.requester.send_by_network();
    }

    /// Changes the delay in RNR NAKs.
    pub fn set_min_rnr_timer(&mut self, timer: RnrTimer) {
        self.responder.set_rnr_timer(timer);
    }

    /// Changes the limit on the peer's outstanding READs and atomics.
    pub fn set_max_dest_rd_atomic(&mut self, most: u8) {
        self.responder.set_max_rd_atomic(most);
    }

    /// Enters ERR from any state but RESET. Posted requests complete with [`WrFlushed`](crate::WcStatus::WrFlushed).
    /// From then on packets are neither received nor sent: queued responses, including the rest of a READ, are dropped,
    /// and memory is not read again.
    pub fn to_error(&mut self) {
        if matches!(self.state, State::Reset | State::Error) {
            return;
        }
        self.state = State::Error;
        self.draining = false;
        self.requester.flush(&mut self.notifications);
        self.responder.flush(&mut self.notifications);
        // After the last completion: once it is reported, the program may free what its shared receives use.
        if self.responder.receives().is_shared() {
            self.notifications.events.push_back(Event::LastWqeReached);
        }
    }

    /// Enters ERR because bytes accepted by its [`Memory`] did not reach their destination. Requests that have arrived
    /// but whose completions were not [polled](Self::poll_completion) complete with
    /// [`LocalOperation`](crate::WcStatus::LocalOperation), and are not acknowledged.
    pub fn fail_placement(&mut self) {
        // A polled completion cannot be taken back, so only the others change.
        for completion in &mut self.notifications.completions {
            let has_bytes = completion.opcode.is_receive() || completion.opcode == WcOpcode::Read;
            if has_bytes && completion.status == WcStatus::Success {
                (completion.status, completion.byte_len) = (WcStatus::LocalOperation, 0);
            }
        }
        self.to_error();
    }

    /// Enters SQE, flushing the rest of the send queue.
    fn stop_sends(&mut self) {
        self.state = State::SendQueueError;
        self.draining = false;
        // It may have been draining, and must start requests again once it is back in RTS.
        self.requester.resume();
        self.requester.flush(&mut self.notifications);
    }

    /// Enters RESET from any state. Posted requests are discarded without a completion, and a receive taken from a
    /// shared queue is put back. Earlier completions and events can still be polled.
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

    /// Like [`post_send`](Self::post_send), for an [`initiator`](Self::initiator): `receives` is the shared receive
    /// queue that the peer takes the receive from. Other services do not send this number.
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

    /// Withdraws the last `count` requests posted to the send queue: they are neither sent nor completed. There must be
    /// no other call between those posts and this one.
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
    /// See [`PostError`]; in RESET, [`PostError::State`]; with a shared receive queue, [`PostError::SharedReceives`].
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State(self.state));
        }
        self.responder.post(request, &self.caps)?;
        // Posted above for the sake of the checks, which are the same in every state.
        if self.state == State::Error {
            self.responder.flush(&mut self.notifications);
        }
        Ok(())
    }

    /// Processes a packet. Its ICRC must have been verified, by [`wire::icrc::matches`](crate::wire::icrc::matches) or
    /// by a trusted lower layer; everything else about it is untrusted.
    ///
    /// Packets for another queue pair or partition, and packets not allowed in the current state, are dropped silently.
    pub fn receive(&mut self, now: Time, packet: &Packet<'_>, memory: &mut dyn Memory) {
        let bth = packet.bth();
        let opcode = packet.opcode();
        if bth.dest_qpn != self.connection.qpn || !bth.partition.matches(PartitionKey::DEFAULT) {
            return;
        }
        // Also drops congestion notifications, which have service bits of their own: the congestion window follows
        // losses and round trips, and no packet is sent as ECN-capable.
        if bth.opcode & SERVICE != self.connection.reliability as u8 {
            return;
        }
        let (connection, notifications) = (&self.connection, &mut self.notifications);
        let outcome = match self.state {
            State::ReadyToSend | State::SendQueueDrained if opcode.is_response() => self
                .requester
                .receive(now, packet, connection, memory, notifications),
            state if state.is_receiving() && !opcode.is_response() => {
                // The connection manager's last message may be lost; the first packet equally shows that the peer is in
                // RTS.
                if self.state == State::ReadyToReceive && !self.established {
                    self.established = true;
                    notifications
                        .events
                        .push_back(Event::CommunicationEstablished);
                }
                match self.connection.reliability {
                    // An initiator serves no requests.
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

    /// Answers the expected packet as if no receive were posted (RNR NAK), instead of calling
    /// [`receive`](Self::receive), to test the peer's reaction. Returns whether the packet with this PSN is the
    /// expected one; if not, nothing happens.
    pub fn refuse_not_ready(&mut self, psn: Psn) -> bool {
        let receives = matches!(
            self.state,
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained
        );
        receives && self.responder.refuse_not_ready(psn)
    }

    /// Writes the next packet to the start of `out`. Returns its length, or `None` if there is nothing to send. An
    /// acknowledgement is sent after the first requests that are ready, so that a single system call can send all of
    /// them. The last four bytes are zeros, to be replaced by the ICRC with
    /// [`wire::icrc::seal`](crate::wire::icrc::seal).
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
        // Bounded, as a program that always has requests would otherwise hold back the acknowledgement forever.
        let goes_behind = self.requests_ahead < REQUESTS_AHEAD && self.requester.has_unsent();
        let owed = self.responder.owed_acknowledgement();
        if let Some(owed) = owed.filter(|_| goes_behind) {
            self.requests_ahead += 1;
            if let Some(len) = self.poll_request(now, memory, out) {
                return Some(len);
            }
            if self.state == State::Error {
                // A failed request drops queued responses, but the peer's requests were executed before it.
                return Some(owed.emit(&self.connection, out));
            }
        }
        self.requests_ahead = 0;
        // A long READ by the peer has thousands of responses, which must not starve local requests.
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
                // The NAK is already in `out`, so entering ERR does not drop it with the other responses.
                self.to_error();
                Some(len)
            }
            Polled::Nothing if request_first => None,
            Polled::Nothing => self.poll_request(now, memory, out),
        }
    }

    /// Posts a request and writes its only packet to the start of `out`, as [`post_send`](Self::post_send) and
    /// [`poll_transmit`](Self::poll_transmit) would, but faster. `fill` copies the payload: the bytes of the request's
    /// segments, whose registration it checks, or its inline data.
    ///
    /// Returns `None`, with nothing posted, unless this is a reliable connection in RTS, the request is a SEND or WRITE
    /// of one packet, no other request is to be sent first, the packet may leave now, and `fill` succeeds.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM).
    #[inline(always)]
    pub fn post_and_transmit<E>(
        &mut self,
        request: &SendRequest<'_>,
        now: Time,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
        out: &mut [u8],
    ) -> Option<usize> {
        assert!(
            out.len() >= MAX_DATAGRAM,
            "out holds {} bytes, not {MAX_DATAGRAM}",
            out.len()
        );
        let (caps, connection) = (&self.caps, &self.connection);
        // Only an acknowledgement goes behind requests, as in `poll_transmit`.
        let has_responses = self.responder.has_responses();
        let goes_first = !has_responses
            || self.requests_ahead < REQUESTS_AHEAD
                && self.responder.owed_acknowledgement().is_some();
        let is_usual = self.state == State::ReadyToSend
            && connection.reliability == Reliability::Reliable
            && goes_first;
        if !is_usual {
            return None;
        }
        let written = self
            .requester
            .post_and_write(request, caps, connection, now, fill, out)?;
        self.requests_ahead = match has_responses {
            true => self.requests_ahead + 1,
            false => 0,
        };
        Some(written)
    }

    /// Writes the acknowledgement to the start of `out`, if it [owes only that](Self::owes_only_acknowledgement). Returns
    /// its length.
    pub fn transmit_acknowledgement(&mut self, out: &mut [u8]) -> Option<usize> {
        if self.requester.has_unsent() {
            return None;
        }
        let owed = self.responder.take_owed_acknowledgement()?;
        self.requests_ahead = 0;
        Some(owed.emit(&self.connection, out))
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) must be called. If not, it has nothing to send and would
    /// return `None`.
    pub fn may_transmit(&self) -> bool {
        self.responder.has_responses() || self.requester.has_unsent()
    }

    /// Returns whether an acknowledgement is all there is to send. The owner may hold it back for a moment, much
    /// shorter than the peer's timeout, so that it leaves together with the program's reply to the peer's message.
    pub fn owes_only_acknowledgement(&self) -> bool {
        self.responder.owed_acknowledgement().is_some() && !self.requester.has_unsent()
    }

    /// Queues the acknowledgement of all executed messages, whether or not it is due yet; returns whether one is
    /// queued. Meant for a connection that is about to end, so that its peer does not run into a timeout.
    pub fn acknowledge(&mut self) -> bool {
        self.responder.acknowledge_unrequested();
        self.responder.owed_acknowledgement().is_some()
    }

    /// Completes all unacknowledged and later requests with [`WcStatus::RetryExceeded`](crate::WcStatus), as if all
    /// retries were exhausted: the owner knows that the peer has ended. An unreliable connection is not affected.
    pub fn end_peer(&mut self) {
        self.requester.end_peer();
    }

    /// Returns how many more requests fit the send queue.
    pub fn send_room(&self) -> u32 {
        self.requester.room(&self.caps)
    }

    /// Returns whether READs and atomics may be posted.
    pub fn takes_reads(&self) -> bool {
        self.requester.takes_reads()
    }

    /// Returns whether a request may be waiting for transmission.
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
                // Without acknowledgements, a failed request does not affect the receiving side, so only the send queue
                // stops (IBTA 10.3.1.6).
                match self.connection.reliability {
                    Reliability::Reliable | Reliability::Extended => self.to_error(),
                    Reliability::Unreliable => self.stop_sends(),
                }
                None
            }
        }
    }

    /// Returns whether any request packet is unacknowledged.
    pub fn has_outstanding(&self) -> bool {
        self.requester.has_outstanding()
    }

    /// Returns when [`handle_deadline`](Self::handle_deadline) must be called; `None` if no timer runs. Any other call
    /// may change this.
    pub fn next_deadline(&self) -> Option<Time> {
        Time::earlier(
            self.requester.next_deadline(),
            self.responder.next_deadline(),
        )
    }

    /// Processes timers that have expired at `now`; packets may then be ready for transmission. Does nothing before the
    /// deadline.
    pub fn handle_deadline(&mut self, now: Time) {
        self.responder.handle_deadline(now);
        let handled = self.requester.handle_deadline(now, &mut self.notifications);
        self.enter_error_on_failure(handled);
    }

    /// Enters ERR if the connection has failed.
    fn enter_error_on_failure(&mut self, outcome: Result<(), ConnectionFailed>) {
        if let Err(ConnectionFailed) = outcome {
            self.to_error();
        }
    }

    /// Returns the connection's counters, which RESET clears.
    pub fn statistics(&self) -> Statistics {
        self.requester.statistics + self.responder.statistics
    }

    /// Returns counters of the peer's executed requests, which RESET clears.
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
