//! The states SQD and SQE, in which the send queue stops while receives continue.
use crate::fixture::{BASE, Pair, QPNS, Settings, connect, pair};
use gdr_roce::{
    Access, AckTimeout, Completion, Data, Event, HeapMemory, Mtu, Operation, PostError, Psn, Qkey,
    QueuePair, RecvRequest, Remote, RetryCount, RetryLimit, RnrRetry, RtsAttributes, Segment,
    SendFlags, SendRequest, State, StateError, UdQueuePair, UdSendRequest, WcStatus, WrId,
};

const LEN: usize = 1 << 16;

fn write(pair: &mut Pair, side: usize, id: u64, len: u32) -> Result<(), PostError> {
    let segments = [Segment {
        lkey: pair.lkeys[side],
        addr: BASE,
        len,
    }];
    let remote = Remote {
        rkey: pair.rkeys[1 - side],
        addr: BASE,
    };
    pair.net.sides[side].qp.post_send(&SendRequest {
        id: WrId(id),
        operation: Operation::Write {
            remote,
            immediate: None,
        },
        data: Data::Segments(&segments),
        flags: SendFlags::SIGNALLED,
    })
}

fn outline(completions: &[Completion]) -> Vec<(u64, WcStatus)> {
    let outline = |done: &Completion| (done.id.0, done.status);
    completions.iter().map(outline).collect()
}

#[test]
fn a_draining_send_queue_finishes_what_it_has_begun_and_begins_nothing() {
    let mut pair = pair(&Settings::default(), LEN, Access::all());
    write(&mut pair, 0, 1, 5000).unwrap();
    write(&mut pair, 0, 2, 5000).unwrap();
    let first = pair.net.poll(0).unwrap();
    pair.net.sides[0].qp.to_sqd().unwrap();
    assert!(pair.net.sides[0].qp.is_draining());
    write(&mut pair, 0, 3, 8).unwrap();
    pair.net.deliver(1, &first);
    pair.net.settle();
    assert_eq!(outline(&pair.net.completions(0)), [(1, WcStatus::Success)]);
    let qp = &mut pair.net.sides[0].qp;
    assert!(!qp.is_draining());
    assert_eq!(qp.state(), State::SendQueueDrained);
    assert_eq!(qp.poll_event(), Some(Event::SendQueueDrained));
    assert_eq!(qp.poll_event(), None);
    qp.resume().unwrap();
    assert_eq!(qp.state(), State::ReadyToSend);
    pair.net.settle();
    let expected = [(2, WcStatus::Success), (3, WcStatus::Success)];
    assert_eq!(outline(&pair.net.completions(0)), expected);
}

#[test]
fn a_drained_queue_pair_repeats_lost_packets_and_serves_its_peer() {
    let mut pair = pair(&Settings::default(), LEN, Access::all());
    write(&mut pair, 0, 1, 3000).unwrap();
    // Both packets sent before the change are lost.
    let _ = (pair.net.poll(0), pair.net.poll(0));
    pair.net.sides[0].qp.to_sqd().unwrap();
    write(&mut pair, 1, 2, 3000).unwrap();
    pair.net.settle();
    assert_eq!(outline(&pair.net.completions(0)), [(1, WcStatus::Success)]);
    assert_eq!(outline(&pair.net.completions(1)), [(2, WcStatus::Success)]);
    let event = pair.net.sides[0].qp.poll_event();
    assert_eq!(event, Some(Event::SendQueueDrained));
}

#[test]
fn an_idle_send_queue_is_drained_at_once() {
    let mut pair = pair(&Settings::default(), LEN, Access::all());
    let qp = &mut pair.net.sides[0].qp;
    qp.to_sqd().unwrap();
    assert!(!qp.is_draining());
    assert_eq!(qp.poll_event(), Some(Event::SendQueueDrained));
    let refused = StateError {
        from: State::SendQueueDrained,
        to: State::SendQueueDrained,
    };
    assert!(qp.to_sqd().is_err_and(|error| error.from == refused.from));
}

#[test]
fn a_drained_queue_pair_is_flushed_and_reset_as_others_are() {
    let mut pair = pair(&Settings::default(), LEN, Access::all());
    pair.net.sides[0].qp.to_sqd().unwrap();
    write(&mut pair, 0, 1, 8).unwrap();
    pair.net.sides[0].qp.to_error();
    assert_eq!(
        outline(&pair.net.completions(0)),
        [(1, WcStatus::WrFlushed)]
    );
    let qp = &mut pair.net.sides[0].qp;
    qp.to_reset();
    assert_eq!(qp.state(), State::Reset);
    assert!(qp.resume().is_err());
    // RESET leaves no trace of SQD.
    let reset = std::mem::replace(qp, QueuePair::new(QPNS[0], Settings::default().caps));
    *qp = connect(reset, QPNS[1], 0, &Settings::default());
    write(&mut pair, 0, 2, 8).unwrap();
    assert!(pair.net.poll(0).is_some());
}

#[test]
fn the_limits_of_the_requester_change_while_it_is_drained() {
    let settings = Settings {
        max_rd_atomic: 0,
        ..Settings::default()
    };
    let mut pair = pair(&settings, LEN, Access::all());
    let segments = [Segment {
        lkey: pair.lkeys[0],
        addr: BASE,
        len: 8,
    }];
    let remote = Remote {
        rkey: pair.rkeys[1],
        addr: BASE,
    };
    let read = SendRequest {
        id: WrId(1),
        operation: Operation::Read { remote },
        data: Data::Segments(&segments),
        flags: SendFlags::SIGNALLED,
    };
    let [a, b] = &mut pair.net.sides;
    assert_eq!(a.qp.post_send(&read), Err(PostError::NoReads));
    a.qp.to_sqd().unwrap();
    a.qp.set_rts_attributes(&RtsAttributes {
        sq_psn: Psn::new(77),
        timeout: AckTimeout::new(8),
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 1,
    });
    b.qp.set_max_dest_rd_atomic(1);
    a.qp.resume().unwrap();
    a.qp.post_send(&read).unwrap();
    pair.net.settle();
    assert_eq!(outline(&pair.net.completions(0)), [(1, WcStatus::Success)]);
}

#[test]
fn a_failed_request_of_an_unreliable_connection_stops_the_send_queue_only() {
    let mut memory = HeapMemory::new();
    let (lkey, _) = memory.register(BASE, vec![7; 64], Access::all());
    let settings = Settings::default();
    let [mut a, mut b] = [0, 1].map(|side| {
        let qp = QueuePair::unreliable(QPNS[side], settings.caps, None);
        connect(qp, QPNS[1 - side], side, &settings)
    });
    let segment = |len| {
        [Segment {
            lkey,
            addr: BASE,
            len,
        }]
    };
    let send = |qp: &mut QueuePair, id, len| {
        qp.post_send(&SendRequest {
            id: WrId(id),
            operation: Operation::Send { immediate: None },
            data: Data::Segments(&segment(len)),
            flags: SendFlags::SIGNALLED,
        })
        .unwrap();
    };
    let mut out = vec![0; gdr_roce::wire::MAX_DATAGRAM];
    let now = gdr_roce::Time::EPOCH;
    let done = |qp: &mut QueuePair| {
        let completions = std::iter::from_fn(|| qp.poll_completion());
        outline(&completions.collect::<Vec<_>>())
    };
    send(&mut a, 1, 65);
    send(&mut a, 2, 8);
    assert_eq!(a.poll_transmit(now, &mut memory, &mut out), None);
    assert_eq!(a.state(), State::SendQueueError);
    send(&mut a, 3, 8);
    let expected = [
        (1, WcStatus::LocalProtection),
        (2, WcStatus::WrFlushed),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(done(&mut a), expected);
    // Receives continue.
    let receive = RecvRequest {
        id: WrId(4),
        segments: &segment(64),
    };
    a.post_recv(&receive).unwrap();
    send(&mut b, 5, 8);
    let len = b.poll_transmit(now, &mut memory, &mut out).unwrap();
    let packet = gdr_roce::wire::Packet::new(&out[..len]).unwrap();
    a.receive(now, &packet, &mut memory);
    assert_eq!(done(&mut a), [(4, WcStatus::Success)]);
    a.resume().unwrap();
    send(&mut a, 6, 8);
    assert!(a.poll_transmit(now, &mut memory, &mut out).is_some());
    assert_eq!(done(&mut a), [(6, WcStatus::Success)]);
}

#[test]
fn datagrams_wait_in_a_drained_queue_and_are_flushed_in_a_failed_one() {
    let mut memory = HeapMemory::new();
    let mut qp = UdQueuePair::new(QPNS[0], Settings::default().caps, Mtu::B1024);
    qp.to_init(Qkey(1)).unwrap();
    qp.to_rtr().unwrap();
    assert!(qp.to_sqd().is_err());
    qp.to_rts(Psn::new(0)).unwrap();
    qp.to_sqd().unwrap();
    assert_eq!(qp.poll_event(), Some(Event::SendQueueDrained));
    let missing = [Segment {
        lkey: gdr_roce::Lkey(5),
        addr: 0,
        len: 8,
    }];
    let request = |id, data| UdSendRequest {
        id: WrId(id),
        to: 'b',
        dest_qpn: QPNS[1],
        qkey: Qkey(1),
        immediate: None,
        data,
        flags: SendFlags::SIGNALLED,
    };
    qp.post_send(&request(1, Data::Inline(b"hello"))).unwrap();
    let mut out = vec![0; gdr_roce::wire::MAX_DATAGRAM];
    assert_eq!(qp.poll_transmit(&mut memory, &mut out), None);
    qp.resume().unwrap();
    assert!(qp.poll_transmit(&mut memory, &mut out).is_some());
    qp.post_send(&request(2, Data::Segments(&missing))).unwrap();
    qp.post_send(&request(3, Data::Inline(b"hello"))).unwrap();
    assert_eq!(qp.poll_transmit(&mut memory, &mut out), None);
    assert_eq!(qp.state(), State::SendQueueError);
    let mut done = || -> Vec<_> { std::iter::from_fn(|| qp.poll_completion()).collect() };
    let expected = [
        (1, WcStatus::Success),
        (2, WcStatus::LocalProtection),
        (3, WcStatus::WrFlushed),
    ];
    assert_eq!(outline(&done()), expected);
    qp.post_send(&request(4, Data::Inline(b"hello"))).unwrap();
    let flushed = qp.poll_completion().unwrap();
    assert_eq!(outline(&[flushed]), [(4, WcStatus::WrFlushed)]);
    assert_eq!(qp.poll_completion(), None);
    qp.resume().unwrap();
    qp.post_send(&request(5, Data::Inline(b"hello"))).unwrap();
    assert!(qp.poll_transmit(&mut memory, &mut out).is_some());
}

#[test]
fn requests_that_are_withdrawn_are_neither_sent_nor_completed() {
    let mut pair = pair(&Settings::default(), LEN, Access::all());
    for id in 1..=3 {
        write(&mut pair, 0, id, 5000).unwrap();
    }
    pair.net.sides[0].qp.withdraw_sends(2);
    write(&mut pair, 0, 4, 8).unwrap();
    pair.net.settle();
    let expected = [(1, WcStatus::Success), (4, WcStatus::Success)];
    assert_eq!(outline(&pair.net.completions(0)), expected);
    // In ERR, requests are flushed when they are posted, but can still be withdrawn.
    pair.net.sides[0].qp.to_error();
    for id in 5..=7 {
        write(&mut pair, 0, id, 8).unwrap();
    }
    pair.net.sides[0].qp.withdraw_sends(2);
    let expected = [(5, WcStatus::WrFlushed)];
    assert_eq!(outline(&pair.net.completions(0)), expected);
}

#[test]
fn datagrams_that_are_withdrawn_are_neither_sent_nor_completed() {
    let mut memory = HeapMemory::new();
    let mut qp = UdQueuePair::new(QPNS[0], Settings::default().caps, Mtu::B1024);
    qp.to_init(Qkey(1)).unwrap();
    qp.to_rtr().unwrap();
    qp.to_rts(Psn::new(0)).unwrap();
    let post = |qp: &mut UdQueuePair<char>, id| {
        qp.post_send(&UdSendRequest {
            id: WrId(id),
            to: 'b',
            dest_qpn: QPNS[1],
            qkey: Qkey(1),
            immediate: None,
            data: Data::Inline(b"hello"),
            flags: SendFlags::SIGNALLED,
        })
        .unwrap();
    };
    let mut out = vec![0; gdr_roce::wire::MAX_DATAGRAM];
    (1..=3).for_each(|id| post(&mut qp, id));
    qp.withdraw_sends(2);
    assert!(qp.poll_transmit(&mut memory, &mut out).is_some());
    assert_eq!(qp.poll_transmit(&mut memory, &mut out), None);
    assert_eq!(qp.poll_completion().map(|done| done.id), Some(WrId(1)));
    qp.to_error();
    (4..=6).for_each(|id| post(&mut qp, id));
    qp.withdraw_sends(2);
    let flushed: Vec<_> = std::iter::from_fn(|| qp.poll_completion()).collect();
    assert_eq!(outline(&flushed), [(4, WcStatus::WrFlushed)]);
}
