//! The engine's state of a queue pair.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::wire::Packet;
use gdr_roce::{Memory, State, Time, UdReceived};

use super::answers::Answers;
use super::cq_entries::{Announcement, CqEntries, CqProducer, Producers, received_bytes};
use super::memory::DomainMemory;
use super::posted_requests::PostedRequests;
use super::qp_table::Acceptance;
use super::send_limit::{SendLimit, SendRate};
use super::srq_context::SrqContext;
use super::transport::Transport;
use super::xrc_context::XrcContext;
use crate::bounded_queue::Pushed;
use crate::chaos::{ALARM, DEVICE_ALARM, QpChaos};
use crate::peer::Peer;
use crate::retained::{RetainedList, append};
use crate::types::{Counters, Domain};
use crate::wire::memory::{Exports, Reference, RingId, Rings, UdpUse};
use gdr_udp::Datagram;

/// How the engine handles an acknowledgement owed by a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledgement {
    /// To be sent, unless there is a reason to hold it back.
    Due,
    /// Held back for the program's reply; the queue pair is on the engine's list of such.
    Kept,
    /// Held back long enough.
    Released,
}

/// Whether posting threads may leave a queue pair's requests in the engine's intake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IntakeUse {
    /// No: they wait for the engine.
    Closed,
    /// Yes.
    Open {
        /// This many consecutive posts did not make use of it.
        unused: u32,
        /// The number of requests that were promised room in the send queue when it was opened. Some of them may be
        /// posted by now.
        promised: u32,
    },
}

/// The source of a queue pair's receives.
pub(crate) enum Receives {
    /// A private queue.
    Own,
    /// A queue shared with other queue pairs.
    Shared(Arc<SrqContext>),
    /// The queues of an XRC domain, named by messages. They complete there, for this shard.
    Named(Arc<XrcContext>, usize),
}

impl Receives {
    /// Returns the XRC domain.
    pub(crate) fn xrc(&self) -> Option<&Arc<XrcContext>> {
        match self {
            Self::Named(xrc, _) => Some(xrc),
            Self::Own | Self::Shared(_) => None,
        }
    }
}

/// A queue pair: the protocol's state, its outstanding requests, and the engine's scheduling state.
pub(crate) struct QpContext {
    pub(crate) transport: Transport,
    pub(crate) domain: Domain,
    pub(crate) receives: Receives,
    /// The peer, if this is a connection.
    pub(crate) peer: Option<Peer>,
    /// The ring to the peer, if there is one.
    pub(crate) ring: Option<RingId>,
    /// GPU memory of this process that the peer may import.
    pub(crate) exports: Option<Arc<Exports>>,
    /// Set for a connection that receives over UDP.
    pub(crate) udp_use: Option<UdpUse>,
    /// The last ring packet that refers to memory of its requests.
    pub(crate) reference: Option<Reference>,
    /// It receives, and some peer may send packets without UDP checksums.
    pub(crate) may_omit_checksum: bool,
    /// Whether it is on the engine's ready list.
    pub(crate) is_ready: bool,
    pub(crate) answers: Answers,
    pub(crate) acknowledgement: Acknowledgement,
    /// Its entry in the engine's timers: its deadline, or an earlier time.
    pub(crate) timer: Option<Time>,
    pub(crate) requests: PostedRequests,
    pub(crate) intake: IntakeUse,
    /// Its injected faults. With them, every request completes.
    pub(crate) chaos: Option<Box<QpChaos>>,
    send_completions: CqProducer,
    recv_completions: CqProducer,
}

impl QpContext {
    pub(crate) fn new(
        transport: Transport,
        domain: Domain,
        send_completions: CqProducer,
        recv_completions: CqProducer,
    ) -> Self {
        Self {
            transport,
            domain,
            receives: Receives::Own,
            peer: None,
            ring: None,
            exports: None,
            udp_use: None,
            reference: None,
            may_omit_checksum: false,
            is_ready: false,
            answers: Answers::default(),
            acknowledgement: Acknowledgement::Due,
            timer: None,
            requests: PostedRequests::default(),
            intake: IntakeUse::Closed,
            chaos: None,
            send_completions,
            recv_completions,
        }
    }

    /// Returns the same queue pair, in RESET, and what its requests retained. Completions not yet polled are removed: a
    /// program that resets a queue pair after a failure does not expect completions of flushed requests.
    pub(crate) fn into_fresh(mut self) -> (Self, RetainedList) {
        // Undelivered completions belong to the time before the reset.
        let mut retained = RetainedList::new();
        self.complete(&mut retained, &mut BTreeSet::new(), &mut |_| {});
        let (send, recv) = (self.send_completions, self.recv_completions);
        // The program must not mistake an old request's result for that of a new one with the same identifier.
        for queue in [&send, &recv] {
            queue.remove(self.transport.qpn());
        }
        retained.extend(self.requests.reset());
        let mut fresh = Self::new(self.transport, self.domain, send, recv);
        fresh.receives = self.receives;
        // The number may already be on the engine's list, and must not be there twice.
        fresh.is_ready = self.is_ready;
        fresh.requests = self.requests;
        fresh.chaos = self.chaos.map(|faults| Box::new(faults.renewed()));
        (fresh, retained)
    }

    /// Stops the peer from reading the memory of its requests, which the program is about to get back.
    pub(crate) fn end_references(&mut self) {
        if let Some(reference) = self.reference.take() {
            reference.end();
        }
    }

    /// Switches to the network: the ring has ended, or leads to another address.
    pub(crate) fn leave_ring(&mut self, rings: &Rings) {
        (self.ring, self.exports) = (None, None);
        self.udp_use.get_or_insert_with(|| rings.udp_use());
        if let Some(roce) = self.transport.connection() {
            roce.send_by_network();
        }
    }

    /// Returns whether the program's threads leave its shard to the progress thread, because its send completion queue
    /// also belongs to queue pairs of other shards.
    pub(crate) fn is_left_to_thread(&self) -> bool {
        self.send_completions.producers() == Producers::Several
    }

    /// Returns whether packets from `source` are accepted. Any host may send datagrams.
    pub(crate) fn accepts(&self, source: SocketAddr) -> bool {
        // Checks the address as well as the number, which any host could guess.
        match &self.transport {
            Transport::Connection(_) => self.peer.is_some_and(|peer| peer.sends_from(source)),
            Transport::Datagrams(_) => true,
            Transport::RawPackets(_) => false,
        }
    }

    /// Processes a packet with a correct ICRC.
    // Avoids moving `memory`, which is large.
    #[inline(always)]
    pub(crate) fn receive<'a>(
        &'a mut self,
        now: Time,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
        mut memory: DomainMemory<'a, '_>,
        counters: &mut Counters,
    ) -> Acceptance {
        match &mut self.transport {
            Transport::Connection(roce) => {
                memory.exports = self.exports.as_ref();
                memory.xrc = self.receives.xrc().map(Arc::as_ref);
                roce.receive(now, packet, &mut memory);
                match memory.is_too_early {
                    true => Acceptance::NotYet,
                    false => Acceptance::Accepted,
                }
            }
            Transport::Datagrams(roce) => {
                // A datagram cannot be placed without its network header, as the receive starts with it.
                let Some(grh) = datagram.grh() else {
                    return Acceptance::Ignored;
                };
                match roce.receive(packet, &grh, &mut memory) {
                    UdReceived::Completed => return Acceptance::Accepted,
                    UdReceived::WrongQkey => counters.wrong_qkey += 1,
                    UdReceived::NoReceive => counters.no_receive += 1,
                    UdReceived::Ignored => {}
                }
                Acceptance::Ignored
            }
            Transport::RawPackets(_) => Acceptance::Ignored,
        }
    }

    /// Returns whether it is a connection without anything to send, and without injected faults, which may send more.
    pub(crate) fn has_nothing_to_send(&self) -> bool {
        let is_idle =
            matches!(&self.transport, Transport::Connection(roce) if !roce.may_transmit());
        is_idle && self.chaos.is_none()
    }

    /// Returns whether [`QpContext::poll_transmit`] may have something to send.
    pub(crate) fn may_transmit(&self) -> bool {
        match &self.transport {
            Transport::Connection(roce) => roce.may_transmit(),
            Transport::Datagrams(_) => true,
            Transport::RawPackets(_) => false,
        }
    }

    /// Returns until when the device's rate limit makes it wait; `None` if it may send now. Acknowledgements count
    /// toward the limit but never wait, or the peer would retransmit packets that have arrived.
    pub(crate) fn limited_until(
        &self,
        limit: &SendLimit,
        rate: Option<SendRate>,
        now: Time,
    ) -> Option<Time> {
        let until = limit.wait(rate?, now)?;
        (!self.transport.owes_only_acknowledgement()).then_some(until)
    }

    /// Writes the next RoCE packet to `out`. Returns its length and destination.
    pub(crate) fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Option<(usize, SocketAddr)> {
        match &mut self.transport {
            Transport::Connection(roce) => {
                let peer = self.peer?;
                Some((roce.poll_transmit(now, memory, out)?, peer.address))
            }
            Transport::Datagrams(roce) => roce.poll_transmit(memory, out),
            Transport::RawPackets(_) => None,
        }
    }

    /// Attaches injected faults.
    pub(crate) fn add_chaos(&mut self, faults: QpChaos) {
        self.requests.watch_all(self.transport.served());
        self.chaos = Some(Box::new(faults));
    }

    /// Delivers completions to their queues, and adds what the completed requests retained to `completed`. Calls
    /// `overrun` for a queue that has lost its first completion. Returns whether any completion was announced.
    pub(crate) fn complete(
        &mut self,
        completed: &mut RetainedList,
        timers: &mut BTreeSet<(Time, u32)>,
        overrun: &mut dyn FnMut(&CqEntries),
    ) -> Announcement {
        let served = self.transport.served();
        if let Some(counting) = self.requests.counting() {
            counting.count_served(served);
            if self.chaos.is_some() {
                return self.complete_by_chaos(completed, timers, overrun);
            }
        }
        let (lost, announced) = self.deliver(completed, overrun);
        if lost && self.transport.state() != State::Error {
            // As in libibverbs: with completions lost, the state of its requests is unknown.
            self.transport.enter_error();
            // Further overruns are not reported.
            self.complete(completed, timers, &mut |_| {});
        }
        announced
    }

    /// Delivers completions to their queues, or diverts them to injected faults. Returns whether one was lost, and
    /// whether any was announced.
    // Inlined for the usual case without faults.
    #[inline(always)]
    fn deliver(
        &mut self,
        completed: &mut RetainedList,
        overrun: &mut dyn FnMut(&CqEntries),
    ) -> (bool, Announcement) {
        let (mut lost, mut announced) = (false, Announcement::None);
        while let Some(mut completion) = self.transport.poll_completion() {
            let number = completion.id.0;
            self.requests.payload.receive += received_bytes(&completion);
            let queue = match (completion.opcode.is_receive(), &self.receives) {
                (true, Receives::Shared(srq)) => {
                    // The protocol uses its own number for the request; the program gets the identifier that it chose.
                    if let Some(request) = srq.complete(number) {
                        completion.id = request.id;
                        append(completed, request.retained);
                    }
                    &self.recv_completions
                }
                (true, Receives::Own) => {
                    self.requests.complete_receives(&mut completion, completed);
                    &self.recv_completions
                }
                (true, Receives::Named(xrc, shard)) => {
                    let Some(queue) = xrc.of_receive(number) else {
                        // The program has destroyed the queue.
                        continue;
                    };
                    if let Some(request) = queue.receives.complete(number) {
                        completion.id = request.id;
                        append(completed, request.retained);
                    }
                    // Neither counted nor subject to faults: counters and faults belong to this queue pair, the
                    // completion queue does not.
                    let (pushed, announcement) = queue.completions(*shard).push(completion);
                    if announcement == Announcement::Sent {
                        announced = announcement;
                    }
                    if pushed == Pushed::FirstLost {
                        overrun(queue.completions(*shard));
                    }
                    lost |= pushed != Pushed::Stored;
                    continue;
                }
                (false, _) => {
                    self.requests.complete_sends(&mut completion, completed);
                    &self.send_completions
                }
            };
            if let Some(counting) = self.requests.counting()
                && !counting.count(&completion, number)
            {
                continue;
            }
            let (pushed, announcement) = queue.push(completion);
            if announcement == Announcement::Sent {
                announced = announcement;
            }
            match pushed {
                Pushed::Stored => continue,
                Pushed::FirstLost => overrun(queue),
                Pushed::Lost => {}
            }
            lost = true;
        }
        (lost, announced)
    }

    /// Passes completions to the queue pair's faults.
    fn divert(
        &mut self,
        faults: &mut QpChaos,
        completed: &mut RetainedList,
        overrun: &mut dyn FnMut(&CqEntries),
    ) {
        loop {
            self.deliver(completed, overrun);
            let counting = self.requests.counting();
            let Some((completion, is_silent)) = counting.and_then(|it| it.take_diverted()) else {
                return;
            };
            if faults.complete(completion, is_silent) {
                self.transport.enter_error();
            }
        }
    }

    /// Like [`QpContext::complete`], through the queue pair's faults.
    #[cold]
    #[inline(never)]
    fn complete_by_chaos(
        &mut self,
        completed: &mut RetainedList,
        timers: &mut BTreeSet<(Time, u32)>,
        overrun: &mut dyn FnMut(&CqEntries),
    ) -> Announcement {
        let mut announced = Announcement::None;
        let Some(mut faults) = self.chaos.take() else {
            return announced;
        };
        let waits = faults.is_placing();
        if !waits {
            self.divert(&mut faults, completed, overrun);
        }
        loop {
            let has_failed = self.transport.state() == State::Error;
            let next = match waits {
                true => None,
                false => faults.take_completion(has_failed),
            };
            let Some(completion) = next else {
                break;
            };
            let queue = match completion.opcode.is_receive() {
                true => &self.recv_completions,
                false => &self.send_completions,
            };
            let (pushed, announcement) = queue.push(completion);
            if announcement == Announcement::Sent {
                announced = announcement;
            }
            if pushed == Pushed::FirstLost {
                overrun(queue);
            }
            if pushed != Pushed::Stored {
                self.transport.enter_error();
            }
        }
        let qpn = self.transport.qpn().get();
        if let Some(next) = faults.next() {
            timers.insert((next, qpn | ALARM));
        }
        if let Some(next) = faults.next_of_device() {
            timers.insert((next, DEVICE_ALARM));
        }
        self.chaos = Some(faults);
        announced
    }
}
