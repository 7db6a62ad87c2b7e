//! What is refused, what fails, and how soon.

use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, AckTimeout, Buffer, Deadline, Error, NicError, RecvRequest, RemoteMemory, RetryCount,
    Rkey, RnrRetry, SendRequest, State, WcStatus, WrId,
};

use crate::side::write;
use crate::{Bench, bytes, fill, soon, wait_until};

pub fn a_wrong_key_is_refused_and_places_nothing(bench: &Bench<'_>) {
    for change in [1, 0x0001_0100] {
        for operation in [SendRequest::write, SendRequest::read] {
            let (a, b) = bench.sides();
            let (source, target) = (a.memory(100), b.memory(100));
            let before = fill(&target, 1);
            let wrong = RemoteMemory {
                rkey: Rkey(target.rkey().0 ^ change),
                ..target.remote()
            };
            let whole = source.segment(0, 100).unwrap();
            let request = operation(WrId(0), wrong.at(0)).segment(whole);
            a.pair.post_send(request).unwrap();
            assert_eq!(a.status(), WcStatus::RemoteAccess);
            // rxe changes the state a moment after the completion.
            wait_until(|| a.pair.state() == State::Error);
            assert!(bytes(&target) == before);
        }
    }
}

pub fn a_range_beyond_the_region_is_refused_and_places_nothing(bench: &Bench<'_>) {
    for operation in [SendRequest::write, SendRequest::read] {
        for (offset, len) in [
            (1, 10_000),
            (10_000, 1),
            (u64::MAX, 1),
            (u64::MAX / 2, 8),
            (5000, 5001),
            (9001, 1000),
            (0, 10_001),
        ] {
            let (a, b) = bench.sides();
            let (local, target) = (a.memory(20_000), b.memory(20_000));
            let before = (fill(&local, 1), fill(&target, 2));
            let part = b
                .domain
                .register_range(target.buffer(), 5000, 10_000, Access::all())
                .unwrap();
            let request = operation(WrId(0), part.remote().at(offset))
                .segment(local.segment(0, len).unwrap());
            a.pair.post_send(request).unwrap();
            assert_eq!(a.status(), WcStatus::RemoteAccess, "{offset} {len}");
            assert!(bytes(&target) == before.1, "{offset} {len}: written");
            // A long READ is several to the peer, and the first part may have succeeded.
            if len <= 1024 {
                assert!(bytes(&local) == before.0, "{offset} {len}: read");
            }
        }
    }
}

pub fn what_a_region_does_not_permit_is_refused(bench: &Bench<'_>) {
    type Operation = fn(WrId, gdr_rdma::Remote) -> SendRequest;
    let cases: [(Access, Operation); 2] = [
        (Access::REMOTE_READ, SendRequest::write),
        (Access::REMOTE_WRITE, SendRequest::read),
    ];
    for (access, operation) in cases {
        let (a, b) = bench.sides();
        let local = a.memory(64);
        let target = b.memory_for(64, Access::LOCAL_WRITE | access);
        let request = operation(WrId(0), target.remote().at(0));
        let request = request.segment(local.segment(0, 64).unwrap());
        a.pair.post_send(request).unwrap();
        assert_eq!(a.status(), WcStatus::RemoteAccess, "{access:?}");
    }
}

pub fn memory_that_only_the_peer_may_write_is_refused(bench: &Bench<'_>) {
    let (a, _) = bench.apart();
    let buffer = Buffer::host(64).unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = a.domain.register(&buffer, access);
        assert!(matches!(refused, Err(Error::LocalWriteMissing)));
    }
}

pub fn a_region_of_another_protection_domain_is_refused_like_an_unknown_key(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let elsewhere = b.device.protection_domain();
    let buffer = Buffer::host(64).unwrap();
    let foreign = elsewhere.register(&buffer, Access::all()).unwrap();
    let segment = foreign.segment(0, 64).unwrap();
    let refused = b.pair.post_recv(RecvRequest::new(WrId(0)).segment(segment));
    assert!(matches!(refused, Err(Error::Nic(NicError::Foreign { .. }))));
    a.pair
        .post_send(write(&a.memory(8), foreign.remote().at(0)))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);
}

pub fn a_read_into_memory_without_local_write_fails_locally(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (target, local) = (b.memory(64), a.memory_for(64, Access::empty()));
    let read = SendRequest::read(WrId(0), target.remote().at(0));
    let read = read.segment(local.segment(0, 64).unwrap());
    a.pair.post_send(read).unwrap();
    assert_eq!(a.status(), WcStatus::LocalProtection);
}

pub fn requests_after_a_failed_one_are_flushed(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (source, target) = (a.memory(100), b.memory(1000));
    fill(&source, 4);
    let before = fill(&target, 5);
    for offset in [0, 1000, 200, 300] {
        let request = write(&source, target.remote().at(offset));
        a.pair.post_send(request).unwrap();
    }
    let ends = [(); 4].map(|()| a.status());
    let (done, flushed) = (WcStatus::Success, WcStatus::WrFlushed);
    assert_eq!(ends, [done, WcStatus::RemoteAccess, flushed, flushed]);
    assert!(bytes(&target)[100..] == before[100..]);
}

pub fn a_message_longer_than_its_receive_fails_on_both_sides(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let (source, target) = (a.memory(5000), b.memory(9000));
    let before = fill(&target, 7);
    for id in [1, 2] {
        let place = target.segment(0, 4999).unwrap();
        let receive = RecvRequest::new(WrId(id)).segment(place);
        b.pair.post_recv(receive).unwrap();
    }
    let send = SendRequest::send(WrId(3)).segment(source.segment(0, 5000).unwrap());
    a.pair.post_send(send).unwrap();
    assert_eq!(a.status(), bench.long_message);
    assert!(bytes(&target)[4999..] == before[4999..]);
    if bench.long_message == WcStatus::RemoteInvalidRequest {
        let ends = [(); 2].map(|()| b.queue.wait(soon()).unwrap());
        assert_eq!(ends.map(|end| end.id), [WrId(1), WrId(2)]);
        let expected = [WcStatus::LocalLength, WcStatus::WrFlushed];
        assert_eq!(ends.map(|end| end.status), expected);
    }
}

pub fn a_peer_without_receives_exhausts_the_retries(bench: &Bench<'_>) {
    let (a, _b) = bench.sides_with(|options| options.rnr_retry = RnrRetry::new(2));
    let send = SendRequest::send(WrId(0)).inline(b"hello?");
    a.pair.post_send(send).unwrap();
    assert_eq!(a.status(), WcStatus::RnrRetryExceeded);
}

pub fn a_receive_posted_late_still_gets_the_message(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let source = a.memory(5000);
    let sent = fill(&source, 8);
    let send = SendRequest::send(WrId(0)).segment(source.segment(0, 5000).unwrap());
    a.pair.post_send(send).unwrap();
    // Long enough for some refusals; their number does not matter.
    let early = a.queue.wait(Deadline::after(Duration::from_millis(20)));
    assert!(matches!(early, Err(Error::Deadline { .. })));
    let target = b.memory(5000);
    let whole = target.segment(0, 5000).unwrap();
    b.pair
        .post_recv(RecvRequest::new(WrId(0)).segment(whole))
        .unwrap();
    b.done();
    a.done();
    assert!(bytes(&target) == sent);
}

pub fn a_silent_peer_exhausts_the_retries_and_later_requests_are_flushed(bench: &Bench<'_>) {
    let (a, b) = bench.sides_with(|options| {
        // Four attempts of 16.8 ms. The specification allows four times as long.
        options.timeout = AckTimeout::new(12);
        options.retry_count = RetryCount::new(3);
    });
    let (source, target) = (a.memory(100_000), b.memory(100_000));
    let remote = target.remote();
    drop((b, target));
    let start = Instant::now();
    for _ in 0..3 {
        a.pair.post_send(write(&source, remote.at(0))).unwrap();
    }
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(48), "{waited:?}");
    // The engine may have to wait long for a CPU.
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!([a.status(), a.status()], [WcStatus::WrFlushed; 2]);
    let late = SendRequest::send(WrId(4)).inline(&[]);
    a.pair.post_send(late).unwrap();
    assert_eq!(a.status(), WcStatus::WrFlushed);
}

pub fn an_error_flushes_what_is_posted(bench: &Bench<'_>) {
    let (a, _b) = bench.sides();
    for n in 0..3 {
        a.pair.post_recv(RecvRequest::new(WrId(n))).unwrap();
    }
    a.pair.to_error();
    for n in 0..3 {
        let end = a.queue.wait(soon()).unwrap();
        assert_eq!((end.id, end.status), (WrId(n), WcStatus::WrFlushed));
    }
}

pub fn every_wait_ends_at_its_deadline(bench: &Bench<'_>) {
    let (a, _) = bench.apart();
    for limit in [0, 1, 30] {
        let limit = Duration::from_millis(limit);
        let start = Instant::now();
        let waited = a.queue.wait(Deadline::after(limit));
        assert!(matches!(waited, Err(Error::Deadline { .. })));
        let event = a.device.wait_event(Deadline::after(limit));
        assert!(matches!(event, Err(Error::Deadline { .. })));
        assert!(start.elapsed() >= 2 * limit);
    }
}
