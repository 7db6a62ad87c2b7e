//! Every operation, in the case of success.

use gdr_rdma::{AtomicOp, Immediate, RecvRequest, SendRequest, WcOpcode, WrId};

use crate::{Bench, bytes, fill, wait_until};

/// Sizes around the boundaries of packets, segmented sends and windows.
const SIZES: [usize; 15] = [
    1, 2, 3, 255, 1023, 1024, 1025, 4095, 4096, 4097, 8192, 61_440, 65_537, 262_144, 1_048_577,
];

pub fn written_bytes_arrive_and_no_others_change(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

pub fn read_bytes_arrive(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

pub fn a_read_is_scattered_over_its_segments(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (target, source) = (a.memory(100_000), b.memory(100_000));
    let kept = fill(&source, 2);
    let before = fill(&target, 3);
    let read = SendRequest::read(WrId(8), source.remote().at(9))
        .segment(target.segment(1, 10).unwrap())
        .segment(target.segment(50_000, 40_000).unwrap());
    a.pair.post_send(read).unwrap();
    assert_eq!(a.done().byte_len, 40_010);
    let got = bytes(&target);
    assert!(got[1..11] == kept[9..19] && got[50_000..90_000] == kept[19..40_019]);
    assert!(got[11..50_000] == before[11..50_000]);
}

pub fn messages_fill_receives_in_order_with_their_immediates(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (source, target) = (a.memory(10_000), b.memory(20_000));
    let sent = fill(&source, 3);
    for n in 0..2 {
        // Two segments each, scattered in the same way as gathered.
        let first = target.segment(n * 10_000, 17).unwrap();
        let second = target.segment(n * 10_000 + 17, 9983).unwrap();
        let receive = RecvRequest::new(WrId(n)).segment(first).segment(second);
        b.pair.post_recv(receive).unwrap();
    }
    b.pair.post_recv(RecvRequest::new(WrId(2))).unwrap();
    let whole = || source.segment(0, 10_000).unwrap();
    let first = SendRequest::send(WrId(10)).segment(whole()).solicited();
    let second = SendRequest::send(WrId(11))
        .segment(source.segment(0, 100).unwrap())
        .segment(source.segment(100, 900).unwrap())
        .immediate(Immediate(0xdead_beef));
    let empty = SendRequest::send(WrId(12));
    for request in [first, second, empty] {
        a.pair.post_send(request).unwrap();
    }
    let received = [(); 3].map(|()| b.done());
    assert_eq!(received.map(|c| c.id), [WrId(0), WrId(1), WrId(2)]);
    assert_eq!(received.map(|c| c.opcode), [WcOpcode::Recv; 3]);
    assert_eq!(received.map(|c| c.byte_len), [10_000, 1000, 0]);
    let immediates = received.map(|c| c.immediate);
    assert_eq!(immediates, [None, Some(Immediate(0xdead_beef)), None]);
    assert_eq!([(); 3].map(|()| a.done().id.0), [10, 11, 12]);
    let arrived = bytes(&target);
    assert!(arrived[..10_000] == sent[..] && arrived[10_000..11_000] == sent[..1000]);
}

pub fn a_write_with_an_immediate_consumes_a_receive_and_reports_its_length(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (source, target) = (a.memory(5000), b.memory(5000));
    let sent = fill(&source, 4);
    b.pair.post_recv(RecvRequest::new(WrId(1))).unwrap();
    let request = SendRequest::write(WrId(2), target.remote().at(0))
        .segment(source.segment(0, 5000).unwrap())
        .immediate(Immediate(77));
    a.pair.post_send(request).unwrap();
    let arrived = b.done();
    assert_eq!(arrived.opcode, WcOpcode::RecvWriteImmediate);
    let length = (arrived.byte_len, arrived.immediate);
    assert_eq!(length, (5000, Some(Immediate(77))));
    // The bytes of the completion are already in memory.
    assert!(bytes(&target) == sent);
    a.done();
}

pub fn atomics_return_the_previous_value_and_change_it(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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
    let swap = |compare, swap| AtomicOp::CompareSwap { compare, swap };
    assert_eq!(run(swap(42, 7)), (42, 7));
    assert_eq!(run(swap(42, 8)), (7, 7));
    assert_eq!(run(AtomicOp::FetchAdd { add: u64::MAX }), (7, 6));
    let large = 0x1122_3344_5566_7788;
    assert_eq!(run(swap(6, large)), (6, large));
    for n in 0..100 {
        let (before, after) = run(AtomicOp::FetchAdd { add: 1 });
        assert_eq!((before, after), (large + n, large + n + 1));
    }
}

pub fn inline_bytes_need_no_region_and_are_copied_when_posted(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let target = b.memory(16);
    let mut message = *b"sixteen bytes...";
    let request = SendRequest::write(WrId(0), target.remote().at(0)).inline(&message);
    message.fill(0);
    a.pair.post_send(request).unwrap();
    a.done();
    assert_eq!(bytes(&target), b"sixteen bytes...");
}

pub fn only_signalled_requests_complete_and_retire_those_before_them(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

pub fn a_fenced_request_sends_the_bytes_of_an_earlier_read(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

/// Twenty of each kind, so that more READs are posted than may be outstanding.
pub fn sixty_requests_are_outstanding_at_once(bench: &Bench<'_>) {
    const LEN: u64 = 9000;
    const ALL: usize = 20 * LEN as usize;
    let (a, b) = bench.sides();
    let (source, answer, back) = (a.memory(ALL), a.memory(20 * 8), a.memory(ALL));
    let (target, original, word) = (b.memory(ALL), b.memory(ALL), b.memory(8));
    let (sent, kept) = (fill(&source, 6), fill(&original, 7));
    for n in 0..20 {
        let at = n * LEN;
        let write = SendRequest::write(WrId(3 * n), target.remote().at(at))
            .segment(source.segment(at, LEN).unwrap());
        let read = SendRequest::read(WrId(3 * n + 1), original.remote().at(at))
            .segment(back.segment(at, LEN).unwrap());
        let add = AtomicOp::FetchAdd { add: n };
        let add = SendRequest::atomic(WrId(3 * n + 2), word.remote().at(0), add)
            .segment(answer.segment(8 * n, 8).unwrap());
        for request in [write, read, add] {
            a.pair.post_send(request).unwrap();
        }
    }
    for id in 0..60 {
        assert_eq!(a.done().id, WrId(id));
    }
    assert!(bytes(&target) == sent && bytes(&back) == kept);
    let sum = (0..20).sum::<u64>();
    assert_eq!(word.buffer().load_u64(0).unwrap(), sum);
}

pub fn a_program_that_polls_memory_needs_no_completion(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (source, target) = (a.memory(64), b.memory(64));
    source.buffer().write_at(63, &[1]).unwrap();
    let request = crate::side::write(&source, target.remote().at(0));
    a.pair.post_send(request).unwrap();
    wait_until(|| target.buffer().load_u8(63).unwrap() != 0);
}
