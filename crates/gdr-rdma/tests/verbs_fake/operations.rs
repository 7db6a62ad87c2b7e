use fake_ibverbs::{DeviceSpec, Fake};
use gdr_rdma::{
    AtomicOp, Error, Immediate, NicError, PostError, RecvRequest, SendRequest, WcOpcode, WrId,
};

use crate::fixture::*;

/// Devices with and without what is extended: the same must come out.
fn kinds() -> [(DeviceSpec, DeviceSpec); 2] {
    let plain = || DeviceSpec {
        extended_queries: false,
        extended_queues: false,
        extended_requests: false,
        // Devices of mlx5 make their queue pairs by a function of their own.
        scatter_to_cqe: false,
        ..roce()
    };
    [(roce(), roce()), (plain(), plain())]
}

#[test]
fn writes_and_reads_transfer_the_right_bytes_at_any_offset() {
    let fake = Fake::load();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        let (source, target) = (a.memory(100_000), b.memory(100_000));
        let sent = fill(&source, 1);
        for (from, to, len) in [(0, 0, 1), (3, 5, 64), (100, 4096, 70_000)] {
            let write = SendRequest::write(WrId(7), target.remote().at(to))
                .segment(source.segment(from, len).unwrap());
            a.pair.post_send(write).unwrap();
            let done = a.done();
            assert_eq!((done.id, done.opcode), (WrId(7), WcOpcode::Write));
            let (from, to, len) = (from as usize, to as usize, len as usize);
            assert!(
                bytes(&target)[to..to + len] == sent[from..from + len],
                "{len}"
            );
        }
        let sent = fill(&target, 2);
        let read = SendRequest::read(WrId(8), target.remote().at(9))
            .segment(source.segment(1, 10).unwrap())
            .segment(source.segment(50_000, 40_000).unwrap());
        a.pair.post_send(read).unwrap();
        let done = a.done();
        assert_eq!((done.opcode, done.byte_len), (WcOpcode::Read, 40_010));
        let got = bytes(&source);
        assert!(got[1..11] == sent[9..19]);
        assert!(got[50_000..90_000] == sent[19..40_019]);
        drop((source, target));
        close(&fake, a, b);
    }
}

#[test]
fn messages_and_immediates_arrive_at_receives_in_order() {
    let fake = Fake::load();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        let (source, target) = (a.memory(10_000), b.memory(10_000));
        let sent = fill(&source, 3);
        let place = target.segment(100, 5000).unwrap();
        b.pair
            .post_recv(RecvRequest::new(WrId(1)).segment(place))
            .unwrap();
        b.pair.post_recv(RecvRequest::new(WrId(2))).unwrap();
        let piece = source.segment(10, 5000).unwrap();
        let send = SendRequest::send(WrId(3))
            .segment(piece.clone())
            .immediate(Immediate(0x1234_5678));
        a.pair.post_send(send).unwrap();
        let write = SendRequest::write(WrId(4), target.remote().at(5000))
            .segment(piece)
            .immediate(Immediate(9));
        a.pair.post_send(write).unwrap();
        let (first, second) = (b.done(), b.done());
        assert!(first.has_network_header && second.has_network_header);
        assert_eq!((first.id, first.opcode), (WrId(1), WcOpcode::Recv));
        assert_eq!(
            (first.byte_len, first.immediate),
            (5000, Some(Immediate(0x1234_5678)))
        );
        assert_eq!(
            (second.id, second.opcode),
            (WrId(2), WcOpcode::RecvWriteImmediate)
        );
        assert_eq!(
            (second.byte_len, second.immediate),
            (5000, Some(Immediate(9)))
        );
        let sends = [a.done(), a.done()];
        assert_eq!(sends.map(|done| done.id), [WrId(3), WrId(4)]);
        assert!(!sends.iter().any(|done| done.has_network_header));
        let got = bytes(&target);
        assert!(got[100..5000] == sent[10..4910]);
        assert!(got[5000..10_000] == sent[10..5010]);
        drop((source, target));
        close(&fake, a, b);
    }
}

#[test]
fn atomics_return_the_previous_value() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (result, word) = (a.memory(8), b.memory(16));
    word.buffer().write_at(8, &40_u64.to_ne_bytes()).unwrap();
    for (op, before, after) in [
        (AtomicOp::FetchAdd { add: 2 }, 40, 42),
        (
            AtomicOp::CompareSwap {
                compare: 41,
                swap: 7,
            },
            42,
            42,
        ),
        (
            AtomicOp::CompareSwap {
                compare: 42,
                swap: 7,
            },
            42,
            7,
        ),
    ] {
        let atomic = SendRequest::atomic(WrId(0), word.remote().at(8), op)
            .segment(result.segment(0, 8).unwrap());
        a.pair.post_send(atomic).unwrap();
        a.done();
        assert_eq!(result.buffer().load_u64(0).unwrap(), before);
        assert_eq!(word.buffer().load_u64(8).unwrap(), after);
    }
    drop((result, word));
    close(&fake, a, b);
}

#[test]
fn inline_bytes_are_taken_when_they_are_posted() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let target = b.memory(64);
    hold(&fake, &a.name(), true);
    let mut bytes_sent = *b"inline bytes";
    let write = SendRequest::write(WrId(0), target.remote().at(2)).inline(&bytes_sent);
    a.pair.post_send(write).unwrap();
    bytes_sent.fill(0);
    hold(&fake, &a.name(), false);
    a.done();
    assert_eq!(&bytes(&target)[2..14], b"inline bytes");
    drop(target);
    close(&fake, a, b);
}

#[test]
fn unsignalled_requests_retire_with_a_later_one_and_a_full_queue_is_reported() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    let write = || {
        SendRequest::write(WrId(0), target.remote().at(0)).segment(source.segment(0, 64).unwrap())
    };
    hold(&fake, &a.name(), true);
    for _ in 0..127 {
        a.pair.post_send(write().unsignalled()).unwrap();
    }
    a.pair.post_send(write()).unwrap();
    let full = a.pair.post_send(write()).unwrap_err();
    assert!(
        matches!(full, Error::Nic(NicError::Post(PostError::Full(128)))),
        "{full}"
    );
    hold(&fake, &a.name(), false);
    a.done();
    assert!(a.queue.poll().unwrap().is_none());
    a.pair.post_send(write()).unwrap();
    a.done();
    drop((source, target));
    close(&fake, a, b);
}

#[test]
fn a_waiter_that_sleeps_is_woken_by_its_completion() {
    let fake = Fake::load();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(64), b.memory(64));
    hold(&fake, &a.name(), true);
    let write =
        SendRequest::write(WrId(5), target.remote().at(0)).segment(source.segment(0, 64).unwrap());
    a.pair.post_send(write).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.done().id);
        let asked = || calls(&fake, &a.name(), &POSTING).len();
        assert_eq!(asked(), 1);
        hold(&fake, &a.name(), false);
        assert_eq!(waiter.join().unwrap(), WrId(5));
    });
    drop((source, target));
    close(&fake, a, b);
}

#[test]
fn a_device_reaches_itself_through_two_queue_pairs() {
    let fake = Fake::load();
    let device = open(&fake, &roce());
    let (a, b) = (Side::on(device.clone()), Side::on(device));
    connect(&a, &b);
    let (source, target) = (a.memory(5000), b.memory(5000));
    let sent = fill(&source, 4);
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 5000).unwrap());
    a.pair.post_send(write).unwrap();
    a.done();
    assert!(bytes(&target) == sent);
    drop((source, target));
    close(&fake, a, b);
}

#[test]
fn requests_are_extended_if_the_device_supports_them() {
    let fake = Fake::load();
    for (verb, (a, b)) in ["ibv_wr_complete", "ibv_post_send"]
        .into_iter()
        .zip(kinds())
    {
        let (a, b) = connected(&fake, &a, &b);
        let target = b.memory(3);
        let write = |n: u8| {
            let at = target.remote().at(n.into());
            SendRequest::write(WrId(n.into()), at).inline(&[n + 1])
        };
        a.pair.post_sends((0..3).map(write)).unwrap();
        let posted = calls(&fake, &a.name(), &POSTING);
        assert!(
            !posted.is_empty() && posted.iter().all(|call| call.verb == verb),
            "{posted:?}"
        );
        assert_eq!([(); 3].map(|()| a.done().id), [WrId(0), WrId(1), WrId(2)]);
        assert_eq!(bytes(&target), [1, 2, 3]);
        drop(target);
        close(&fake, a, b);
    }
}

#[test]
fn a_single_request_is_posted_or_refused_as_one_of_a_list_is() {
    let fake = Fake::load();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        let (source, target) = (a.memory(64), b.memory(64));
        let sent = fill(&source, 9);
        let write = |n: u64| SendRequest::write(WrId(n), target.remote().at(0));
        let long = write(0).inline(&[1; 100_000]);
        let refused = a.pair.post_sends([long]).unwrap_err();
        assert_eq!(refused.posted, 0);
        assert!(
            matches!(
                refused.error,
                Error::Nic(NicError::Post(PostError::InlineTooLong {
                    len: 100_000,
                    ..
                }))
            ),
            "{refused}"
        );
        assert!(calls(&fake, &a.name(), &POSTING).is_empty());
        hold(&fake, &a.name(), true);
        let whole = || source.segment(0, 64).unwrap();
        let refused = (0..).find_map(|n| {
            let posted = a.pair.post_sends([write(n).segment(whole())]);
            posted.err().map(|refused| (n, refused))
        });
        let (count, refused) = refused.unwrap();
        assert_eq!((count, refused.posted), (128, 0));
        assert!(
            matches!(
                refused.error,
                Error::Nic(NicError::Post(PostError::Full(128)))
            ),
            "{refused}"
        );
        hold(&fake, &a.name(), false);
        for n in 0..count {
            assert_eq!(a.done().id, WrId(n));
        }
        assert_eq!(bytes(&target), sent);
        drop((source, target));
        close(&fake, a, b);
    }
}

#[test]
fn a_list_that_is_too_long_is_posted_up_to_the_room_of_the_queue() {
    let fake = Fake::load();
    for (a, b) in kinds() {
        let (a, b) = connected(&fake, &a, &b);
        let target = b.memory(8);
        hold(&fake, &a.name(), true);
        let write = |n: u64| SendRequest::write(WrId(n), target.remote().at(0)).inline(&[7; 8]);
        let refused = a.pair.post_sends((0..1000).map(write)).unwrap_err();
        assert!(matches!(
            refused.error,
            Error::Nic(NicError::Post(PostError::Full(_)))
        ));
        assert!(
            refused.posted > 0 && refused.posted < 1000,
            "{}",
            refused.posted
        );
        hold(&fake, &a.name(), false);
        for n in 0..refused.posted {
            assert_eq!(a.done().id, WrId(n as u64));
        }
        drop(target);
        close(&fake, a, b);
    }
}
