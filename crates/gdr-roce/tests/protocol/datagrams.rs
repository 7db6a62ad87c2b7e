//! The unreliable datagram service.
use std::net::Ipv4Addr;

use crate::fixture::{BASE, Settings, connected};
use gdr_roce::wire::icrc::Ip;
use gdr_roce::wire::{Deth, Grh, Headers, MAX_DATAGRAM, Opcode, Packet};
use gdr_roce::{
    Access, Capabilities, Completion, Data, Event, HeapMemory, Immediate, Lkey, Mtu, PartitionKey,
    PostError, Psn, Qkey, Qpn, RecvRequest, Segment, SendFlags, SharedReceiveQueue, State, Time,
    UdQueuePair, UdReceived, UdSendRequest, WcOpcode, WcStatus, WrId,
};
use proptest::prelude::*;

const OWN: Qpn = Qpn::new(0x11);
const PEER: Qpn = Qpn::new(0x22);
const QKEY: Qkey = Qkey(0x1111_1111);
const CAPS: Capabilities = Capabilities {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_inline: 64,
};
const LEN: usize = 8192;
const GRH: usize = Grh::LEN;

/// A queue pair with memory. Addresses are characters.
struct Side {
    qp: UdQueuePair<char>,
    memory: HeapMemory,
    lkey: Lkey,
}

fn side(qp: UdQueuePair<char>) -> Side {
    let mut memory = HeapMemory::new();
    let (lkey, _) = memory.register(BASE, vec![0xaa; LEN], Access::LOCAL_WRITE);
    Side { qp, memory, lkey }
}

/// Returns a queue pair in RTS.
fn ready(qpn: Qpn) -> Side {
    started(UdQueuePair::new(qpn, CAPS, Mtu::B1024))
}

fn started(mut qp: UdQueuePair<char>) -> Side {
    qp.to_init(QKEY).unwrap();
    qp.to_rtr().unwrap();
    qp.to_rts(Psn::new(0xff_ffff)).unwrap();
    side(qp)
}

fn grh() -> Grh {
    let ip = Ip::V4 {
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
        identification: 0,
        dont_fragment: true,
    };
    Grh::of_fields(&ip, 100)
}

fn message(data: Data<'_>) -> UdSendRequest<'_, char> {
    UdSendRequest {
        id: WrId(1),
        to: 'b',
        dest_qpn: PEER,
        qkey: QKEY,
        immediate: None,
        data,
        flags: SendFlags::SIGNALLED,
    }
}

impl Side {
    fn segment(&self, at: u64, len: u32) -> Segment {
        Segment {
            lkey: self.lkey,
            addr: BASE + at,
            len,
        }
    }

    /// Posts a receive of `len` bytes at the start of the memory.
    fn post_recv(&mut self, id: u64, len: u32) {
        let segments = [self.segment(0, len)];
        let request = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        self.qp.post_recv(&request).unwrap();
    }

    /// Returns the next packet and its address.
    fn poll(&mut self) -> Option<(Vec<u8>, char)> {
        let mut out = vec![0; MAX_DATAGRAM];
        let (len, to) = self.qp.poll_transmit(&mut self.memory, &mut out)?;
        out.truncate(len);
        Some((out, to))
    }

    fn receive(&mut self, bytes: &[u8]) -> UdReceived {
        let packet = Packet::new(bytes).unwrap();
        self.qp.receive(&packet, &grh(), &mut self.memory)
    }

    fn bytes(&self, len: usize) -> &[u8] {
        &self.memory.bytes(self.lkey).unwrap()[..len]
    }

    fn completions(&mut self) -> Vec<Completion> {
        std::iter::from_fn(|| self.qp.poll_completion()).collect()
    }

    fn statuses(&mut self) -> Vec<(u64, WcStatus)> {
        let completions = self.completions();
        let pairs = completions.iter().map(|done| (done.id.0, done.status));
        pairs.collect()
    }
}

/// Returns the packet of `request`, from a queue pair of its own.
fn packet(request: &UdSendRequest<'_, char>) -> Vec<u8> {
    let mut sender = ready(OWN);
    sender.qp.post_send(request).unwrap();
    sender.poll().unwrap().0
}

#[test]
fn a_message_arrives_behind_the_network_header_with_its_sender() {
    let (mut a, mut b) = (ready(OWN), ready(PEER));
    b.post_recv(7, 100);
    let mut request = message(Data::Inline(b"hello"));
    request.immediate = Some(Immediate(0xdead_beef));
    request.flags |= SendFlags::SOLICITED;
    a.qp.post_send(&request).unwrap();
    let (bytes, to) = a.poll().unwrap();
    assert_eq!(to, 'b');
    assert_eq!(
        bytes[..24],
        [
            0x65, 0xf0, 0xff, 0xff, 0, 0, 0, 0x22, 0, 0xff, 0xff, 0xff, 0x11, 0x11, 0x11, 0x11, 0,
            0, 0, 0x11, 0xde, 0xad, 0xbe, 0xef
        ],
        "BTH, DETH, ImmDt"
    );
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    let expected = Completion {
        id: WrId(7),
        status: WcStatus::Success,
        opcode: WcOpcode::Recv,
        byte_len: 45,
        immediate: Some(Immediate(0xdead_beef)),
        invalidated: None,
        time: None,
        solicited: true,
        qpn: PEER,
        source_qpn: Some(OWN),
        has_network_header: true,
        ip_checksum_ok: false,
    };
    assert_eq!(b.completions(), [expected]);
    assert_eq!(b.bytes(GRH), grh().as_bytes());
    assert_eq!(b.bytes(46)[GRH..], *b"hello\xaa");
    let sent = a.completions();
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].opcode, sent[0].byte_len), (WcOpcode::Send, 5));
    assert_eq!(a.poll(), None);
}

#[test]
fn a_message_is_gathered_and_scattered_across_segments() {
    let (mut a, mut b) = (ready(OWN), ready(PEER));
    let text: Vec<u8> = (0..=255).cycle().take(1024).collect();
    a.memory.bytes_mut(a.lkey).unwrap()[..1024].copy_from_slice(&text);
    let segments = [a.segment(0, 1000), a.segment(1000, 24)];
    a.qp.post_send(&message(Data::Segments(&segments))).unwrap();
    let segments = [b.segment(0, 30), b.segment(30, 20), b.segment(50, 1014)];
    let request = RecvRequest {
        id: WrId(0),
        segments: &segments,
    };
    b.qp.post_recv(&request).unwrap();
    let (bytes, _) = a.poll().unwrap();
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    assert_eq!(b.bytes(GRH), grh().as_bytes());
    assert_eq!(b.bytes(GRH + 1024)[GRH..], text);
    assert_eq!(b.completions()[0].byte_len, 1064);
}

#[test]
fn an_unsignalled_message_has_no_completion_and_the_psn_advances() {
    let mut a = ready(OWN);
    let mut request = message(Data::Inline(b""));
    request.flags = SendFlags::empty();
    for psn in [0xff_ffff, 0, 1] {
        a.qp.post_send(&request).unwrap();
        let (bytes, _) = a.poll().unwrap();
        assert_eq!(Packet::new(&bytes).unwrap().bth().psn, Psn::new(psn));
    }
    assert!(a.completions().is_empty());
}

#[test]
fn a_wrong_queue_key_places_nothing_and_takes_no_receive() {
    let mut b = ready(PEER);
    b.post_recv(0, 100);
    let mut request = message(Data::Inline(b"hello"));
    request.qkey = Qkey(QKEY.0 ^ 1);
    assert_eq!(b.receive(&packet(&request)), UdReceived::WrongQkey);
    assert!(b.completions().is_empty());
    assert_eq!(b.bytes(100), [0xaa; 100]);
    b.qp.set_qkey(request.qkey);
    assert_eq!(b.receive(&packet(&request)), UdReceived::Completed);
}

#[test]
fn a_controlled_queue_key_in_a_request_stands_for_that_of_the_queue_pair() {
    let mut request = message(Data::Inline(b""));
    for (qkey, sent) in [
        (Qkey(0x8000_0000), QKEY),
        (Qkey(0xffff_ffff), QKEY),
        (Qkey(0x7fff_ffff), Qkey(0x7fff_ffff)),
    ] {
        request.qkey = qkey;
        let bytes = packet(&request);
        let deth = Packet::new(&bytes).unwrap().deth().unwrap();
        assert_eq!(deth.qkey, sent);
        assert_eq!(deth.source_qpn, OWN);
    }
}

#[test]
fn without_a_receive_a_message_is_dropped() {
    let mut b = ready(PEER);
    let bytes = packet(&message(Data::Inline(b"hello")));
    assert_eq!(b.receive(&bytes), UdReceived::NoReceive);
    b.post_recv(0, 100);
    assert!(b.completions().is_empty());
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
}

#[test]
fn a_message_that_does_not_fit_fails_its_receive_and_not_the_queue_pair() {
    let mut b = ready(PEER);
    let bytes = packet(&message(Data::Inline(b"hello")));
    b.post_recv(0, 44);
    b.post_recv(1, 45);
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    assert_eq!(b.statuses(), [(0, WcStatus::LocalLength)]);
    assert_eq!(b.bytes(100), [0xaa; 100]);
    assert_eq!(b.qp.state(), State::ReadyToSend);
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    assert_eq!(b.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_receive_in_memory_that_is_not_registered_fails_the_queue_pair() {
    let mut b = ready(PEER);
    b.post_recv(0, 100);
    b.post_recv(1, 100);
    b.memory.deregister(b.lkey);
    let bytes = packet(&message(Data::Inline(b"hello")));
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    let expected = [(0, WcStatus::LocalProtection), (1, WcStatus::WrFlushed)];
    assert_eq!(b.statuses(), expected);
    assert_eq!(b.qp.state(), State::Error);
}

#[test]
fn a_message_longer_than_the_path_mtu_is_not_sent_and_stops_the_send_queue() {
    let mut a = ready(OWN);
    a.post_recv(9, 100);
    let segments = [a.segment(0, 1025)];
    a.qp.post_send(&message(Data::Segments(&segments))).unwrap();
    let mut request = message(Data::Inline(b""));
    request.id = WrId(2);
    a.qp.post_send(&request).unwrap();
    assert_eq!(a.poll(), None);
    let flushed = WcStatus::WrFlushed;
    let expected = [(1, WcStatus::LocalLength), (2, flushed)];
    assert_eq!(a.statuses(), expected);
    a.qp.post_send(&request).unwrap();
    assert_eq!(a.statuses(), [(2, flushed)]);
    assert_eq!(a.poll(), None);
    assert_eq!(a.qp.state(), State::SendQueueError);
}

#[test]
fn a_message_from_memory_that_is_not_registered_is_not_sent() {
    let mut a = ready(OWN);
    let mut segments = [a.segment(0, 8)];
    segments[0].lkey = Lkey(1);
    a.qp.post_send(&message(Data::Segments(&segments))).unwrap();
    assert_eq!(a.poll(), None);
    assert_eq!(a.statuses(), [(1, WcStatus::LocalProtection)]);
    assert_eq!(a.qp.state(), State::SendQueueError);
}

#[test]
fn a_message_longer_than_the_receivers_path_mtu_is_dropped() {
    let mut b = ready(PEER);
    b.post_recv(0, 4096);
    let mut sender = started(UdQueuePair::new(OWN, CAPS, Mtu::B2048));
    let segments = [sender.segment(0, 1025)];
    let request = message(Data::Segments(&segments));
    sender.qp.post_send(&request).unwrap();
    let (bytes, _) = sender.poll().unwrap();
    assert_eq!(b.receive(&bytes), UdReceived::Ignored);
}

#[test]
fn packets_of_another_queue_pair_partition_or_service_are_ignored() {
    let mut b = ready(PEER);
    b.post_recv(0, 100);
    let good = packet(&message(Data::Inline(b"hello")));
    let changed = |at: usize, to: u8| {
        let mut bytes = good.clone();
        bytes[at] = to;
        bytes
    };
    for bytes in [changed(7, 0x23), changed(3, 0xfe), changed(0, 4)] {
        assert_eq!(b.receive(&bytes), UdReceived::Ignored, "{bytes:x?}");
    }
    assert_eq!(b.receive(&good), UdReceived::Completed);
}

#[test]
fn a_reliable_connection_ignores_datagrams() {
    let settings = Settings::default();
    let mut connection = connected(1, &settings);
    let mut request = message(Data::Inline(b"hello"));
    request.dest_qpn = connection.qpn();
    let mut bytes = packet(&request);
    // Uses the PSN that it expects.
    bytes[9..12].copy_from_slice(&settings.psns[0].get().to_be_bytes()[1..]);
    let mut memory = HeapMemory::new();
    connection.receive(Time::EPOCH, &Packet::new(&bytes).unwrap(), &mut memory);
    let mut out = [0; MAX_DATAGRAM];
    let answer = connection.poll_transmit(Time::EPOCH, &mut memory, &mut out);
    assert_eq!(answer, None);
    assert_eq!(connection.state(), State::ReadyToSend);
}

#[test]
fn each_state_allows_what_it_should() {
    let mut b = side(UdQueuePair::new(PEER, CAPS, Mtu::B1024));
    let bytes = packet(&message(Data::Inline(b"hello")));
    let receive = RecvRequest {
        id: WrId(0),
        segments: &[],
    };
    let send = message(Data::Inline(b""));
    let refused = |state| Err(PostError::State(state));
    assert_eq!(b.qp.post_recv(&receive), refused(State::Reset));
    assert_eq!(b.qp.post_send(&send), refused(State::Reset));
    assert!(b.qp.to_rtr().is_err());
    b.qp.to_init(QKEY).unwrap();
    b.post_recv(0, 100);
    assert_eq!(b.qp.post_send(&send), refused(State::Init));
    assert_eq!(b.receive(&bytes), UdReceived::Ignored);
    b.qp.to_rtr().unwrap();
    assert_eq!(b.qp.post_send(&send), refused(State::ReadyToReceive));
    assert_eq!(b.receive(&bytes), UdReceived::Completed);
    assert_eq!(b.statuses(), [(0, WcStatus::Success)]);
    b.qp.to_rts(Psn::new(0)).unwrap();
    assert!(b.qp.to_init(QKEY).is_err());
    b.qp.post_send(&send).unwrap();
    b.post_recv(3, 100);
    b.qp.to_error();
    let expected = [(1, WcStatus::WrFlushed), (3, WcStatus::WrFlushed)];
    assert_eq!(b.statuses(), expected);
    assert_eq!(b.qp.poll_event(), None);
    assert_eq!(b.poll(), None);
    b.post_recv(4, 100);
    assert_eq!(b.statuses(), [(4, WcStatus::WrFlushed)]);
    assert_eq!(b.receive(&bytes), UdReceived::Ignored);
    b.qp.to_reset();
    assert_eq!(b.qp.state(), State::Reset);
}

#[test]
fn full_queues_and_too_many_inline_bytes_are_refused() {
    let mut a = ready(OWN);
    let long = a.qp.post_send(&message(Data::Inline(&[0; 65])));
    let (len, max) = (65, 64);
    assert_eq!(long, Err(PostError::InlineTooLong { len, max }));
    for _ in 0..4 {
        a.qp.post_send(&message(Data::Inline(b""))).unwrap();
        a.post_recv(0, 100);
    }
    let full = Err(PostError::Full(4));
    assert_eq!(a.qp.post_send(&message(Data::Inline(b""))), full);
    let receive = RecvRequest {
        id: WrId(0),
        segments: &[],
    };
    assert_eq!(a.qp.post_recv(&receive), full);
}

#[test]
fn datagram_queue_pairs_share_receives_which_outlive_their_errors() {
    let queue = SharedReceiveQueue::new(4);
    let shared = |qpn| UdQueuePair::with_shared_receives(qpn, CAPS, Mtu::B1024, &queue);
    let (mut b, mut c) = (started(shared(PEER)), started(shared(Qpn::new(0x33))));
    for id in 0..3 {
        let segments = [b.segment(0, 100)];
        let request = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        queue.post(&request).unwrap();
        assert_eq!(b.qp.post_recv(&request), Err(PostError::SharedReceives));
    }
    let mut request = message(Data::Inline(b"hello"));
    assert_eq!(b.receive(&packet(&request)), UdReceived::Completed);
    assert_eq!(b.statuses(), [(0, WcStatus::Success)]);
    b.qp.to_error();
    assert!(b.completions().is_empty());
    assert_eq!(b.qp.poll_event(), Some(Event::LastWqeReached));
    assert_eq!(b.qp.poll_event(), None);
    request.dest_qpn = Qpn::new(0x33);
    assert_eq!(c.receive(&packet(&request)), UdReceived::Completed);
    assert_eq!(c.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(queue.len(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Whatever arrives, a receive completes at most once, and only bytes of receives change.
    #[test]
    fn packets_of_strangers_change_receives_only(
        packets in proptest::collection::vec(
            (0..Opcode::ALL.len(), 0..3_u32, 0..3_u32, 0..1300_usize, any::<bool>()), 0..40),
        room in 0..200_u32,
    ) {
        let mut b = ready(PEER);
        let (mut posted, mut completed) = (0, 0);
        for (opcode, qpn, qkey, len, post) in packets {
            if post && posted - completed < 4 {
                b.post_recv(posted, room);
                posted += 1;
            }
            let opcode = Opcode::ALL[opcode];
            let len = if opcode.has_payload() { len } else { 0 };
            let blank = [0; 16];
            let mut headers = Headers::new(opcode, *Packet::new(&blank)?.bth());
            headers.bth.partition = PartitionKey::DEFAULT;
            headers.bth.dest_qpn = Qpn::new(0x21 + qpn);
            headers.deth = Some(Deth { qkey: Qkey(QKEY.0 - 1 + qkey), source_qpn: OWN });
            let mut bytes = vec![0xbb; headers.datagram_len(len)];
            headers.emit(len, &mut bytes);
            let right = opcode.is_datagram() && qpn == 1 && len <= 1024;
            let expected = match (right, qkey == 1, posted > completed) {
                (false, _, _) => UdReceived::Ignored,
                (true, false, _) => UdReceived::WrongQkey,
                (true, true, false) => UdReceived::NoReceive,
                (true, true, true) => UdReceived::Completed,
            };
            prop_assert_eq!(b.receive(&bytes), expected);
            for done in b.completions() {
                prop_assert_eq!(done.id, WrId(completed));
                completed += 1;
                let fits = GRH + len <= room as usize;
                prop_assert_eq!(done.status == WcStatus::Success, fits);
            }
        }
        let bytes = b.bytes(LEN);
        prop_assert!(bytes[room as usize..].iter().all(|byte| *byte == 0xaa));
        prop_assert_eq!(b.qp.state(), State::ReadyToSend);
    }
}
