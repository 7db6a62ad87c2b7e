//! Every operation, where all goes well.

use gdr_rdma::{AtomicOp, Immediate, Integrity, Mtu, RecvRequest, SendRequest, WcOpcode, WrId};

use crate::fixture::*;

/// Sizes around packets, segmented sends and windows.
const SIZES: [usize; 12] = [
    1, 2, 3, 255, 4095, 4096, 4097, 8192, 61_440, 65_537, 262_144, 1_048_577,
];

#[test]
fn written_bytes_arrive_and_no_others_change() {
    let Some((a, b)) = sides() else { return };
    let source = a.memory(2 << 20);
    let sent = fill(&source, 1);
    for len in SIZES {
        let target = b.memory(len + 64);
        let before = fill(&target, 9);
        let request = SendRequest::write(WrId(len as u64), target.remote().at(32))
            .segment(source.segment(5, len as u64).unwrap());
        a.pair.post_send(request).unwrap();
        let done = a.done();
        assert_eq!((done.id, done.opcode), (WrId(len as u64), WcOpcode::Write));

        let after = bytes(&target);
        assert_eq!(after[..32], before[..32], "{len} bytes: before");
        assert!(after[32..][..len] == sent[5..][..len], "{len} bytes");
        assert_eq!(after[32 + len..], before[32 + len..], "{len} bytes: after");
    }
}

#[test]
fn read_bytes_arrive() {
    let Some((a, b)) = sides() else { return };
    let source = b.memory(2 << 20);
    let kept = fill(&source, 2);
    for len in SIZES {
        let target = a.memory(len);
        let request = SendRequest::read(WrId(7), source.remote().at(3))
            .segment(target.segment(0, len as u64).unwrap());
        a.pair.post_send(request).unwrap();
        let done = a.done();
        assert_eq!((done.opcode, done.byte_len), (WcOpcode::Read, len as u32));
        assert!(bytes(&target) == kept[3..][..len], "{len} bytes");
    }
}

#[test]
fn messages_fill_receives_in_order_with_their_immediates() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(10_000), b.memory(20_000));
    let sent = fill(&source, 3);
    for n in 0..2 {
        // Two segments each: scattered as gathered.
        let first = target.segment(n * 10_000, 17).unwrap();
        let second = target.segment(n * 10_000 + 17, 9983).unwrap();
        let receive = RecvRequest::new(WrId(n)).segment(first).segment(second);
        b.pair.post_recv(receive).unwrap();
    }
    let whole = || source.segment(0, 10_000).unwrap();
    a.pair
        .post_send(SendRequest::send(WrId(10)).segment(whole()).solicited())
        .unwrap();
    let second = SendRequest::send(WrId(11))
        .segment(source.segment(0, 100).unwrap())
        .segment(source.segment(100, 900).unwrap())
        .immediate(Immediate(0xdead_beef));
    a.pair.post_send(second).unwrap();

    let received = [b.done(), b.done()];
    assert_eq!(received.map(|c| c.id), [WrId(0), WrId(1)]);
    assert_eq!(received.map(|c| c.opcode), [WcOpcode::Recv; 2]);
    assert_eq!(received.map(|c| c.byte_len), [10_000, 1000]);
    assert_eq!(received.map(|c| c.solicited), [true, false]);
    let immediates = received.map(|c| c.immediate);
    assert_eq!(immediates, [None, Some(Immediate(0xdead_beef))]);
    assert_eq!([a.done().id, a.done().id], [WrId(10), WrId(11)]);
    let arrived = bytes(&target);
    assert!(arrived[..10_000] == sent[..] && arrived[10_000..11_000] == sent[..1000]);
}

#[test]
fn a_write_with_an_immediate_consumes_a_receive_and_reports_its_length() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(5000), b.memory(5000));
    let sent = fill(&source, 4);
    b.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
    let request = SendRequest::write(WrId(2), target.remote().at(0))
        .segment(source.segment(0, 5000).unwrap())
        .immediate(Immediate(77));
    a.pair.post_send(request).unwrap();
    let arrived = b.done();
    assert_eq!(arrived.opcode, WcOpcode::RecvWriteImmediate);
    assert_eq!(
        (arrived.byte_len, arrived.immediate),
        (5000, Some(Immediate(77)))
    );
    // The bytes of the completion are already in memory.
    assert!(bytes(&target) == sent);
    a.done();
}

#[test]
fn atomics_return_the_previous_value_and_change_it() {
    let Some((a, b)) = sides() else { return };
    let (answer, target) = (a.memory(8), b.memory(64));
    target.buffer().write_at(8, &40_u64.to_ne_bytes()).unwrap();
    let run = |op| {
        let request = SendRequest::atomic(WrId(0), target.remote().at(8), op)
            .segment(answer.segment(0, 8).unwrap());
        a.pair.post_send(request).unwrap();
        a.done();
        let before = answer.buffer().load_u64(0).unwrap();
        (before, target.buffer().load_u64(8).unwrap())
    };
    assert_eq!(run(AtomicOp::FetchAdd { add: 2 }), (40, 42));
    let (compare, swap) = (42, 7);
    assert_eq!(run(AtomicOp::CompareSwap { compare, swap }), (42, 7));
    assert_eq!(run(AtomicOp::CompareSwap { compare, swap }), (7, 7));
    let add = u64::MAX;
    assert_eq!(run(AtomicOp::FetchAdd { add }), (7, 6));
}

#[test]
fn inline_bytes_need_no_region_and_are_copied_when_posted() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(16);
    let mut message = *b"sixteen bytes...";
    let request = SendRequest::write(WrId(0), target.remote().at(0)).inline(&message);
    message.fill(0);
    a.pair.post_send(request).unwrap();
    a.done();
    assert_eq!(bytes(&target), b"sixteen bytes...");
}

#[test]
fn only_signalled_requests_complete_and_retire_those_before_them() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(1000), b.memory(1000));
    let sent = fill(&source, 5);
    for n in 0..10 {
        let mut request = SendRequest::write(WrId(n), target.remote().at(n * 100))
            .segment(source.segment(n * 100, 100).unwrap());
        if n != 9 {
            request = request.unsignalled();
        }
        a.pair.post_send(request).unwrap();
    }
    assert_eq!(a.done().id, WrId(9));
    assert!(bytes(&target) == sent);
    assert_eq!(a.queue.poll().unwrap(), None);
}

#[test]
fn a_fenced_request_sends_the_bytes_of_an_earlier_read() {
    let Some((a, b)) = sides() else { return };
    let (scratch, original, copy) = (a.memory(100_000), b.memory(100_000), b.memory(100_000));
    let kept = fill(&original, 6);
    let whole = || scratch.segment(0, 100_000).unwrap();
    let read = SendRequest::read(WrId(0), original.remote().at(0)).segment(whole());
    let write = SendRequest::write(WrId(1), copy.remote().at(0)).segment(whole());
    a.pair.post_send(read.unsignalled()).unwrap();
    a.pair.post_send(write.fenced()).unwrap();
    assert_eq!(a.done().id, WrId(1));
    assert!(bytes(&copy) == kept);
}

#[test]
fn both_sides_write_at_once_and_every_path_mtu_works() {
    for mtu in Mtu::ALL {
        let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
            return;
        };
        let mut options = options();
        options.path_mtu = mtu;
        connect(&a, &b, &options);
        let regions = [&a, &b].map(|side| (side.memory(300_001), side.memory(300_001)));
        let sent = [fill(&regions[0].0, 7), fill(&regions[1].0, 8)];
        for (from, to, side) in [(0, 1, &a), (1, 0, &b)] {
            let request = SendRequest::write(WrId(0), regions[to].1.remote().at(0))
                .segment(regions[from].0.segment(0, 300_001).unwrap());
            side.pair.post_send(request).unwrap();
        }
        a.done();
        b.done();
        assert!(bytes(&regions[1].1) == sent[0], "{mtu}");
        assert!(bytes(&regions[0].1) == sent[1], "{mtu}");
    }
}

#[test]
fn ipv6_works_with_every_icrc_checked() {
    let Some((a, b)) = connected(V6, V6) else {
        return;
    };
    assert_eq!(a.device.integrity(), Integrity::Icrc);
    let v4 = device(FIRST).map(|device| device.integrity());
    assert_ne!(v4, Some(Integrity::Icrc), "IPv4 is never as good");
    let (source, target) = (a.memory(1 << 20), b.memory(1 << 20));
    let sent = fill(&source, 10);
    let request = SendRequest::write(WrId(0), target.remote().at(0))
        .segment(source.segment(0, 1 << 20).unwrap());
    a.pair.post_send(request).unwrap();
    a.done();
    assert!(bytes(&target) == sent);
    assert_eq!(b.device.counters().icrc_mismatches, 0);
    assert!(b.device.counters().packets_received >= 256);
}

#[test]
fn a_device_connects_to_itself() {
    let Some(a) = Side::new(FIRST) else { return };
    let options = options();
    let other = a
        .domain
        .queue_pair(&gdr_rdma::QueuePairOptions::new(&a.queue))
        .unwrap();
    a.pair.connect(&other.endpoint(), &options).unwrap();
    other.connect(&a.pair.endpoint(), &options).unwrap();
    let (source, target) = (a.memory(100_000), a.memory(100_000));
    let sent = fill(&source, 11);
    let request = SendRequest::write(WrId(0), target.remote().at(0))
        .segment(source.segment(0, 100_000).unwrap());
    a.pair.post_send(request).unwrap();
    a.done();
    assert!(bytes(&target) == sent);
}

#[test]
fn many_queue_pairs_of_two_threads_share_a_device() {
    let Some((a, b)) = sides() else { return };
    let options = options();
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let queues = [a, b].map(|side| side.device.completion_queue(256));
                for round in 0..8 {
                    let make = |side: &Side, queue| {
                        let options = gdr_rdma::QueuePairOptions::new(queue);
                        side.domain.queue_pair(&options).unwrap()
                    };
                    let pairs = [make(a, &queues[0]), make(b, &queues[1])];
                    pairs[0].connect(&pairs[1].endpoint(), &options).unwrap();
                    pairs[1].connect(&pairs[0].endpoint(), &options).unwrap();
                    let (source, target) = (a.memory(50_000), b.memory(50_000));
                    let sent = fill(&source, thread * 16 + round);
                    for n in 0..50 {
                        let request = SendRequest::write(WrId(n), target.remote().at(n * 1000))
                            .segment(source.segment(n * 1000, 1000).unwrap());
                        pairs[0].post_send(request).unwrap();
                    }
                    for n in 0..50 {
                        assert_eq!(queues[0].wait(soon()).unwrap().id, WrId(n));
                    }
                    assert!(bytes(&target) == sent);
                }
            });
        }
    });
}

#[test]
fn a_program_that_polls_memory_needs_no_completion() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(64), b.memory(64));
    source.buffer().write_at(63, &[1]).unwrap();
    let request =
        SendRequest::write(WrId(0), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(request).unwrap();
    let deadline = soon();
    while target.buffer().load_u8(63).unwrap() == 0 {
        assert!(!deadline.has_passed(), "the write never arrived");
        std::thread::yield_now();
    }
}
