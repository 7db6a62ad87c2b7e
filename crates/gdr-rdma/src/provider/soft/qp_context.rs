//! The engine's part of a queue pair.

use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;

use gdr_roce::wire::Packet;
use gdr_roce::{
    Capabilities, LossRecovery, Memory, Mtu, Operation, PostError, QueuePair, SendFlags,
    SharedReceiveQueue, State, Time, TransportConfig, UdQueuePair, UdReceived, WrId,
};

use super::answers::Answers;
use super::completion_counting::CompletionCounting;
use super::cq_entries::{Announcement, CqEntries, CqProducer, Producers, received_bytes};
use super::rx::Datagram;
use super::srq_context::SrqContext;
use super::transport::{RawSegments, Transport};
use crate::bounded_queue::Pushed;
use crate::memory_region::Segment;
use crate::outstanding::{Outstanding, OutstandingQueue, Segments};
use crate::types::{Counters, DomainId, PayloadBytes, SourcePort};
use crate::work_request::{Data, RecvRequest, SendRequest, UdSendRequest};

/// The bytes that a request counts at least while requests are deferred: eight go together.
const SHORT: usize = 4096;

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The address at which it receives.
    pub(crate) address: SocketAddr,
    /// The UDP port from which it sends.
    pub(crate) source_port: SourcePort,
    /// How the connection recovers losses.
    pub(crate) loss_recovery: LossRecovery,
}

impl Peer {
    /// Whether a packet from `source` can be the peer's.
    pub(super) fn sends_from(&self, source: SocketAddr) -> bool {
        match self.source_port {
            SourcePort::OfAddress => {
                (self.address.ip(), self.address.port()) == (source.ip(), source.port())
            }
            SourcePort::Any => self.address.ip() == source.ip(),
        }
    }
}

/// What the engine does with an acknowledgement that a queue pair owes its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acknowledgement {
    /// It is sent, unless there is a reason to keep it back.
    Due,
    /// It waits for the program's answer: the queue pair is on the engine's list of those.
    Kept,
    /// It has waited.
    Released,
}

/// A queue pair: the protocol's part, its outstanding requests, and what the engine schedules by.
pub(super) struct QpContext {
    pub(super) roce: Transport,
    pub(super) domain: DomainId,
    /// The shared queue that its receives come from.
    pub(super) srq: Option<Arc<SrqContext>>,
    /// The peer of a connection.
    pub(super) peer: Option<Peer>,
    /// It receives, and a peer of it may be one that sets no UDP checksums.
    pub(super) may_omit_checksum: bool,
    /// Whether it is on the engine's list of queue pairs with something to do.
    pub(super) is_ready: bool,
    pub(super) answers: Answers,
    pub(super) acknowledgement: Acknowledgement,
    /// The bytes that were posted since the engine last sent for it; a short request counts as
    /// [`SHORT`].
    pub(super) deferred: usize,
    /// Its entry in the engine's timers: its deadline, or an earlier time.
    pub(super) timer: Option<Time>,
    pub(super) payload: PayloadBytes,
    /// The counters of its completions, if it has any.
    pub(super) counting: Option<Box<CompletionCounting>>,
    send_completions: CqProducer,
    recv_completions: CqProducer,
    sends: OutstandingQueue<()>,
    receives: OutstandingQueue<()>,
    next_number: u64,
}

impl QpContext {
    pub(super) fn new(
        roce: Transport,
        domain: DomainId,
        send_completions: CqProducer,
        recv_completions: CqProducer,
    ) -> Self {
        Self {
            roce,
            domain,
            srq: None,
            peer: None,
            may_omit_checksum: false,
            is_ready: false,
            answers: Answers::default(),
            acknowledgement: Acknowledgement::Due,
            deferred: 0,
            timer: None,
            payload: PayloadBytes::default(),
            counting: None,
            send_completions,
            recv_completions,
            sends: OutstandingQueue::default(),
            receives: OutstandingQueue::default(),
            next_number: 0,
        }
    }

    /// The same queue pair, which is in RESET, and the segments of its requests. Its completions that
    /// were not taken are removed: a program that resets a queue pair after a failure does not
    /// expect those of the requests that were flushed.
    pub(super) fn into_fresh(mut self) -> (Self, Segments) {
        // Completions that the protocol has not delivered belong to the time before.
        let mut segments = Segments::new();
        self.complete(&mut segments, &mut |_| {});
        let (send, recv) = (self.send_completions, self.recv_completions);
        for queue in [&send, &recv] {
            queue.remove(self.roce.qpn());
        }
        let mut fresh = Self::new(self.roce, self.domain, send, recv);
        fresh.srq = self.srq;
        fresh.is_ready = self.is_ready;
        fresh.next_number = self.next_number;
        fresh.payload = self.payload;
        fresh.counting = self.counting;
        if let Some(counting) = &mut fresh.counting {
            counting.reset();
        }
        let requests = self
            .sends
            .into_requests()
            .chain(self.receives.into_requests());
        segments.extend(requests.flat_map(|request| request.segments));
        (fresh, segments)
    }

    /// Whether no thread of the program drives its shard: its sends complete in a queue that belongs to
    /// queue pairs of other shards as well.
    pub(super) fn is_left_to_thread(&self) -> bool {
        self.send_completions.producers() == Producers::Several
    }

    /// Posts a request whose segments the caller keeps registered. A queue pair of another service
    /// refuses it as one in RESET does.
    pub(super) fn post_raw_send(
        &mut self,
        request: &gdr_roce::SendRequest<'_>,
    ) -> Result<(), PostError> {
        let flags = self.flags(request.flags);
        let roce = self.roce.connection();
        let roce = roce.ok_or(PostError::State(State::Reset))?;
        roce.post_send(&gdr_roce::SendRequest {
            id: WrId(self.next_number),
            flags,
            ..*request
        })?;
        let len = self.add_send(request.id, request.data, request.flags);
        let counted = match request.operation {
            Operation::Send { .. } => &mut self.payload.send,
            Operation::Write { .. } => &mut self.payload.write,
            Operation::Read { .. } => &mut self.payload.read,
            Operation::Atomic { .. } => &mut self.payload.atomic,
        };
        *counted += len;
        Ok(())
    }

    /// As [`QpContext::post_raw_send`].
    pub(super) fn post_raw_ud_send(
        &mut self,
        request: &gdr_roce::UdSendRequest<'_, SocketAddr>,
    ) -> Result<(), PostError> {
        let flags = self.flags(request.flags);
        let roce = self.roce.datagrams();
        let roce = roce.ok_or(PostError::State(State::Reset))?;
        roce.post_send(&gdr_roce::UdSendRequest {
            id: WrId(self.next_number),
            flags,
            ..*request
        })?;
        self.payload.send += self.add_send(request.id, request.data, request.flags);
        Ok(())
    }

    /// As [`QpContext::post_raw_send`].
    pub(super) fn post_frame(
        &mut self,
        request: &gdr_roce::FrameSendRequest<'_>,
    ) -> Result<(), PostError> {
        let flags = self.flags(request.flags);
        let pair = self.roce.raw_packets();
        let pair = pair.ok_or(PostError::State(State::Reset))?;
        pair.post_send(&gdr_roce::FrameSendRequest {
            id: WrId(self.next_number),
            flags,
            ..*request
        })?;
        self.payload.send += self.add_send(request.id, request.data, request.flags);
        Ok(())
    }

    /// The flags with which the protocol gets a send of these flags: counters count each request.
    fn flags(&self, wanted: SendFlags) -> SendFlags {
        match self.counting {
            Some(_) => wanted | SendFlags::SIGNALLED,
            None => wanted,
        }
    }

    /// Runs `post`, which posts to the send queue only. If it fails, all that it posted is taken back:
    /// nothing of it was sent, as the engine is locked.
    pub(super) fn all_sends_or_none<E>(
        &mut self,
        post: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = (self.next_number, self.payload, self.deferred);
        let outcome = post(self);
        if outcome.is_err() {
            let count = (self.next_number - before.0) as usize;
            self.roce.withdraw_sends(count);
            self.sends.withdraw(count);
            if let Some(counting) = &mut self.counting {
                counting.withdraw(before.0);
            }
            (self.next_number, self.payload, self.deferred) = before;
        }
        outcome
    }

    /// Records a request that was posted to the send queue; returns its bytes.
    fn add_send(&mut self, id: WrId, data: gdr_roce::Data<'_>, flags: SendFlags) -> u64 {
        if let Some(counting) = &mut self.counting
            && !flags.contains(SendFlags::SIGNALLED)
        {
            counting.posted_silent(self.next_number);
        }
        let (len, deferred) = match data {
            gdr_roce::Data::Segments(segments) => {
                let len = segments.iter().map(|segment| segment.len as usize).sum();
                (len, len)
            }
            gdr_roce::Data::Inline(bytes) => (bytes.len(), 0),
        };
        self.deferred = self.deferred.saturating_add(SHORT.max(deferred));
        self.sends.push(Outstanding {
            number: self.next_number,
            id,
            segments: Segments::new(),
            detail: (),
        });
        self.next_number += 1;
        len as u64
    }

    /// As [`QpContext::post_raw_send`].
    pub(super) fn post_raw_recv(
        &mut self,
        request: &gdr_roce::RecvRequest<'_>,
    ) -> Result<(), PostError> {
        let number = self.next_number;
        self.roce.post_recv(&gdr_roce::RecvRequest {
            id: WrId(number),
            ..*request
        })?;
        self.receives.push(Outstanding {
            number,
            id: request.id,
            segments: Segments::new(),
            detail: (),
        });
        self.next_number += 1;
        Ok(())
    }

    /// Posts a request, and takes its segments out of it. A refused request stays whole, so that
    /// the caller drops it where no lock is held.
    pub(super) fn post_send(&mut self, request: &mut SendRequest) -> Result<(), PostError> {
        let mut raw = RawSegments::new();
        self.post_raw_send(&gdr_roce::SendRequest {
            id: request.id,
            operation: request.operation,
            data: raw_data(&request.data, &mut raw),
            flags: request.flags,
        })?;
        self.hold(&mut request.data);
        Ok(())
    }

    /// As [`QpContext::post_send`].
    pub(super) fn post_ud_send(&mut self, request: &mut UdSendRequest) -> Result<(), PostError> {
        let mut raw = RawSegments::new();
        self.post_raw_ud_send(&gdr_roce::UdSendRequest {
            id: request.id,
            to: request.to.address,
            dest_qpn: request.to.qpn,
            qkey: request.to.qkey,
            immediate: request.immediate,
            data: raw_data(&request.data, &mut raw),
            flags: request.flags,
        })?;
        self.hold(&mut request.data);
        Ok(())
    }

    /// Keeps the segments of the request that was posted last to the send queue.
    fn hold(&mut self, data: &mut Data) {
        if let Data::Segments(segments) = data {
            self.sends.hold(mem::take(segments));
        }
    }

    /// As [`QpContext::post_send`].
    pub(super) fn post_recv(&mut self, request: &mut RecvRequest) -> Result<(), PostError> {
        let raw: RawSegments = request.segments.iter().map(Segment::raw).collect();
        self.post_raw_recv(&gdr_roce::RecvRequest {
            id: request.id,
            segments: &raw,
        })?;
        self.receives.hold(mem::take(&mut request.segments));
        Ok(())
    }

    /// Whether RoCE packets may come from `source`. Any host may send datagrams.
    pub(super) fn accepts(&self, source: SocketAddr) -> bool {
        match &self.roce {
            Transport::Connection(_) => self.peer.is_some_and(|peer| peer.sends_from(source)),
            Transport::Datagrams(_) => true,
            Transport::RawPackets(_) => false,
        }
    }

    /// Processes a packet whose ICRC is correct; returns whether it may have changed anything.
    pub(super) fn receive(
        &mut self,
        now: Time,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
        memory: &mut dyn Memory,
        counters: &mut Counters,
    ) -> bool {
        match &mut self.roce {
            Transport::Connection(roce) => {
                roce.receive(now, packet, memory);
                true
            }
            Transport::Datagrams(roce) => {
                let Some(grh) = datagram.grh() else {
                    return false;
                };
                match roce.receive(packet, &grh, memory) {
                    UdReceived::Completed => return true,
                    UdReceived::WrongQkey => counters.wrong_qkey += 1,
                    UdReceived::NoReceive => counters.no_receive += 1,
                    UdReceived::Ignored => {}
                }
                false
            }
            Transport::RawPackets(_) => false,
        }
    }

    /// Whether [`QpContext::poll_transmit`] may have a packet.
    pub(super) fn may_transmit(&self) -> bool {
        match &self.roce {
            Transport::Connection(roce) => roce.may_transmit(),
            Transport::Datagrams(_) => true,
            Transport::RawPackets(_) => false,
        }
    }

    /// Writes the next RoCE packet to `out`; returns its length and where it goes.
    pub(super) fn poll_transmit(
        &mut self,
        now: Time,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Option<(usize, SocketAddr)> {
        match &mut self.roce {
            Transport::Connection(roce) => {
                let peer = self.peer?;
                Some((roce.poll_transmit(now, memory, out)?, peer.address))
            }
            Transport::Datagrams(roce) => roce.poll_transmit(memory, out),
            Transport::RawPackets(_) => None,
        }
    }

    /// The segments of its outstanding requests.
    pub(super) fn into_segments(self) -> impl Iterator<Item = Segment> {
        let (sends, receives) = (self.sends, self.receives);
        let requests = sends.into_requests().chain(receives.into_requests());
        requests.flat_map(|request| request.segments)
    }

    /// Delivers completions to their queues; adds the segments of the completed requests to
    /// `completed`. Calls `overrun` with a queue that has lost its first completion. Returns whether any was
    /// announced.
    pub(super) fn complete(
        &mut self,
        completed: &mut Segments,
        overrun: &mut dyn FnMut(&CqEntries),
    ) -> Announcement {
        let (mut lost, mut announced) = (false, Announcement::None);
        if let Some(counting) = &mut self.counting {
            counting.count_served(self.roce.served());
        }
        while let Some(mut completion) = self.roce.poll_completion() {
            let number = completion.id.0;
            self.payload.receive += received_bytes(&completion);
            let mut end = |request: Outstanding<()>| {
                completion.id = request.id;
                completed.extend(request.segments);
            };
            let queue = match (completion.opcode.is_receive(), &self.srq) {
                (true, Some(srq)) => {
                    srq.complete(number).into_iter().for_each(&mut end);
                    &self.recv_completions
                }
                (true, None) => {
                    self.receives.complete(number).for_each(&mut end);
                    &self.recv_completions
                }
                (false, _) => {
                    self.sends.complete(number).for_each(&mut end);
                    &self.send_completions
                }
            };
            if let Some(counting) = &mut self.counting
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
        if lost && self.roce.state() != State::Error {
            // As in libibverbs: with completions lost, the state of its requests is unknown.
            self.roce.enter_error();
            self.complete(completed, &mut |_| {});
        }
        announced
    }
}

/// The data of a request as the protocol knows it.
fn raw_data<'a>(data: &'a Data, raw: &'a mut RawSegments) -> gdr_roce::Data<'a> {
    match data {
        Data::Segments(segments) => {
            raw.extend(segments.iter().map(Segment::raw));
            gdr_roce::Data::Segments(raw)
        }
        Data::Inline(bytes) => gdr_roce::Data::Inline(bytes),
    }
}

/// A reliable connection of the protocol whose window fits the receive buffer of a peer's socket.
pub(super) fn connection(
    qpn: gdr_roce::Qpn,
    capabilities: Capabilities,
    receive_buffer: usize,
    shared: Option<&SharedReceiveQueue>,
) -> QueuePair {
    /// The bytes that a full packet takes of a socket's receive buffer, bookkeeping included.
    const PACKET: usize = 4608;
    // Both ends are assumed to be alike. 128 is the window of Linux's rxe; on one host a larger one
    // brings no more throughput, as the packets evict each other from the CPU's cache.
    let window = (receive_buffer / 2 / PACKET).clamp(16, 128) as u32;
    let config = TransportConfig::DEFAULT
        .with_window(window)
        .with_read_packets(window / 2)
        .with_ack_request_interval(window / 4)
        .with_ack_interval(window / 4);
    match shared {
        Some(shared) => QueuePair::with_shared_receives(qpn, capabilities, config, shared),
        None => QueuePair::with_config(qpn, capabilities, config),
    }
}

/// The datagram service of the protocol.
pub(super) fn datagrams(
    qpn: gdr_roce::Qpn,
    capabilities: Capabilities,
    mtu: Mtu,
    shared: Option<&SharedReceiveQueue>,
) -> UdQueuePair<SocketAddr> {
    match shared {
        Some(shared) => UdQueuePair::with_shared_receives(qpn, capabilities, mtu, shared),
        None => UdQueuePair::new(qpn, capabilities, mtu),
    }
}
