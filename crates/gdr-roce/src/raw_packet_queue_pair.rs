//! The queue pair of the raw packet service.

use crate::attributes::{Capabilities, State};
use crate::completion::{Completion, Event, WcStatus};
use crate::connectionless::{Connectionless, received};
use crate::contents::Contents;
use crate::error::{PostError, StateError};
use crate::ids::{Qpn, WrId};
use crate::memory::{Access, Memory};
use crate::receive_queue::{ReceiveQueue, RecvWqe};
use crate::request::{Data, RecvRequest, SendFlags};
use crate::sge;

/// The length of an Ethernet header, which is also the shortest frame.
const ETHERNET_HEADER: u32 = 14;

/// A frame for the send queue of a [`RawPacketQueuePair`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameSendRequest<'a> {
    /// Returned in the completion.
    pub id: WrId,
    /// The frame, from its Ethernet header on, without the frame check sequence.
    pub data: Data<'a>,
    /// The flags; [`FENCE`](SendFlags::FENCE) and [`SOLICITED`](SendFlags::SOLICITED) have no effect.
    pub flags: SendFlags,
}

/// The outcome of receiving a frame on a [`RawPacketQueuePair`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[must_use]
pub enum FrameReceived {
    /// It completed a receive, successfully or not.
    Completed,
    /// Dropped: no receive was posted.
    NoReceive,
    /// Dropped: the state does not allow it.
    Ignored,
}

/// A frame to transmit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame {
    /// Length in bytes.
    pub len: usize,
    /// The device must fill in its checksums.
    pub ip_checksum: bool,
}

/// A queue pair of the raw packet service (`IBV_QPT_RAW_PACKET`), which sends and receives whole Ethernet frames. Its
/// owner decides which frames it receives.
///
/// A frame is dropped if no receive is posted. A frame longer than its receive completes it with
/// [`WcStatus::LocalLength`] and places nothing; the queue pair stays in its state, as any host on the network could do
/// that.
///
/// An invalid send request completes with [`WcStatus::LocalLength`] (the frame is shorter than an Ethernet header, or
/// too long) or [`WcStatus::LocalProtection`] (its segments are not registered), and the queue pair enters ERR.
///
/// Its owner must:
///
/// 1. pass frames selected for it to [`receive`](Self::receive),
/// 2. call [`poll_transmit`](Self::poll_transmit), send the frame, and call [`transmitted`](Self::transmitted), until
///    there is no frame,
/// 3. call [`poll_completion`](Self::poll_completion).
#[derive(Debug)]
pub struct RawPacketQueuePair {
    queues: Connectionless<()>,
}

impl RawPacketQueuePair {
    /// Creates a queue pair in RESET.
    pub fn new(qpn: Qpn, caps: Capabilities) -> Self {
        Self {
            queues: Connectionless::new(qpn, caps, ReceiveQueue::new(None)),
        }
    }

    /// Returns the queue pair number.
    pub const fn qpn(&self) -> Qpn {
        self.queues.qpn()
    }

    /// Returns the current state.
    pub const fn state(&self) -> State {
        self.queues.state()
    }

    /// Enters INIT from RESET; receives can then be posted.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RESET.
    pub fn to_init(&mut self) -> Result<(), StateError> {
        self.queues.enter_init()
    }

    /// Enters RTR from INIT; frames are then received.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not INIT.
    pub fn to_rtr(&mut self) -> Result<(), StateError> {
        self.queues.enter_rtr()
    }

    /// Enters RTS from RTR; frames can then be posted.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTR.
    pub fn to_rts(&mut self) -> Result<(), StateError> {
        self.queues.enter_rts()
    }

    /// Enters SQD from RTS: frames stay queued. As none is ever half sent, [`Event::SendQueueDrained`] is raised
    /// immediately.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not RTS.
    pub fn to_sqd(&mut self) -> Result<(), StateError> {
        self.queues.enter_sqd()
    }

    /// Enters RTS from SQD.
    ///
    /// # Errors
    ///
    /// [`StateError`] if the state is not SQD.
    pub fn resume(&mut self) -> Result<(), StateError> {
        self.queues.resume()
    }

    /// Enters ERR from any state but RESET. Posted requests complete with [`WcStatus::WrFlushed`].
    pub fn to_error(&mut self) {
        self.queues.enter_error();
    }

    /// Enters RESET from any state. Posted requests are discarded without a completion. Earlier completions can still
    /// be polled.
    pub fn to_reset(&mut self) {
        self.queues.reset();
    }

    /// Posts a frame to the send queue. In ERR it is flushed immediately.
    ///
    /// # Errors
    ///
    /// See [`PostError`]; before RTS, [`PostError::State`].
    pub fn post_send(&mut self, request: &FrameSendRequest<'_>) -> Result<(), PostError> {
        self.queues
            .post_send(request.id, request.data, request.flags, ())
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
    /// See [`PostError`]; in RESET, [`PostError::State`].
    pub fn post_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PostError> {
        self.queues.post_recv(request)
    }

    /// Stores a frame in the next receive. `ip_checksum_ok` is passed on to its completion.
    pub fn receive(
        &mut self,
        frame: &[u8],
        ip_checksum_ok: bool,
        memory: &mut dyn Memory,
    ) -> FrameReceived {
        if !self.state().is_receiving() {
            return FrameReceived::Ignored;
        }
        let Some(receive) = self.queues.take_receive() else {
            return FrameReceived::NoReceive;
        };
        let completion = match place(&receive, frame, memory) {
            Ok(byte_len) => Completion {
                ip_checksum_ok,
                ..received(&receive, byte_len, self.qpn())
            },
            Err(status) => receive.failed(status, self.qpn()),
        };
        self.queues.complete_receive(completion);
        FrameReceived::Completed
    }

    /// Writes the next frame to the start of `out`. Returns `None` if there is nothing to send. The frame stays the
    /// next one until [`transmitted`](Self::transmitted) is called.
    pub fn poll_transmit(&mut self, memory: &mut dyn Memory, out: &mut [u8]) -> Option<Frame> {
        let wqe = self.queues.next_send()?;
        let read = match out.get_mut(..wqe.len as usize) {
            Some(room) if wqe.len >= ETHERNET_HEADER => wqe
                .payload
                .check(memory, wqe.len as usize, Access::empty())
                .and_then(|()| wqe.payload.fill(memory, 0, room))
                .map_err(|_| WcStatus::LocalProtection),
            _ => Err(WcStatus::LocalLength),
        };
        match read {
            Ok(()) => Some(Frame {
                len: wqe.len as usize,
                ip_checksum: wqe.flags.contains(SendFlags::IP_CHECKSUM),
            }),
            Err(status) => {
                self.transmitted(status);
                None
            }
        }
    }

    /// Completes the next frame. Any status but success moves the queue pair to ERR.
    pub fn transmitted(&mut self, status: WcStatus) {
        let Some(wqe) = self.queues.take_send() else {
            return;
        };
        self.queues.complete_send(&wqe, status);
        if status != WcStatus::Success {
            self.to_error();
        }
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

/// Stores a frame in a receive. Returns its length.
fn place(receive: &RecvWqe, frame: &[u8], memory: &mut dyn Memory) -> Result<u32, WcStatus> {
    if frame.len() as u64 > receive.capacity {
        return Err(WcStatus::LocalLength);
    }
    let segments = &receive.segments;
    sge::check(memory, segments, 0, frame.len(), Access::LOCAL_WRITE)
        .and_then(|()| sge::scatter(memory, segments, 0, Contents::Bytes(frame)))
        .map_err(|_| WcStatus::LocalProtection)?;
    // No truncation: a frame is far shorter than 4 GiB.
    Ok(frame.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::completion::WcOpcode;
    use crate::heap::HeapMemory;
    use crate::ids::Lkey;
    use crate::request::Segment;

    const CAPS: Capabilities = Capabilities {
        max_send_wr: 2,
        max_recv_wr: 2,
        max_inline: 64,
    };
    /// The address of the memory, which holds ascending values.
    const ADDR: u64 = 0x1000;

    struct Fixture {
        pair: RawPacketQueuePair,
        memory: HeapMemory,
        lkey: Lkey,
    }

    impl Fixture {
        /// Returns a queue pair in INIT.
        fn new() -> Self {
            let mut memory = HeapMemory::new();
            let (lkey, _) = memory.register(ADDR, (0..64).collect(), Access::LOCAL_WRITE);
            let mut pair = RawPacketQueuePair::new(Qpn::new(7), CAPS);
            pair.to_init().unwrap();
            Self { pair, memory, lkey }
        }

        /// Returns a queue pair in RTS.
        fn ready() -> Self {
            let mut fixture = Self::new();
            fixture.pair.to_rtr().unwrap();
            fixture.pair.to_rts().unwrap();
            fixture
        }

        fn segment(&self, offset: u64, len: u32) -> Segment {
            Segment {
                lkey: self.lkey,
                addr: ADDR + offset,
                len,
            }
        }

        fn post_recv(&mut self, segments: &[Segment]) -> Result<(), PostError> {
            let id = WrId(1);
            self.pair.post_recv(&RecvRequest { id, segments })
        }

        fn post_send(&mut self, data: Data<'_>, flags: SendFlags) -> Result<(), PostError> {
            let id = WrId(2);
            self.pair.post_send(&FrameSendRequest { id, data, flags })
        }

        fn status(&mut self) -> Option<WcStatus> {
            self.pair.poll_completion().map(|done| done.status)
        }
    }

    #[test]
    fn a_frame_fills_the_segments_of_a_receive_and_nothing_else() {
        let mut it = Fixture::ready();
        let segments = [it.segment(40, 10), it.segment(10, 10)];
        it.post_recv(&segments).unwrap();
        let received = it.pair.receive(&[0xff; 15], true, &mut it.memory);
        assert_eq!(received, FrameReceived::Completed);
        let done = it.pair.poll_completion().unwrap();
        assert_eq!((done.status, done.byte_len), (WcStatus::Success, 15));
        assert_eq!((done.id, done.opcode), (WrId(1), WcOpcode::Recv));
        assert!(done.ip_checksum_ok);
        let bytes = it.memory.bytes(it.lkey).unwrap();
        assert_eq!(bytes[39..51], [&[39], &[0xff; 10][..], &[50]].concat());
        assert_eq!(bytes[9..16], [9, 0xff, 0xff, 0xff, 0xff, 0xff, 15]);
    }

    #[test]
    fn a_receive_of_which_a_part_may_not_be_written_fails_and_gets_nothing() {
        let mut it = Fixture::ready();
        let (fixed, _) = it.memory.register(0x8000, vec![7; 20], Access::REMOTE_READ);
        let unwritable = Segment {
            lkey: fixed,
            addr: 0x8000,
            len: 20,
        };
        let segments = [it.segment(0, 10), unwritable];
        it.post_recv(&segments).unwrap();
        let received = it.pair.receive(&[0xff; 15], true, &mut it.memory);
        assert_eq!(received, FrameReceived::Completed);
        assert_eq!(it.status(), Some(WcStatus::LocalProtection));
        assert_eq!(it.pair.state(), State::Error);
        assert_eq!(it.memory.bytes(it.lkey).unwrap()[..2], [0, 1]);
        assert_eq!(it.memory.bytes(fixed).unwrap(), [7; 20]);
    }

    #[test]
    fn frames_without_a_receive_and_before_rtr_are_dropped() {
        let mut it = Fixture::new();
        let segment = it.segment(0, 64);
        it.post_recv(&[segment]).unwrap();
        let early = it.pair.receive(&[1; 20], false, &mut it.memory);
        assert_eq!(early, FrameReceived::Ignored);
        it.pair.to_rtr().unwrap();
        let first = it.pair.receive(&[1; 20], false, &mut it.memory);
        assert_eq!(first, FrameReceived::Completed);
        let second = it.pair.receive(&[2; 20], false, &mut it.memory);
        assert_eq!(second, FrameReceived::NoReceive);
        assert!(!it.pair.poll_completion().unwrap().ip_checksum_ok);
        assert_eq!(it.status(), None);
    }

    #[test]
    fn a_frame_that_is_too_long_places_nothing_and_leaves_the_queue_pair_usable() {
        let mut it = Fixture::ready();
        let segment = it.segment(0, 19);
        it.post_recv(&[segment]).unwrap();
        let received = it.pair.receive(&[0xff; 20], false, &mut it.memory);
        assert_eq!(received, FrameReceived::Completed);
        assert_eq!(it.status(), Some(WcStatus::LocalLength));
        assert_eq!(it.memory.bytes(it.lkey).unwrap()[..3], [0, 1, 2]);
        assert_eq!(it.pair.state(), State::ReadyToSend);
    }

    #[test]
    fn a_receive_without_registered_memory_ends_in_err() {
        let mut it = Fixture::ready();
        let segment = it.segment(60, 20);
        it.post_recv(&[segment]).unwrap();
        it.post_recv(&[]).unwrap();
        let received = it.pair.receive(&[0xff; 20], false, &mut it.memory);
        assert_eq!(received, FrameReceived::Completed);
        assert_eq!(it.status(), Some(WcStatus::LocalProtection));
        assert_eq!(it.status(), Some(WcStatus::WrFlushed));
        assert_eq!(it.pair.state(), State::Error);
    }

    #[test]
    fn a_frame_is_gathered_and_completes_when_it_was_sent() {
        let mut it = Fixture::ready();
        let segments = [it.segment(40, 10), it.segment(10, 10)];
        let flags = SendFlags::SIGNALLED | SendFlags::IP_CHECKSUM;
        it.post_send(Data::Segments(&segments), flags).unwrap();
        it.post_send(Data::Inline(&[5; 14]), SendFlags::empty())
            .unwrap();
        let full = it.post_send(Data::Inline(&[5; 14]), SendFlags::empty());
        assert_eq!(full, Err(PostError::Full(2)));
        let mut out = [0; 64];
        let expected = Frame {
            len: 20,
            ip_checksum: true,
        };
        for _ in 0..2 {
            let next = it.pair.poll_transmit(&mut it.memory, &mut out);
            assert_eq!(next, Some(expected), "the same until it was sent");
        }
        let expected: Vec<u8> = (40..50).chain(10..20).collect();
        assert_eq!(out[..20], expected);
        assert_eq!(it.status(), None);
        it.pair.transmitted(WcStatus::Success);
        let done = it.pair.poll_completion().unwrap();
        assert_eq!((done.status, done.byte_len), (WcStatus::Success, 20));
        let next = it.pair.poll_transmit(&mut it.memory, &mut out).unwrap();
        assert_eq!((next.len, next.ip_checksum), (14, false));
        it.pair.transmitted(WcStatus::Success);
        assert_eq!(it.status(), None, "it was not signalled");
    }

    #[test]
    fn frames_that_cannot_be_sent_fail_and_flush_the_others() {
        let short = Data::Inline(&[5; 13]);
        let foreign = [Segment {
            lkey: Lkey(99),
            addr: ADDR,
            len: 20,
        }];
        for (data, status) in [
            (short, WcStatus::LocalLength),
            (Data::Segments(&foreign), WcStatus::LocalProtection),
        ] {
            let mut it = Fixture::ready();
            it.post_send(data, SendFlags::empty()).unwrap();
            it.post_send(Data::Inline(&[5; 14]), SendFlags::empty())
                .unwrap();
            let sent = it.pair.poll_transmit(&mut it.memory, &mut [0; 64]);
            assert_eq!(sent, None);
            assert_eq!(it.status(), Some(status));
            assert_eq!(it.status(), Some(WcStatus::WrFlushed));
            assert_eq!(it.pair.state(), State::Error);
        }
    }

    #[test]
    fn requests_are_refused_flushed_and_discarded_as_the_state_says() {
        let mut it = Fixture::new();
        let frame = Data::Inline(&[5; 14]);
        let refused = it.post_send(frame, SendFlags::empty());
        assert_eq!(refused, Err(PostError::State(State::Init)));
        assert!(it.pair.to_rts().is_err(), "INIT to RTS");
        it.pair.to_rtr().unwrap();
        it.post_recv(&[]).unwrap();
        it.pair.to_reset();
        assert_eq!(it.status(), None);
        let refused = it.post_recv(&[]);
        assert_eq!(refused, Err(PostError::State(State::Reset)));
        it.pair.to_init().unwrap();
        it.pair.to_error();
        it.post_recv(&[]).unwrap();
        it.post_send(frame, SendFlags::empty()).unwrap();
        assert_eq!(it.status(), Some(WcStatus::WrFlushed));
        assert_eq!(it.status(), Some(WcStatus::WrFlushed));
    }
}
