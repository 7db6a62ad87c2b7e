//! The queue pair of the unreliable datagram service (UD).

use crate::attributes::{Capabilities, State};
use crate::completion::{Completion, Event, WcStatus};
use crate::connection::{bth, emit};
use crate::connectionless::{Connectionless, SendWqe, received};
use crate::contents::Contents;
use crate::error::{PostError, StateError};
use crate::ids::{Immediate, PartitionKey, Qkey, Qpn};
use crate::memory::{Access, Memory};
use crate::mtu::Mtu;
use crate::psn::Psn;
use crate::receive_queue::{ReceiveQueue, RecvWqe};
use crate::request::{RecvRequest, SendFlags, UdSendRequest};
use crate::sge;
use crate::shared_receive_queue::SharedReceiveQueue;
use crate::wire::{Deth, Grh, Headers, ImmDt, MAX_DATAGRAM, Opcode, Packet};

/// The outcome of receiving a packet on a [`UdQueuePair`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum UdReceived {
    /// It completed a receive, successfully or not.
    Completed,
    /// Dropped: its queue key is not the queue pair's.
    WrongQkey,
    /// Dropped: no receive was posted.
    NoReceive,
    /// Dropped: it is for another queue pair, partition or service, exceeds the path MTU, or is not allowed in this
    /// state.
    Ignored,
}

/// A datagram's destination and metadata.
#[derive(Debug)]
struct Datagram<A> {
    to: A,
    dest_qpn: Qpn,
    qkey: Qkey,
    immediate: Option<Immediate>,
}

/// A queue pair of the unreliable datagram service (UD). It exchanges single-packet messages with any queue pair.
/// Nothing is acknowledged or retransmitted.
///
/// Each receive gets the 40-byte [`Grh`], followed by the message. A datagram is dropped if its queue key is wrong or
/// no receive is posted. A message that does not fit its receive completes it with [`WcStatus::LocalLength`] and places
/// nothing; the queue pair stays in its state, as any peer could do that at any time.
///
/// An invalid send request completes with [`WcStatus::LocalLength`] (the datagram exceeds the path MTU) or
/// [`WcStatus::LocalProtection`] (its segments are not registered), and the queue pair enters SQE: the send queue is
/// flushed, while receives continue.
///
/// Its owner must:
///
/// 1. pass every packet for its number to [`receive`](Self::receive), and those for [`Qpn::MULTICAST`] in groups that
///    it is attached to,
/// 2. call [`poll_transmit`](Self::poll_transmit) and send the packet, until it returns `None`,
/// 3. call [`poll_completion`](Self::poll_completion) and [`poll_event`](Self::poll_event).
///
/// `A` is the type of destination addresses, which only the owner interprets.
#[derive(Debug)]
pub struct UdQueuePair<A> {
    queues: Connectionless<Datagram<A>>,
    mtu: Mtu,
    qkey: Qkey,
    next_psn: Psn,
}

impl<A: Copy> UdQueuePair<A> {
    /// Creates a queue pair in RESET. `mtu` is the length of the longest message.
    pub fn new(qpn: Qpn, caps: Capabilities, mtu: Mtu) -> Self {
        Self::with_receives(qpn, caps, mtu, ReceiveQueue::new(None))
    }

    /// Like [`new`](Self::new), with receives from `shared`.
    pub fn with_shared_receives(
        qpn: Qpn,
        caps: Capabilities,
        mtu: Mtu,
        shared: &SharedReceiveQueue,
    ) -> Self {
        Self::with_receives(qpn, caps, mtu, ReceiveQueue::new(Some(shared.clone())))
    }

    fn with_receives(qpn: Qpn, caps: Capabilities, mtu: Mtu, receives: ReceiveQueue) -> Self {
        Self {
            queues: Connectionless::new(qpn, caps, receives),
            mtu,
            qkey: Qkey::default(),
            next_psn: Psn::default(),
        }
    }

    /// Returns the queue pair number.
    pub const fn qpn(&self) -> Qpn {
        self.queues.qpn()
    }

    /// Returns the queue sizes it was created with.
    pub const fn capabilities(&self) -> &Capabilities {
        self.queues.capabilities()
    }

    /// Returns the length of the longest message.
    pub const fn mtu(&self) -> Mtu {
        self.mtu
    }

    /// Returns the current state.
    pub const fn state(&self) -> State {
        self.queues.state()
    }

    /// Returns the queue key that received datagrams must carry.
    pub const fn qkey(&self) -> Qkey {
        self.qkey
    }

    /// Changes the queue key, in any state but RESET.
    pub fn set_qkey(&mut self, qkey: Qkey) {
        if self.state() != State::Reset {
            self.qkey = qkey;
        }
    }

    /// Enters INIT from RESET; receives can then be posted.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RESET.
    pub fn to_init(&mut self, qkey: Qkey) -> Result<(), StateError> {
        self.queues.enter_init()?;
        self.qkey = qkey;
        Ok(())
    }

    /// Enters RTR from INIT; datagrams are then received.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not INIT.
    pub fn to_rtr(&mut self) -> Result<(), StateError> {
        self.queues.enter_rtr()
    }

    /// Enters RTS from RTR; datagrams can then be posted. `sq_psn` is the PSN of the first one; receivers ignore it.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTR.
    pub fn to_rts(&mut self, sq_psn: Psn) -> Result<(), StateError> {
        self.queues.enter_rts()?;
        self.next_psn = sq_psn;
        Ok(())
    }

    /// Enters SQD from RTS: datagrams stay queued. As none is ever half sent, [`Event::SendQueueDrained`] is raised
    /// immediately.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTS.
    pub fn to_sqd(&mut self) -> Result<(), StateError> {
        self.queues.enter_sqd()
    }

    /// Enters RTS from SQD or SQE.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is neither.
    pub fn resume(&mut self) -> Result<(), StateError> {
        self.queues.resume()
    }

    /// Enters ERR from any state but RESET. Posted requests complete with [`WcStatus::WrFlushed`], except on a shared
    /// receive queue.
    pub fn to_error(&mut self) {
        self.queues.enter_error();
    }

    /// Enters RESET from any state. Posted requests are discarded without a completion. Earlier completions and events
    /// can still be polled.
    pub fn to_reset(&mut self) {
        self.queues.reset();
        self.qkey = Qkey::default();
        self.next_psn = Psn::default();
    }

    /// Posts a datagram to the send queue. In ERR and SQE it is flushed immediately.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; before RTS, [`PostError::State`].
    pub fn post_send(&mut self, request: &UdSendRequest<'_, A>) -> Result<(), PostError> {
        let datagram = Datagram {
            to: request.to,
            dest_qpn: request.dest_qpn,
            qkey: request.qkey,
            immediate: request.immediate,
        };
        self.queues
            .post_send(request.id, request.data, request.flags, datagram)
    }

    /// Withdraws the last `count` requests posted to the send queue; see
    /// [`QueuePair::withdraw_sends`](crate::QueuePair::withdraw_sends).
    pub fn withdraw_sends(&mut self, count: usize) {
        self.queues.withdraw_sends(count);
    }

    /// Posts a request to the receive queue. In ERR it is flushed immediately.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; in RESET, [`PostError::State`]; with a shared receive queue, [`PostError::SharedReceives`].
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.queues.post_recv(request)
    }

    /// Processes a packet with network header `grh`. Its ICRC must have been verified, by
    /// [`wire::icrc::matches`](crate::wire::icrc::matches) or by a trusted lower layer; everything else about it is
    /// untrusted.
    pub fn receive(
        &mut self,
        packet: &Packet<'_>,
        grh: &Grh,
        memory: &mut dyn Memory,
    ) -> UdReceived {
        let bth = packet.bth();
        let is_receiving = self.state().is_receiving();
        let is_own = [self.qpn(), Qpn::MULTICAST].contains(&bth.dest_qpn)
            && bth.partition.matches(PartitionKey::DEFAULT);
        let Some(deth) = packet.deth().filter(|_| is_receiving && is_own) else {
            return UdReceived::Ignored;
        };
        let payload = packet.contents();
        if payload.len() > self.mtu.bytes() {
            return UdReceived::Ignored;
        }
        if deth.qkey != self.qkey {
            return UdReceived::WrongQkey;
        }
        let Some(receive) = self.queues.take_receive() else {
            return UdReceived::NoReceive;
        };
        let completion = match place(&receive, grh, payload, memory) {
            Ok(byte_len) => Completion {
                immediate: packet.immediate().map(|immediate| immediate.0),
                solicited: bth.solicited,
                source_qpn: Some(deth.source_qpn),
                has_network_header: true,
                ..received(&receive, byte_len, self.qpn())
            },
            Err(status) => receive.failed(status, self.qpn()),
        };
        self.queues.complete_receive(completion);
        UdReceived::Completed
    }

    /// Writes the next packet to the start of `out`. Returns its length and destination, or `None` if there is nothing
    /// to send. The last four bytes are zeros, to be replaced by the ICRC with
    /// [`wire::icrc::seal`](crate::wire::icrc::seal). The request is then complete.
    ///
    /// # Panics
    ///
    /// If `out` is shorter than [`wire::MAX_DATAGRAM`](crate::wire::MAX_DATAGRAM).
    pub fn poll_transmit(&mut self, memory: &mut dyn Memory, out: &mut [u8]) -> Option<(usize, A)> {
        assert!(
            out.len() >= MAX_DATAGRAM,
            "out holds {} bytes, not {MAX_DATAGRAM}",
            out.len()
        );
        let wqe = self.queues.take_send()?;
        let emitted = self.emit(&wqe, memory, out);
        let status = emitted.err().unwrap_or(WcStatus::Success);
        self.queues.complete_send(&wqe, status);
        if emitted.is_err() {
            self.queues.enter_sqe();
        }
        Some((emitted.ok()?, wqe.detail.to))
    }

    /// Writes a datagram to `out`.
    fn emit(
        &mut self,
        wqe: &SendWqe<Datagram<A>>,
        memory: &mut dyn Memory,
        out: &mut [u8],
    ) -> Result<usize, WcStatus> {
        let len = wqe.len as usize;
        if len > self.mtu.bytes() {
            return Err(WcStatus::LocalLength);
        }
        let datagram = &wqe.detail;
        let opcode = Opcode::datagram(datagram.immediate.is_some());
        let mut headers =
            Headers::new(opcode, bth(opcode.byte(), datagram.dest_qpn, self.next_psn));
        headers.bth.solicited = wqe.flags.contains(SendFlags::SOLICITED);
        headers.deth = Some(Deth {
            qkey: datagram.qkey.sent_from(self.qkey),
            source_qpn: self.qpn(),
        });
        headers.immediate = datagram.immediate.map(ImmDt);
        let readable = wqe.payload.check(memory, len, Access::empty());
        let emitted = readable
            .and_then(|()| emit(&headers, len, out, |room| wqe.payload.fill(memory, 0, room)));
        self.next_psn = self.next_psn.wrapping_add(1);
        emitted.map_err(|_| WcStatus::LocalProtection)
    }

    /// Removes and returns the oldest completion.
    pub fn poll_completion(&mut self) -> Option<Completion> {
        self.queues.poll_completion()
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.queues.poll_event()
    }
}

/// Stores network header and payload in a receive. Returns the number of bytes.
fn place(
    receive: &RecvWqe,
    grh: &Grh,
    payload: Contents<'_>,
    memory: &mut dyn Memory,
) -> Result<u32, WcStatus> {
    /// [`Grh::LEN`], as an offset.
    const BEHIND: u32 = Grh::LEN as u32;
    let len = BEHIND + payload.len() as u32;
    if u64::from(len) > receive.capacity {
        return Err(WcStatus::LocalLength);
    }
    let segments = &receive.segments;
    sge::check(memory, segments, 0, len as usize, Access::LOCAL_WRITE)
        .and_then(|()| sge::scatter(memory, segments, 0, Contents::Bytes(grh.as_bytes())))
        .and_then(|()| sge::scatter(memory, segments, BEHIND, payload))
        .map_err(|_| WcStatus::LocalProtection)?;
    Ok(len)
}
