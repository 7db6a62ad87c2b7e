//! Extended reliable connections: requests name the shared receive queue of the target.
use crate::fixture::{BASE, Faults, Network, QPNS, Settings, Side, connect};
use gdr_roce::wire::{Opcode, Packet};
use gdr_roce::{
    Access, AtomicOp, Completion, Data, Event, HeapMemory, Immediate, Lkey, LossRecovery,
    Operation, PostError, QueuePair, RecvRequest, Reliability, Remote, Rkey, Segment, SendFlags,
    SendRequest, SharedReceiveQueue, State, WcOpcode, WcStatus, WrId, XrcDomain, XrcSrqn,
};

const LEN: usize = 1 << 16;
const NUMBERS: [XrcSrqn; 2] = [XrcSrqn::new(0x00_1234), XrcSrqn::new(0xff_ffff)];

/// An initiator on side 0, a target on side 1, and two queues that the target's messages may name.
struct Ends {
    net: Network<HeapMemory>,
    lkeys: [Lkey; 2],
    rkey: Rkey,
    domain: XrcDomain,
    queues: [SharedReceiveQueue; 2],
}

fn ends(settings: &Settings) -> Ends {
    let domain = XrcDomain::new();
    let queues = NUMBERS.map(|number| {
        let queue = SharedReceiveQueue::new(16);
        domain.insert(number, &queue);
        queue
    });
    let initiator = QueuePair::initiator(QPNS[0], settings.caps, settings.config);
    let target = QueuePair::target(QPNS[1], settings.config, &domain);
    let mut keys = [(Lkey(0), Rkey(0)); 2];
    let mut number = 0;
    let sides = [initiator, target].map(|qp| {
        let side = number;
        number += 1;
        let mut memory = HeapMemory::new();
        keys[side] = memory.register(BASE, vec![side as u8; LEN], Access::all());
        Side {
            qp: connect(qp, QPNS[1 - side], side, settings),
            memory,
        }
    });
    Ends {
        net: Network::new(sides, 1),
        lkeys: keys.map(|(lkey, _)| lkey),
        rkey: keys[1].1,
        domain,
        queues,
    }
}

impl Ends {
    fn receive(&self, queue: usize, id: u64, len: u32) {
        let segments = [Segment {
            lkey: self.lkeys[1],
            addr: BASE + 4096 * id,
            len,
        }];
        let id = WrId(id);
        let segments = &segments;
        self.queues[queue]
            .post(&RecvRequest { id, segments })
            .unwrap();
    }

    fn post(&mut self, number: XrcSrqn, operation: Operation, len: u32) {
        let segments = [Segment {
            lkey: self.lkeys[0],
            addr: BASE,
            len,
        }];
        let request = SendRequest {
            id: WrId(7),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        };
        let initiator = &mut self.net.sides[0].qp;
        initiator.post_send_to(number, &request).unwrap();
    }

    fn remote(&self, at: u64) -> Remote {
        let (rkey, addr) = (self.rkey, BASE + at);
        Remote { rkey, addr }
    }

    fn bytes(&self, side: usize, at: usize, len: usize) -> Vec<u8> {
        let memory = &self.net.sides[side].memory;
        memory.bytes(self.lkeys[side]).unwrap()[at..at + len].to_vec()
    }

    fn outline(&mut self, side: usize) -> Vec<(u64, WcStatus, WcOpcode, u32)> {
        let outline = |done: &Completion| {
            assert_eq!(done.qpn, QPNS[side]);
            (done.id.0, done.status, done.opcode, done.byte_len)
        };
        self.net.completions(side).iter().map(outline).collect()
    }
}

const SEND: Operation = Operation::Send { immediate: None };

#[test]
fn a_message_is_received_by_the_queue_that_it_names() {
    let mut ends = ends(&Settings::default());
    ends.receive(0, 1, 4096);
    ends.receive(1, 2, 4096);
    ends.receive(1, 3, 0);
    let immediate = Some(Immediate(9));
    ends.post(NUMBERS[1], SEND, 3000);
    ends.post(NUMBERS[0], Operation::Send { immediate }, 8);
    let remote = ends.remote(32768);
    ends.post(NUMBERS[1], Operation::Write { remote, immediate }, 2000);
    ends.net.settle();
    let sent = [
        (WcOpcode::Send, 3000),
        (WcOpcode::Send, 8),
        (WcOpcode::Write, 2000),
    ];
    let sent = sent.map(|(opcode, len)| (7, WcStatus::Success, opcode, len));
    assert_eq!(ends.outline(0), sent);
    let received = [
        (2, WcStatus::Success, WcOpcode::Recv, 3000),
        (1, WcStatus::Success, WcOpcode::Recv, 8),
        (3, WcStatus::Success, WcOpcode::RecvWriteImmediate, 2000),
    ];
    assert_eq!(ends.outline(1), received);
    assert_eq!(ends.bytes(1, 2 * 4096, 3000), [0; 3000]);
    assert_eq!(ends.bytes(1, 32768, 2000), [0; 2000]);
    assert!(ends.queues.iter().all(SharedReceiveQueue::is_empty));
}

#[test]
fn every_request_names_its_queue_and_no_response_does() {
    let mut ends = ends(&Settings::default());
    ends.receive(0, 1, 4096);
    let remote = ends.remote(0);
    let op = AtomicOp::FetchAdd { add: 1 };
    ends.post(NUMBERS[0], SEND, 2500);
    ends.post(
        NUMBERS[0],
        Operation::Write {
            remote,
            immediate: None,
        },
        2500,
    );
    ends.post(NUMBERS[0], Operation::Read { remote }, 2500);
    ends.post(NUMBERS[0], Operation::Atomic { remote, op }, 8);
    let mut opcodes = Vec::new();
    while let Some(bytes) = ends.net.poll(0) {
        let packet = Packet::new(&bytes).unwrap();
        assert_eq!(packet.service(), Reliability::Extended);
        assert_eq!(packet.xrceth().unwrap().0, NUMBERS[0]);
        opcodes.push(packet.opcode());
        ends.net.deliver(1, &bytes);
        while let Some(bytes) = ends.net.poll(1) {
            let packet = Packet::new(&bytes).unwrap();
            assert_eq!(packet.service(), Reliability::Extended);
            assert!(packet.opcode().is_response() && packet.xrceth().is_none());
            ends.net.deliver(0, &bytes);
        }
    }
    let expected = [
        Opcode::SendFirst,
        Opcode::SendMiddle,
        Opcode::SendLast,
        Opcode::WriteFirst,
        Opcode::WriteMiddle,
        Opcode::WriteLast,
        Opcode::ReadRequest,
        Opcode::FetchAdd,
    ];
    assert_eq!(opcodes, expected);
    let done = ends.outline(0);
    assert!(
        done.iter()
            .all(|(_, status, ..)| *status == WcStatus::Success)
    );
    assert_eq!(done.len(), 4);
}

#[test]
fn a_request_for_a_queue_that_there_is_not_is_invalid() {
    let mut ends = ends(&Settings::default());
    ends.domain.remove(NUMBERS[1]);
    ends.receive(1, 1, 64);
    let remote = ends.remote(0);
    // Not even a request that needs no receive is executed.
    ends.post(
        NUMBERS[1],
        Operation::Write {
            remote,
            immediate: None,
        },
        8,
    );
    ends.net.settle();
    let failed = (7, WcStatus::RemoteInvalidRequest, WcOpcode::Write, 0);
    assert_eq!(ends.outline(0), [failed]);
    assert_eq!(ends.net.sides[1].qp.state(), State::Error);
    let event = ends.net.sides[1].qp.poll_event();
    assert!(
        [
            Some(Event::InvalidRequest),
            Some(Event::CommunicationEstablished)
        ]
        .contains(&event)
    );
    assert_eq!(ends.bytes(1, 0, 8), [1; 8], "nothing is placed");
    assert_eq!(ends.queues[1].len(), 1, "nor is a receive taken");
}

#[test]
fn a_message_in_progress_returns_its_receive_to_the_queue_it_was_of() {
    let mut ends = ends(&Settings::default());
    ends.receive(1, 5, 4096);
    ends.post(NUMBERS[1], SEND, 3000);
    let first = ends.net.poll(0).unwrap();
    ends.net.deliver(1, &first);
    assert!(ends.queues[1].is_empty());
    ends.net.sides[1].qp.to_reset();
    assert_eq!([ends.queues[0].len(), ends.queues[1].len()], [0, 1]);
    assert_eq!(ends.outline(1), []);
}

#[test]
fn an_empty_queue_is_not_ready_and_others_are_not_asked() {
    let mut ends = ends(&Settings::default());
    ends.receive(0, 1, 64);
    ends.post(NUMBERS[1], SEND, 8);
    for _ in 0..6 {
        ends.net.step();
    }
    assert_eq!(ends.outline(1), []);
    assert_eq!(ends.queues[0].len(), 1);
    ends.receive(1, 2, 64);
    ends.net.settle();
    assert_eq!(ends.outline(1), [(2, WcStatus::Success, WcOpcode::Recv, 8)]);
}

#[test]
fn the_target_has_no_queue_of_its_own_and_the_initiator_answers_nothing() {
    let mut ends = ends(&Settings::default());
    let receive = RecvRequest {
        id: WrId(0),
        segments: &[],
    };
    let target = &mut ends.net.sides[1].qp;
    assert_eq!(target.post_recv(&receive), Err(PostError::SharedReceives));
    let request = SendRequest {
        id: WrId(0),
        operation: SEND,
        data: Data::Inline(&[]),
        flags: SendFlags::SIGNALLED,
    };
    assert_eq!(target.post_send(&request), Err(PostError::Full(0)));
    // A request sent to the initiator: its own, readdressed to it.
    ends.post(NUMBERS[0], SEND, 8);
    let mut packet = ends.net.poll(0).unwrap();
    packet[5..8].copy_from_slice(&QPNS[0].get().to_be_bytes()[1..]);
    packet[9..12].copy_from_slice(&Settings::default().psns[1].get().to_be_bytes()[1..]);
    gdr_roce::wire::icrc::seal(&crate::fixture::path(), &mut packet);
    ends.net.deliver(0, &packet);
    assert_eq!(ends.net.dropped, 0);
    assert_eq!(ends.net.poll(0), None, "an answer");
    assert_eq!(ends.net.sides[0].qp.state(), State::ReadyToSend);
}

#[test]
fn messages_arrive_once_and_in_order_over_a_network_with_faults() {
    for recovery in [LossRecovery::GoBackN, LossRecovery::Selective] {
        let mut ends = ends(&Settings {
            recovery,
            ..Settings::default()
        });
        ends.net.faults = Faults {
            lose: 300,
            duplicate: 300,
            delay: 300,
            corrupt: 100,
        };
        for round in 0..40 {
            for id in 0..4 {
                ends.receive(id as usize % 2, id, 4096);
            }
            for id in 0..4 {
                ends.post(NUMBERS[id % 2], SEND, 100 * (round + 1) % 4096);
            }
            ends.net.settle();
            let order: Vec<_> = ends.outline(1).iter().map(|done| done.0).collect();
            assert_eq!(order, [0, 1, 2, 3], "{recovery:?}, {round}");
            assert_eq!(ends.outline(0).len(), 4);
        }
    }
}
