//! Every operation and every failure between two queue pairs, over a fault-free network.

use crate::fixture::{BASE, Pair, Settings, pair};
use gdr_roce::{
    Access, AtomicOp, Data, Event, Immediate, Operation, PostError, Qpn, QueuePair, RecvRequest,
    Remote, RnrRetry, Segment, SendFlags, SendRequest, State, WcOpcode, WcStatus, WrId,
};

const LEN: usize = 64 << 10;

fn connected_pair() -> Pair {
    pair(&Settings::default(), LEN, Access::all())
}

impl Pair {
    fn segment(&self, side: usize, offset: u64, len: u32) -> Segment {
        Segment {
            lkey: self.lkeys[side],
            addr: BASE + offset,
            len,
        }
    }

    fn remote(&self, side: usize, offset: u64) -> Remote {
        Remote {
            rkey: self.rkeys[side],
            addr: BASE + offset,
        }
    }

    fn bytes(&mut self, side: usize) -> &mut [u8] {
        self.net.sides[side]
            .memory
            .bytes_mut(self.lkeys[side])
            .expect("registered")
    }

    /// Posts a send on side 0.
    fn send(&mut self, id: u64, operation: Operation, segments: &[Segment]) {
        self.send_with(
            id,
            operation,
            Data::Segments(segments),
            SendFlags::SIGNALLED,
        );
    }

    fn send_with(&mut self, id: u64, operation: Operation, data: Data<'_>, flags: SendFlags) {
        let request = SendRequest {
            id: WrId(id),
            operation,
            data,
            flags,
        };
        self.net.sides[0].qp.post_send(&request).expect("room");
    }

    /// Posts a receive on side 1.
    fn receive(&mut self, id: u64, segments: &[Segment]) {
        let request = RecvRequest {
            id: WrId(id),
            segments,
        };
        self.net.sides[1].qp.post_recv(&request).expect("room");
    }

    /// Returns the identifier and status of each completion of a side.
    fn statuses(&mut self, side: usize) -> Vec<(u64, WcStatus)> {
        self.net
            .completions(side)
            .iter()
            .map(|done| (done.id.0, done.status))
            .collect()
    }
}

/// Returns bytes that depend on their position.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8 | 2).collect()
}

#[test]
fn a_write_places_its_bytes_and_no_others() {
    for len in [0, 1, 1023, 1024, 1025, 3000, 5120] {
        let mut pair = connected_pair();
        pair.bytes(0)[..len].copy_from_slice(&pattern(len));
        let write = Operation::Write {
            remote: pair.remote(1, 100),
            immediate: None,
        };
        let segment = pair.segment(0, 0, len as u32);
        pair.send(9, write, &[segment]);
        pair.net.settle();
        let done = pair.net.completions(0);
        assert_eq!(done.len(), 1);
        assert_eq!((done[0].id, done[0].status), (WrId(9), WcStatus::Success));
        assert_eq!(
            (done[0].opcode, done[0].byte_len as usize),
            (WcOpcode::Write, len)
        );
        let mut expected = vec![1; LEN];
        expected[100..100 + len].copy_from_slice(&pattern(len));
        assert_eq!(pair.bytes(1), expected);
        assert_eq!(pair.net.completions(1), []);
    }
}

#[test]
fn a_send_fills_the_receives_segments_in_order() {
    let mut pair = connected_pair();
    pair.bytes(0)[..2500].copy_from_slice(&pattern(2500));
    let into = [
        pair.segment(1, 0, 10),
        pair.segment(1, 5000, 0),
        pair.segment(1, 100, 4000),
    ];
    pair.receive(5, &into);
    let from = [pair.segment(0, 0, 1500), pair.segment(0, 1500, 1000)];
    let flags = SendFlags::SIGNALLED | SendFlags::SOLICITED;
    let send = Operation::Send {
        immediate: Some(Immediate(0xabcd)),
    };
    pair.send_with(6, send, Data::Segments(&from), flags);
    pair.net.settle();
    assert_eq!(pair.statuses(0), [(6, WcStatus::Success)]);
    let done = pair.net.completions(1);
    assert_eq!((done[0].id, done[0].status), (WrId(5), WcStatus::Success));
    assert_eq!((done[0].opcode, done[0].byte_len), (WcOpcode::Recv, 2500));
    assert_eq!(
        (done[0].immediate, done[0].solicited),
        (Some(Immediate(0xabcd)), true)
    );
    assert_eq!(done[0].qpn, crate::fixture::QPNS[1]);
    assert_eq!(pair.bytes(1)[..10], pattern(2500)[..10]);
    assert_eq!(pair.bytes(1)[100..2590], pattern(2500)[10..]);
    assert!(pair.bytes(1)[2590..].iter().all(|byte| *byte == 1));
}

#[test]
fn a_write_with_immediate_consumes_a_receive_without_writing_its_segments() {
    let mut pair = connected_pair();
    let into = pair.segment(1, 0, 64);
    pair.receive(1, &[into]);
    let write = Operation::Write {
        remote: pair.remote(1, 1000),
        immediate: Some(Immediate(7)),
    };
    let segment = pair.segment(0, 0, 3000);
    pair.send(2, write, &[segment]);
    pair.net.settle();
    let done = pair.net.completions(1);
    assert_eq!(
        (done[0].opcode, done[0].byte_len),
        (WcOpcode::RecvWriteImmediate, 3000)
    );
    assert_eq!(done[0].immediate, Some(Immediate(7)));
    assert!(pair.bytes(1)[..1000].iter().all(|byte| *byte == 1));
    assert!(pair.bytes(1)[1000..4000].iter().all(|byte| *byte == 0));
}

#[test]
fn a_read_copies_the_bytes_of_the_peer() {
    for len in [0, 1, 1024, 1025, 60_000] {
        let mut pair = connected_pair();
        pair.bytes(1)[..len].copy_from_slice(&pattern(len));
        let read = Operation::Read {
            remote: pair.remote(1, 0),
        };
        let cut = len as u32 / 3;
        let into = [
            pair.segment(0, 2, cut),
            pair.segment(0, 2 + u64::from(cut), len as u32 - cut),
        ];
        pair.send(3, read, &into);
        pair.net.settle();
        assert_eq!(pair.statuses(0), [(3, WcStatus::Success)]);
        assert_eq!(pair.bytes(0)[2..2 + len], pattern(len));
        assert!(pair.bytes(0)[2 + len..].iter().all(|byte| *byte == 0));
    }
}

#[test]
fn atomics_return_the_original_value() {
    let mut pair = connected_pair();
    pair.bytes(1)[16..24].copy_from_slice(&40u64.to_ne_bytes());
    let remote = pair.remote(1, 16);
    let ops = [
        AtomicOp::FetchAdd { add: 2 },
        AtomicOp::CompareSwap {
            compare: 41,
            swap: 1,
        },
        AtomicOp::CompareSwap {
            compare: 42,
            swap: 5,
        },
    ];
    for (at, op) in (0u64..).zip(ops) {
        let segment = pair.segment(0, at * 8, 8);
        pair.send(at, Operation::Atomic { remote, op }, &[segment]);
    }
    pair.net.settle();
    let done: Vec<_> = pair
        .net
        .completions(0)
        .iter()
        .map(|done| done.opcode)
        .collect();
    assert_eq!(
        done,
        [
            WcOpcode::FetchAdd,
            WcOpcode::CompareSwap,
            WcOpcode::CompareSwap
        ]
    );
    let originals: Vec<_> = pair.bytes(0)[..24]
        .as_chunks()
        .0
        .iter()
        .map(|b| u64::from_ne_bytes(*b))
        .collect();
    assert_eq!(originals, [40, 42, 42]);
    assert_eq!(pair.bytes(1)[16..24], 5u64.to_ne_bytes());
}

#[test]
fn inline_bytes_are_copied_when_the_request_is_posted() {
    let mut pair = connected_pair();
    let mut bytes = *b"hello";
    let write = Operation::Write {
        remote: pair.remote(1, 0),
        immediate: None,
    };
    pair.send_with(1, write, Data::Inline(&bytes), SendFlags::empty());
    bytes.fill(0);
    pair.net.settle();
    assert_eq!(&pair.bytes(1)[..5], b"hello");
    assert_eq!(pair.statuses(0), [], "not signalled");
}

#[test]
fn a_fenced_send_waits_for_the_read_before_it() {
    let mut pair = connected_pair();
    let read = Operation::Read {
        remote: pair.remote(1, 0),
    };
    let into = pair.segment(0, 0, 4);
    pair.send(1, read, &[into]);
    let write = Operation::Write {
        remote: pair.remote(1, 100),
        immediate: None,
    };
    let flags = SendFlags::SIGNALLED | SendFlags::FENCE;
    pair.send_with(2, write, Data::Segments(&[into]), flags);
    pair.net.settle();
    assert_eq!(
        pair.statuses(0),
        [(1, WcStatus::Success), (2, WcStatus::Success)]
    );
    assert_eq!(
        pair.bytes(1)[100..104],
        [1; 4],
        "the bytes that the READ has stored"
    );
}

#[test]
fn a_send_without_a_receive_waits_until_one_is_posted() {
    let mut pair = connected_pair();
    let segment = pair.segment(0, 0, 2000);
    pair.send(1, Operation::Send { immediate: None }, &[segment]);
    for _ in 0..100 {
        assert!(pair.net.step());
    }
    assert_eq!(pair.statuses(0), []);
    let into = pair.segment(1, 0, 2000);
    pair.receive(2, &[into]);
    pair.net.settle();
    assert_eq!(pair.statuses(0), [(1, WcStatus::Success)]);
    assert_eq!(pair.statuses(1), [(2, WcStatus::Success)]);
}

#[test]
fn a_send_to_a_peer_that_never_posts_a_receive_fails() {
    let settings = Settings {
        rnr_retry: RnrRetry::new(3),
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    let segment = pair.segment(0, 0, 1);
    pair.send(1, Operation::Send { immediate: None }, &[segment]);
    pair.send(2, Operation::Send { immediate: None }, &[segment]);
    pair.net.settle();
    let expected = [(1, WcStatus::RnrRetryExceeded), (2, WcStatus::WrFlushed)];
    assert_eq!(pair.statuses(0), expected);
    assert_eq!(pair.net.sides[0].qp.state(), State::Error);
}

#[test]
fn a_connection_to_a_dead_peer_fails_after_all_retries() {
    let mut pair = connected_pair();
    pair.net.faults.lose = 10_000;
    let into = pair.segment(0, 0, 8);
    for id in 0..3 {
        let write = Operation::Write {
            remote: pair.remote(1, 0),
            immediate: None,
        };
        pair.send_with(id, write, Data::Segments(&[into]), SendFlags::empty());
    }
    pair.net.settle();
    let expected = [
        (0, WcStatus::RetryExceeded),
        (1, WcStatus::WrFlushed),
        (2, WcStatus::WrFlushed),
    ];
    assert_eq!(
        pair.statuses(0),
        expected,
        "a failure gives a completion without the signalled flag"
    );
    // Three packets, then the first one seven more times at intervals of 4.096 us x 2^8.
    assert_eq!(pair.net.packets, 10);
    assert_eq!(pair.net.now.elapsed().as_nanos(), 8 * (4096 << 8));
}

#[test]
fn a_message_longer_than_its_receive_fails_both_sides() {
    let mut pair = connected_pair();
    let (from, into) = (pair.segment(0, 0, 3000), pair.segment(1, 0, 2999));
    pair.receive(1, &[into]);
    pair.receive(2, &[into]);
    pair.send(3, Operation::Send { immediate: None }, &[from]);
    pair.net.settle();
    assert_eq!(pair.statuses(0), [(3, WcStatus::RemoteInvalidRequest)]);
    assert_eq!(
        pair.statuses(1),
        [(1, WcStatus::LocalLength), (2, WcStatus::WrFlushed)]
    );
    assert_eq!(
        pair.net.sides[1].qp.poll_event(),
        Some(Event::InvalidRequest)
    );
    assert_eq!(pair.net.sides[1].qp.state(), State::Error);
}

#[test]
fn a_send_outside_registered_memory_fails_after_the_requests_before_it() {
    let mut pair = connected_pair();
    let write = Operation::Write {
        remote: pair.remote(1, 0),
        immediate: None,
    };
    let good = pair.segment(0, 0, 5000);
    let bad = pair.segment(0, LEN as u64 - 10, 11);
    pair.send(1, write, &[good]);
    pair.send(2, write, &[bad]);
    pair.send(3, write, &[good]);
    pair.net.settle();
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::LocalProtection),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(pair.statuses(0), expected);
}

#[test]
fn memory_that_is_deregistered_during_a_read_fails_the_connection() {
    let mut pair = connected_pair();
    let read = Operation::Read {
        remote: pair.remote(1, 0),
    };
    let into = pair.segment(0, 0, 50_000);
    pair.send(1, read, &[into]);
    pair.net.step();
    pair.net.transmit();
    let lkey = pair.lkeys[1];
    pair.net.sides[1].memory.deregister(lkey);
    let other = pair.segment(0, 0, 1);
    pair.send(2, read, &[other]);
    pair.net.settle();
    let statuses = pair.statuses(0);
    assert_eq!(statuses.last().map(|last| last.0), Some(2));
    assert!(
        statuses
            .iter()
            .any(|(_, status)| *status == WcStatus::RemoteAccess),
        "{statuses:?}"
    );
}

#[test]
fn a_receive_outside_registered_memory_fails_on_both_sides() {
    let mut pair = connected_pair();
    let from = pair.segment(0, 0, 11);
    let into = [pair.segment(1, 0, 10), pair.segment(1, LEN as u64, 10)];
    pair.receive(1, &into);
    pair.send(2, Operation::Send { immediate: None }, &[from]);
    pair.net.settle();
    assert_eq!(pair.statuses(0), [(2, WcStatus::RemoteOperation)]);
    assert_eq!(pair.statuses(1), [(1, WcStatus::LocalProtection)]);
    assert_eq!(pair.net.sides[1].qp.poll_event(), Some(Event::Fatal));
    assert!(
        pair.bytes(1).iter().all(|byte| *byte == 1),
        "not even in the valid segment"
    );
}

#[test]
fn a_queue_pair_changes_its_states_in_order() {
    let settings = Settings::default();
    let mut qp = QueuePair::new(Qpn::new(3), settings.caps);
    assert_eq!(qp.state(), State::Reset);
    let recv = RecvRequest {
        id: WrId(1),
        segments: &[],
    };
    let send = SendRequest {
        id: WrId(2),
        operation: Operation::Send { immediate: None },
        data: Data::Inline(b"x"),
        flags: SendFlags::empty(),
    };
    assert_eq!(qp.post_recv(&recv), Err(PostError::State(State::Reset)));
    qp.to_error();
    assert_eq!(qp.state(), State::Reset, "RESET does not change to ERR");
    qp.to_init(Access::empty()).expect("from RESET");
    assert!(qp.to_init(Access::empty()).is_err());
    assert_eq!(qp.post_send(&send), Err(PostError::State(State::Init)));
    qp.post_recv(&recv).expect("in INIT");
    qp.to_error();
    assert_eq!(
        qp.poll_completion().map(|done| done.status),
        Some(WcStatus::WrFlushed)
    );
    qp.post_send(&send).expect("to be flushed");
    assert_eq!(
        qp.poll_completion().map(|done| (done.id, done.status)),
        Some((WrId(2), WcStatus::WrFlushed))
    );
    qp.post_recv(&recv).expect("to be flushed");
    qp.to_reset();
    assert_eq!(qp.state(), State::Reset);
    assert_eq!(
        qp.poll_completion().map(|done| (done.id, done.status)),
        Some((WrId(1), WcStatus::WrFlushed)),
        "what was there before RESET stays"
    );
    assert_eq!(qp.poll_completion(), None);
    qp.to_init(Access::empty()).expect("from RESET");
}

#[test]
fn invalid_requests_are_not_posted() {
    let mut pair = connected_pair();
    let remote = pair.remote(1, 0);
    let atomic = Operation::Atomic {
        remote,
        op: AtomicOp::FetchAdd { add: 1 },
    };
    let write = Operation::Write {
        remote,
        immediate: None,
    };
    let (four, huge) = (pair.segment(0, 0, 4), pair.segment(0, 0, u32::MAX));
    let qp = &mut pair.net.sides[0].qp;
    let mut post = |operation, data: Data<'_>| {
        let flags = SendFlags::SIGNALLED;
        qp.post_send(&SendRequest {
            id: WrId(0),
            operation,
            data,
            flags,
        })
    };
    assert_eq!(
        post(atomic, Data::Segments(&[four])),
        Err(PostError::AtomicLength(4))
    );
    assert_eq!(
        post(Operation::Read { remote }, Data::Inline(b"")),
        Err(PostError::InlineResponse)
    );
    let long = [0; 257];
    let too_long = PostError::InlineTooLong { len: 257, max: 256 };
    assert_eq!(post(write, Data::Inline(&long)), Err(too_long));
    assert_eq!(
        post(write, Data::Segments(&[huge])),
        Err(PostError::TooLong(u32::MAX.into()))
    );
    for _ in 0..64 {
        assert_eq!(post(write, Data::Segments(&[four])), Ok(()));
    }
    assert_eq!(
        post(write, Data::Segments(&[four])),
        Err(PostError::Full(64))
    );
}

#[test]
fn in_err_every_request_is_flushed_even_without_a_connection_before() {
    let settings = Settings::default();
    let mut qp = QueuePair::new(Qpn::new(5), settings.caps);
    qp.to_init(Access::all()).expect("from RESET");
    qp.to_error();
    let segments = [Segment {
        lkey: gdr_roce::Lkey(1),
        addr: BASE,
        len: 8,
    }];
    let remote = Remote {
        rkey: gdr_roce::Rkey(1),
        addr: BASE,
    };
    let op = AtomicOp::FetchAdd { add: 1 };
    for operation in [
        Operation::Send { immediate: None },
        Operation::Read { remote },
        Operation::Atomic { remote, op },
    ] {
        let request = SendRequest {
            id: WrId(1),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::empty(),
        };
        qp.post_send(&request).expect("flushed");
        let done = qp.poll_completion().expect("completed immediately");
        assert_eq!(done.status, WcStatus::WrFlushed);
    }
}
