//! What is refused, what fails, and how soon.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use gdr_rdma::{
    Access, AckTimeout, AsyncEvent, Buffer, Capabilities, Deadline, Device, Error, Event,
    MemoryRegion, NicError, PostError, QueuePairOptions, RecvRequest, RemoteMemory, RetryCount,
    Rkey, RnrRetry, SendRequest, SoftOptions, State, WcStatus, WrId,
};

use crate::fixture::*;

#[test]
fn a_wrong_key_is_refused_and_places_nothing() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(100), b.memory(100));
    let before = fill(&target, 1);
    let wrong = RemoteMemory {
        rkey: Rkey(target.rkey().0 ^ 1),
        ..target.remote()
    };
    let write = SendRequest::write(WrId(0), wrong.at(0)).segment(source.segment(0, 100).unwrap());
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);
    assert_eq!(a.pair.state(), State::Error);
    assert!(bytes(&target) == before);
    let qpn = b.pair.qpn();
    let event = Event::AccessViolation;
    let expected = AsyncEvent::QueuePair { qpn, event };
    assert_eq!(b.device.wait_event(soon()).unwrap(), expected);
}

#[test]
fn a_range_beyond_the_region_is_refused_and_places_nothing() {
    let Some(_) = device(SECOND) else { return };
    for (offset, len) in [(1, 100), (100, 1), (u64::MAX, 1), (0, 101)] {
        let Some((a, b)) = sides() else { return };
        let (source, target) = (a.memory(200), b.memory(200));
        let before = fill(&target, 2);
        let half = b
            .domain
            .register_range(target.buffer(), 50, 100, EVERYTHING)
            .unwrap();
        let write = SendRequest::write(WrId(0), half.remote().at(offset))
            .segment(source.segment(0, len).unwrap());
        a.pair.post_send(write).unwrap();
        assert_eq!(a.status(), WcStatus::RemoteAccess, "{offset} {len}");
        assert!(bytes(&target) == before);
    }
}

#[test]
fn what_a_region_does_not_permit_is_refused() {
    for (access, operation) in [
        (Access::LOCAL_WRITE | Access::REMOTE_READ, "write"),
        (Access::LOCAL_WRITE | Access::REMOTE_WRITE, "read"),
    ] {
        let Some((a, b)) = sides() else { return };
        let local = a.memory(64);
        let target = b
            .domain
            .register(&Buffer::host(64).unwrap(), access)
            .unwrap();
        let request = match operation {
            "write" => SendRequest::write(WrId(0), target.remote().at(0)),
            _ => SendRequest::read(WrId(0), target.remote().at(0)),
        };
        let request = request.segment(local.segment(0, 64).unwrap());
        a.pair.post_send(request).unwrap();
        assert_eq!(a.status(), WcStatus::RemoteAccess, "{operation}");
    }
}

#[test]
fn a_local_request_into_memory_that_only_the_peer_may_write_is_refused() {
    let Some(a) = Side::new(FIRST) else { return };
    let buffer = Buffer::host(64).unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let refused = a.domain.register(&buffer, access);
        assert!(matches!(refused, Err(Error::LocalWriteMissing)));
    }
}

#[test]
fn a_region_of_another_protection_domain_is_refused_like_an_unknown_key() {
    let Some((a, b)) = sides() else { return };
    let elsewhere = b.device.protection_domain();
    let target = elsewhere
        .register(&Buffer::host(64).unwrap(), EVERYTHING)
        .unwrap();
    let write = SendRequest::write(WrId(0), target.remote().at(0)).inline(&[1; 8]);
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);

    let local = elsewhere.register(&Buffer::host(64).unwrap(), EVERYTHING);
    let segment = local.unwrap().segment(0, 64).unwrap();
    let refused = b.pair.post_recv(RecvRequest::new(WrId(0)).segment(segment));
    assert!(matches!(refused, Err(Error::Nic(NicError::Foreign { .. }))));
}

#[test]
fn a_read_into_memory_without_local_write_fails_locally() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(64);
    let local = a
        .domain
        .register(&Buffer::host(64).unwrap(), Access::empty())
        .unwrap();
    let read =
        SendRequest::read(WrId(0), target.remote().at(0)).segment(local.segment(0, 64).unwrap());
    a.pair.post_send(read).unwrap();
    assert_eq!(a.status(), WcStatus::LocalProtection);
}

#[test]
fn a_message_longer_than_its_receive_fails_on_both_sides() {
    let Some((a, b)) = sides() else { return };
    let (source, target) = (a.memory(5000), b.memory(4999));
    let whole = target.segment(0, 4999).unwrap();
    b.pair
        .post_recv(RecvRequest::new(WrId(0)).segment(whole))
        .unwrap();
    let send = SendRequest::send(WrId(1)).segment(source.segment(0, 5000).unwrap());
    a.pair.post_send(send).unwrap();
    assert_eq!(b.status(), WcStatus::LocalLength);
    assert_eq!(a.status(), WcStatus::RemoteInvalidRequest);
}

#[test]
fn a_peer_without_receives_exhausts_the_retries() {
    let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let mut options = options();
    options.rnr_retry = RnrRetry::new(2);
    connect(&a, &b, &options);
    a.pair
        .post_send(SendRequest::send(WrId(0)).inline(b"hello?"))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RnrRetryExceeded);
}

#[test]
fn a_receive_posted_late_still_gets_the_message() {
    let Some((a, b)) = sides() else { return };
    a.pair
        .post_send(SendRequest::send(WrId(0)).inline(b"hello"))
        .unwrap();
    let early = a.queue.wait(Deadline::after(Duration::from_millis(5)));
    assert!(matches!(early, Err(Error::Deadline { .. })));
    let target = b.memory(5);
    let whole = target.segment(0, 5).unwrap();
    b.pair
        .post_recv(RecvRequest::new(WrId(0)).segment(whole))
        .unwrap();
    b.done();
    a.done();
    assert_eq!(bytes(&target), b"hello");
}

#[test]
fn a_silent_peer_exhausts_the_retries_and_later_requests_are_flushed() {
    let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let mut options = options();
    // 4.2 ms, four times.
    options.timeout = AckTimeout::new(10);
    options.retry_count = RetryCount::new(3);
    connect(&a, &b, &options);
    let (source, target) = (a.memory(100_000), b.memory(100_000));
    let remote = target.remote();
    drop(b);
    let start = Instant::now();
    for n in 0..3 {
        let write =
            SendRequest::write(WrId(n), remote.at(0)).segment(source.segment(0, 100_000).unwrap());
        a.pair.post_send(write).unwrap();
    }
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(12), "{waited:?}");
    // The engine may be kept from a CPU for long; the requests' own times are 17 ms.
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert_eq!([a.status(), a.status()], [WcStatus::WrFlushed; 2]);
    a.pair
        .post_send(SendRequest::send(WrId(4)).inline(&[]))
        .unwrap();
    assert_eq!(a.status(), WcStatus::WrFlushed);
}

#[test]
fn a_connection_with_a_time_limit_outlives_its_retry_count() {
    let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let limit = Duration::from_millis(300);
    let mut options = options();
    // 1 ms, once.
    options.timeout = AckTimeout::new(8);
    options.retry_count = RetryCount::new(0);
    options.give_up_after = Some(limit);
    a.pair.connect(&b.pair.endpoint(), &options).unwrap();
    let start = Instant::now();
    let send = SendRequest::send(WrId(0)).inline(b"hello?");
    a.pair.post_send(send).unwrap();
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    assert!(start.elapsed() >= limit);
}

#[test]
fn requests_to_a_dropped_queue_pair_exhaust_the_retries() {
    let (Some(a), Some(mut b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let mut options = options();
    options.timeout = AckTimeout::new(8);
    options.retry_count = RetryCount::new(1);
    connect(&a, &b, &options);
    let target = b.memory(8);
    b.pair = b
        .domain
        .queue_pair(&QueuePairOptions::new(&b.queue))
        .unwrap();
    let write = SendRequest::write(WrId(0), target.remote().at(0)).inline(&[1; 8]);
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    // No queue pair of that device has a peer any more, so the kernel drops what comes over UDP. The
    // requester may give up before all of it has come.
    wait_until(|| {
        let counters = b.device.counters();
        counters.kernel_drops + counters.unknown_queue_pair > 0
    });
    assert_eq!(bytes(&target), [0; 8]);
}

#[test]
fn an_error_flushes_what_is_posted() {
    let Some((a, _b)) = sides() else { return };
    for n in 0..3 {
        a.pair.post_recv(RecvRequest::new(WrId(n))).unwrap();
    }
    a.pair.to_error();
    for n in 0..3 {
        let completion = a.queue.wait(soon()).unwrap();
        assert_eq!(
            (completion.id, completion.status),
            (WrId(n), WcStatus::WrFlushed)
        );
    }
}

#[test]
fn every_wait_ends_at_its_deadline() {
    let Some(a) = Side::new(FIRST) else { return };
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

#[test]
fn posting_before_connecting_and_beyond_the_queue_is_refused() {
    let (Some(mut a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let send = || SendRequest::send(WrId(0)).inline(b"x");
    let early = a.pair.post_send(send());
    assert!(matches!(
        early,
        Err(Error::Nic(NicError::Post(PostError::State(_))))
    ));

    let capabilities = Capabilities {
        max_send_wr: 2,
        max_recv_wr: 1,
        max_inline: 1,
    };
    let small = QueuePairOptions::new(&a.queue).capabilities(capabilities);
    a.pair = a.domain.queue_pair(&small).unwrap();
    connect(&a, &b, &options());
    a.pair.post_recv(RecvRequest::new(WrId(0))).unwrap();
    let full = a.pair.post_recv(RecvRequest::new(WrId(1)));
    assert!(matches!(
        full,
        Err(Error::Nic(NicError::Post(PostError::Full(1))))
    ));
    let long = a.pair.post_send(SendRequest::send(WrId(0)).inline(b"xy"));
    assert!(matches!(
        long,
        Err(Error::Nic(NicError::Post(PostError::InlineTooLong { .. })))
    ));
    a.pair.post_send(send()).unwrap();
    a.pair.post_send(send()).unwrap();
    let full = a.pair.post_send(send());
    assert!(matches!(
        full,
        Err(Error::Nic(NicError::Post(PostError::Full(2))))
    ));
}

#[test]
fn an_overrun_completion_queue_is_reported_and_fails_its_queue_pair() {
    let (Some(mut a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    a.queue = a.device.completion_queue(2);
    a.pair = a
        .domain
        .queue_pair(&QueuePairOptions::new(&a.queue))
        .unwrap();
    connect(&a, &b, &options());
    let target = b.memory(8);
    for n in 0..3 {
        let write = SendRequest::write(WrId(n), target.remote().at(0)).inline(&[1; 8]);
        a.pair.post_send(write).unwrap();
    }
    let event = a.device.wait_event(soon()).unwrap();
    assert!(matches!(
        event,
        AsyncEvent::CompletionQueueOverrun { capacity: 2, .. }
    ));
    assert_eq!([a.done().id, a.done().id], [WrId(0), WrId(1)]);
    let lost = a.queue.wait(soon());
    assert!(matches!(
        lost,
        Err(Error::Nic(NicError::CompletionQueueOverrun { capacity: 2 }))
    ));
    assert_eq!(a.pair.state(), State::Error);
}

#[test]
fn a_second_pair_that_overruns_a_shared_queue_goes_to_error_without_another_event() {
    let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
        return;
    };
    let queue = a.device.completion_queue(1);
    let pair = |side: &Side, queue| {
        side.domain
            .queue_pair(&QueuePairOptions::new(queue))
            .unwrap()
    };
    let near = [(); 2].map(|()| pair(&a, &queue));
    let far = [(); 2].map(|()| pair(&b, &b.queue));
    let target = b.memory(8);
    for (near, far) in near.iter().zip(&far) {
        near.connect(&far.endpoint(), &options()).unwrap();
        far.connect(&near.endpoint(), &options()).unwrap();
        for n in 0..4 {
            let write = SendRequest::write(WrId(n), target.remote().at(0)).inline(&[1; 8]);
            near.post_send(write).unwrap();
        }
        wait_until(|| near.state() == State::Error);
    }
    let qpn = near[0].qpn();
    let expected = AsyncEvent::CompletionQueueOverrun {
        queue: queue.number(),
        qpn,
        capacity: 1,
    };
    assert_eq!(a.device.poll_event(), Some(expected));
    assert_eq!(a.device.poll_event(), None);
}

#[test]
fn a_port_in_use_is_reported_with_a_remedy() {
    let Some(first) = device(FIRST) else { return };
    let options = SoftOptions::new(FIRST).port(first.address().port());
    let taken = Device::soft_with(options).expect_err("two on one port");
    assert!(matches!(taken, Error::Nic(NicError::PortInUse { .. })));
    assert!(taken.to_string().contains("127.0.0.2"), "{taken}");
    // Another address of this host has the same port free.
    let second = SoftOptions::new(SECOND).port(first.address().port());
    if let Some(device) = device(SECOND) {
        drop(device);
        Device::soft_with(second).unwrap();
    }
}

#[test]
fn addresses_of_no_local_interface_are_refused() {
    let device = |ip: &str| Device::soft_with(SoftOptions::new(ip.parse().unwrap()).port(0));
    for ip in ["0.0.0.0", "::", "224.0.0.1"] {
        assert!(
            matches!(device(ip), Err(Error::Nic(NicError::AddressNotUnicast(_)))),
            "{ip}"
        );
    }
    // TEST-NET-1, which no host has.
    assert!(matches!(
        device("192.0.2.1"),
        Err(Error::Nic(NicError::AddressNotLocal { .. }))
    ));
}

#[test]
fn address_families_do_not_mix() {
    let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(V6)) else {
        return;
    };
    let refused = a.pair.connect(&b.pair.endpoint(), &options());
    assert!(matches!(
        refused,
        Err(Error::Nic(NicError::AddressFamily { .. }))
    ));
    assert!(matches!(
        a.device.path_mtu(V6),
        Err(Error::Nic(NicError::AddressFamily { .. }))
    ));
}

/// A WRITE of 8 bytes as the peer would send it, with a wrong ICRC.
pub(crate) fn foreign_write(peer: &Side, to: &Side, target: &MemoryRegion) -> Vec<u8> {
    let mut packet = vec![0x0a, 0, 0xff, 0xff];
    packet.extend(to.pair.qpn().get().to_be_bytes());
    packet.extend(peer.pair.endpoint().psn.get().to_be_bytes());
    packet.extend(target.addr().to_be_bytes());
    packet.extend(target.rkey().0.to_be_bytes());
    packet.extend(8_u32.to_be_bytes());
    packet.extend([0xee; 12]);
    packet
}

#[test]
fn a_packet_changed_on_the_way_is_dropped() {
    for address in [FIRST, V6] {
        let (Some(a), Some(b)) = (Side::new(address), Side::new(address)) else {
            continue;
        };
        connect_to_card(&a, &b);
        let target = b.memory(64);
        let before = fill(&target, 4);
        // From the peer's address: but for its ICRC, nothing is wrong with it.
        let card = UdpSocket::bind((address, 0)).unwrap();
        let packet = foreign_write(&a, &b, &target);
        card.send_to(&packet, b.device.address()).unwrap();
        wait_until(|| b.device.counters().icrc_mismatches == 1);
        assert!(bytes(&target) == before);
    }
}

#[test]
fn the_loopback_interface_carries_the_largest_path_mtu() {
    let Some(a) = device(FIRST) else { return };
    assert_eq!(a.path_mtu(FIRST).unwrap(), gdr_rdma::Mtu::B4096);
    let off: IpAddr = "240.0.0.1".parse().unwrap();
    assert!(a.path_mtu(off).is_err());
}
