//! Unreliable connections.
use std::time::Duration;

use crate::fixture::{BASE, Network, Pair, QPNS, Settings, Side, connect, connected, path};
use gdr_roce::wire::{Headers, MAX_DATAGRAM, Opcode, Packet, icrc};
use gdr_roce::{
    Access, AtomicOp, Completion, Data, HeapMemory, Immediate, Lkey, Operation, PostError,
    QueuePair, RecvRequest, Reliability, Remote, Rkey, Segment, SendFlags, SendRequest,
    SharedReceiveQueue, State, WcOpcode, WcStatus, WrId,
};
use proptest::prelude::*;

const LEN: usize = 1 << 16;
const MTU: usize = 1024;

/// Returns two connected queue pairs, with a region of [`LEN`] bytes on each side: zeros on side 0, ones on side 1.
/// Side 1 takes its receives from `shared`, if given.
fn pair(access: Access, shared: Option<&SharedReceiveQueue>) -> Pair {
    let settings = Settings::default();
    let mut keys = [(Lkey(0), Rkey(0)); 2];
    let sides = [0, 1].map(|side| {
        let mut memory = HeapMemory::new();
        keys[side] = memory.register(BASE, vec![side as u8; LEN], access);
        let shared = shared.filter(|_| side == 1);
        let qp = QueuePair::unreliable(QPNS[side], settings.caps, shared);
        let qp = connect(qp, QPNS[1 - side], side, &settings);
        Side { qp, memory }
    });
    let [(l0, r0), (l1, r1)] = keys;
    Pair {
        net: Network::new(sides, 1),
        lkeys: [l0, l1],
        rkeys: [r0, r1],
    }
}

/// Test operations on one of the sides.
trait Actions {
    fn segment(&self, side: usize, at: u64, len: u32) -> Segment;
    fn post(&mut self, operation: Operation, len: u32) -> Result<(), PostError>;
    fn receive(&mut self, id: u64, at: u64, len: u32);
    fn write(&self, at: u64, immediate: Option<u32>) -> Operation;
    /// Returns the packets that side 0 has to send.
    fn packets(&mut self) -> Vec<Vec<u8>>;
    fn bytes(&self, at: usize, len: usize) -> Vec<u8>;
}

impl Actions for Pair {
    fn segment(&self, side: usize, at: u64, len: u32) -> Segment {
        Segment {
            lkey: self.lkeys[side],
            addr: BASE + at,
            len,
        }
    }

    fn post(&mut self, operation: Operation, len: u32) -> Result<(), PostError> {
        let segments = [self.segment(0, 0, len)];
        self.net.sides[0].qp.post_send(&SendRequest {
            id: WrId(7),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        })
    }

    fn receive(&mut self, id: u64, at: u64, len: u32) {
        let segments = [self.segment(1, at, len)];
        let request = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        self.net.sides[1].qp.post_recv(&request).unwrap();
    }

    fn write(&self, at: u64, immediate: Option<u32>) -> Operation {
        Operation::Write {
            remote: Remote {
                rkey: self.rkeys[1],
                addr: BASE + at,
            },
            immediate: immediate.map(Immediate),
        }
    }

    fn packets(&mut self) -> Vec<Vec<u8>> {
        std::iter::from_fn(|| self.net.poll(0)).collect()
    }

    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let memory = &self.net.sides[1].memory;
        memory.bytes(self.lkeys[1]).unwrap()[at..at + len].to_vec()
    }
}

const SEND: Operation = Operation::Send { immediate: None };

fn outline(completions: &[Completion]) -> Vec<(u64, WcStatus, WcOpcode, u32)> {
    let outline = |done: &Completion| (done.id.0, done.status, done.opcode, done.byte_len);
    completions.iter().map(outline).collect()
}

#[test]
fn requests_complete_when_they_are_sent_and_nothing_returns() {
    let mut pair = pair(Access::all(), None);
    assert_eq!(pair.net.sides[0].qp.reliability(), Reliability::Unreliable);
    pair.receive(1, 0, 4096);
    pair.receive(2, 0, 0);
    pair.post(SEND, 3000).unwrap();
    pair.post(pair.write(8192, Some(9)), 2500).unwrap();
    pair.post(pair.write(16384, None), 0).unwrap();
    let packets = pair.packets();
    assert_eq!(packets.len(), 3 + 3 + 1);
    let sent = outline(&pair.net.completions(0));
    let expected = [
        (7, WcStatus::Success, WcOpcode::Send, 3000),
        (7, WcStatus::Success, WcOpcode::Write, 2500),
        (7, WcStatus::Success, WcOpcode::Write, 0),
    ];
    assert_eq!(sent, expected);
    for packet in &packets {
        let header = Packet::new(packet).unwrap();
        assert_eq!(header.service(), Reliability::Unreliable);
        assert!(!header.bth().ack_request);
        pair.net.deliver(1, packet);
    }
    let received = outline(&pair.net.completions(1));
    let expected = [
        (1, WcStatus::Success, WcOpcode::Recv, 3000),
        (2, WcStatus::Success, WcOpcode::RecvWriteImmediate, 2500),
    ];
    assert_eq!(received, expected);
    assert_eq!(pair.bytes(0, 3000), [0; 3000]);
    assert_eq!(pair.bytes(8192, 2500), [0; 2500]);
    assert_eq!(pair.bytes(3000, 8), [1; 8]);
    assert_eq!(pair.net.poll(1), None, "a response");
    assert!(!pair.net.sides[0].qp.has_outstanding());
    assert_eq!(pair.net.sides[0].qp.next_deadline(), None);
}

#[test]
fn a_message_with_a_lost_packet_is_dropped_and_the_next_uses_its_receive() {
    for lost in 0..3 {
        let mut pair = pair(Access::all(), None);
        pair.receive(1, 0, 4096);
        pair.post(SEND, 3000).unwrap();
        pair.post(SEND, 100).unwrap();
        let packets = pair.packets();
        for (n, packet) in packets.iter().enumerate() {
            if n != lost {
                pair.net.deliver(1, packet);
            }
        }
        let received = outline(&pair.net.completions(1));
        assert_eq!(
            received,
            [(1, WcStatus::Success, WcOpcode::Recv, 100)],
            "{lost}"
        );
        assert_eq!(pair.net.sides[1].qp.state(), State::ReadyToSend);
    }
}

#[test]
fn a_packet_that_comes_twice_or_late_is_not_placed_in_another_message() {
    let mut pair = pair(Access::all(), None);
    pair.receive(1, 0, 8192);
    pair.post(SEND, 3000).unwrap();
    let packets = pair.packets();
    // The middle packet comes twice; the second copy does not continue the message.
    for n in [0, 1, 1, 2] {
        pair.net.deliver(1, &packets[n]);
    }
    assert_eq!(outline(&pair.net.completions(1)), []);
    for packet in &packets {
        pair.net.deliver(1, packet);
    }
    let received = outline(&pair.net.completions(1));
    assert_eq!(received, [(1, WcStatus::Success, WcOpcode::Recv, 3000)]);
}

#[test]
fn a_write_without_the_right_or_outside_the_region_places_nothing_and_breaks_nothing() {
    let cases = [(Access::LOCAL_WRITE, 0), (Access::all(), LEN as u64 - 64)];
    for (access, at) in cases {
        let mut pair = pair(access, None);
        pair.post(pair.write(at, None), 2000).unwrap();
        for packet in pair.packets() {
            pair.net.deliver(1, &packet);
        }
        assert_eq!(pair.bytes(0, LEN), [1; LEN]);
        assert_eq!(pair.net.sides[1].qp.state(), State::ReadyToSend);
        assert_eq!(pair.net.sides[1].qp.poll_event(), None);
    }
}

#[test]
fn a_message_that_does_not_fit_or_finds_no_receive_is_dropped() {
    let mut pair = pair(Access::all(), None);
    let deliver = |pair: &mut Pair| {
        for packet in pair.packets() {
            pair.net.deliver(1, &packet);
        }
        outline(&pair.net.completions(1))
    };
    pair.post(SEND, 100).unwrap();
    assert_eq!(deliver(&mut pair), []);
    pair.receive(1, 0, 2000);
    pair.post(SEND, 2001).unwrap();
    assert_eq!(deliver(&mut pair), []);
    pair.post(SEND, 2000).unwrap();
    let expected = [(1, WcStatus::Success, WcOpcode::Recv, 2000)];
    assert_eq!(deliver(&mut pair), expected);
    pair.post(pair.write(0, Some(1)), 8).unwrap();
    assert_eq!(deliver(&mut pair), []);
    assert_eq!(pair.bytes(0, 2000), [0; 2000]);
    assert_eq!(pair.net.sides[1].qp.state(), State::ReadyToSend);
}

#[test]
fn a_receive_whose_memory_is_gone_fails_and_ends_the_connection() {
    let mut pair = pair(Access::all(), None);
    pair.receive(1, LEN as u64, 64);
    pair.receive(2, 0, 64);
    pair.post(SEND, 8).unwrap();
    for packet in pair.packets() {
        pair.net.deliver(1, &packet);
    }
    let received = outline(&pair.net.completions(1));
    let expected = [
        (1, WcStatus::LocalProtection, WcOpcode::Recv, 0),
        (2, WcStatus::WrFlushed, WcOpcode::Recv, 0),
    ];
    assert_eq!(received, expected);
    assert_eq!(pair.net.sides[1].qp.state(), State::Error);
}

#[test]
fn a_request_whose_memory_is_not_registered_fails() {
    let mut pair = pair(Access::all(), None);
    pair.post(SEND, LEN as u32 + 1).unwrap();
    pair.post(SEND, 8).unwrap();
    assert_eq!(pair.packets(), Vec::<Vec<u8>>::new());
    let failed = outline(&pair.net.completions(0));
    assert_eq!(failed[0], (7, WcStatus::LocalProtection, WcOpcode::Send, 0));
    assert_eq!(failed[1], (7, WcStatus::WrFlushed, WcOpcode::Send, 0));
}

#[test]
fn reads_and_atomics_are_refused_when_they_are_posted() {
    let mut pair = pair(Access::all(), None);
    let remote = Remote {
        rkey: pair.rkeys[1],
        addr: BASE,
    };
    let op = AtomicOp::FetchAdd { add: 1 };
    for operation in [Operation::Read { remote }, Operation::Atomic { remote, op }] {
        assert_eq!(pair.post(operation, 8), Err(PostError::NoReads));
    }
}

#[test]
fn packets_of_another_service_are_ignored() {
    let settings = Settings::default();
    let mut pair = pair(Access::all(), None);
    pair.receive(1, 0, 4096);
    let mut reliable = connected(1, &settings);
    let mut memory = HeapMemory::new();
    let mut packet = vec![0; MAX_DATAGRAM];
    let (now, psn) = (pair.net.now, settings.psns[0]);
    for byte in 0..=u8::MAX {
        let Some(opcode) = Opcode::from_byte(byte) else {
            continue;
        };
        let bth = gdr_roce::wire::Bth {
            opcode: byte,
            solicited: false,
            migrated: true,
            pad: 0,
            version: 0,
            partition: gdr_roce::PartitionKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn: QPNS[1],
            ack_request: true,
            filled: false,
            psn,
        };
        let len = Headers::new(opcode, bth).emit(0, &mut packet) + icrc::LEN;
        icrc::seal(&path(), &mut packet[..len]);
        if Reliability::of(byte) != Reliability::Reliable {
            let packet = Packet::new(&packet[..len]).unwrap();
            reliable.receive(now, &packet, &mut memory);
            assert_eq!(
                reliable.poll_transmit(now, &mut memory, &mut vec![0; MAX_DATAGRAM]),
                None
            );
        }
        if Reliability::of(byte) != Reliability::Unreliable {
            pair.net.deliver(1, &packet[..len]);
            assert_eq!(pair.net.poll(1), None, "{opcode:?}");
        }
    }
    assert_eq!(pair.net.completions(1).len(), 0);
    assert_eq!(pair.net.sides[1].qp.state(), State::ReadyToSend);
    assert_eq!(reliable.state(), State::ReadyToSend);
}

#[test]
fn a_dropped_message_returns_its_receive_to_the_shared_queue() {
    let shared = SharedReceiveQueue::new(4);
    let mut pair = pair(Access::all(), Some(&shared));
    let segments = [pair.segment(1, 0, 4096)];
    let request = RecvRequest {
        id: WrId(5),
        segments: &segments,
    };
    shared.post(&request).unwrap();
    pair.post(SEND, 2000).unwrap();
    pair.post(SEND, 10).unwrap();
    let packets = pair.packets();
    pair.net.deliver(1, &packets[0]);
    pair.net.deliver(1, &packets[2]);
    let received = outline(&pair.net.completions(1));
    assert_eq!(received, [(5, WcStatus::Success, WcOpcode::Recv, 10)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever the network loses, duplicates and delays, each completed receive holds one whole message, and the
    /// connection survives.
    #[test]
    fn a_lossy_network_delivers_whole_messages_only(
        lens in prop::collection::vec(0_u32..5 * MTU as u32, 1..16),
        seed: u64,
    ) {
        let mut pair = pair(Access::all(), None);
        pair.net.faults = crate::fixture::Faults { lose: 800, duplicate: 500, delay: 800, corrupt: 300 };
        pair.net.random = crate::fixture::Random(seed);
        for n in 0..lens.len() as u64 * 2 {
            pair.receive(n, n * 8192 % (LEN as u64 - 8192), 8192);
        }
        for len in &lens {
            pair.post(SEND, *len).unwrap();
        }
        while pair.net.step() {
            pair.net.now = pair.net.now + Duration::from_nanos(1);
        }
        for done in pair.net.completions(1) {
            prop_assert_eq!(done.status, WcStatus::Success);
            prop_assert!(lens.contains(&done.byte_len));
        }
        prop_assert_eq!(pair.net.completions(0).len(), lens.len());
        prop_assert_eq!(pair.net.sides[1].qp.state(), State::ReadyToSend);
    }
}
