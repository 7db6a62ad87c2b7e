//! Refused calls and failing requests, and how soon they fail.

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use gdr_rdma::{
    AckTimeout, AsyncEvent, Device, Error, MemoryRegion, NicError, QueuePairOptions, RetryCount,
    SendRequest, SocketError, SoftOptions, State, WcStatus, WrId,
};

use crate::fixture::*;

#[test]
fn a_connection_with_a_time_limit_outlives_its_retry_count() {
    let (Some(a), Some(b)) = (Side::soft(FIRST), Side::soft(SECOND)) else {
        return;
    };
    let limit = Duration::from_millis(300);
    let mut options = options();
    // About 1 ms, without a retry.
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
    let (Some(a), Some(mut b)) = (Side::soft(FIRST), Side::soft(SECOND)) else {
        return;
    };
    let mut options = options();
    options.timeout = AckTimeout::new(8);
    options.retry_count = RetryCount::new(1);
    connect(&a, &b, &options);
    let target = b.memory(8);
    b.pair = b.another();
    let write = SendRequest::write(WrId(0), target.remote().at(0)).inline(&[1; 8]);
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RetryExceeded);
    // The device has no connected queue pair left, so the kernel drops what arrives over UDP. The requester may give up
    // before all of it has arrived.
    wait_until(|| {
        let counters = b.device.counters();
        counters.kernel_drops + counters.unknown_queue_pair > 0
    });
    assert_eq!(bytes(&target), [0; 8]);
}

#[test]
fn an_overrun_completion_queue_is_reported_and_fails_its_queue_pair() {
    let (Some(mut a), Some(b)) = (Side::soft(FIRST), Side::soft(SECOND)) else {
        return;
    };
    a.queue = a.device.completion_queue(2);
    a.pair = a.another();
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
    let (Some(a), Some(b)) = (Side::soft(FIRST), Side::soft(SECOND)) else {
        return;
    };
    let queue = a.device.completion_queue(1);
    let own = QueuePairOptions::new(&queue);
    let near = [(); 2].map(|()| a.domain.queue_pair(&own).unwrap());
    let far = [(); 2].map(|()| b.another());
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
    assert!(matches!(
        taken,
        Error::Nic(NicError::Socket(SocketError::PortInUse { .. }))
    ));
    assert!(taken.to_string().contains("127.0.0.2"), "{taken}");
    // The same port is free at another address of this host.
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
            matches!(
                device(ip),
                Err(Error::Nic(NicError::Socket(
                    SocketError::AddressNotUnicast(_)
                )))
            ),
            "{ip}"
        );
    }
    // TEST-NET-1, which no host has.
    assert!(matches!(
        device("192.0.2.1"),
        Err(Error::Nic(NicError::Socket(
            SocketError::AddressNotLocal { .. }
        )))
    ));
}

#[test]
fn address_families_do_not_mix() {
    let (Some(a), Some(b)) = (Side::soft(FIRST), Side::soft(V6)) else {
        return;
    };
    let refused = a.pair.connect(&b.pair.endpoint(), &options());
    assert!(matches!(
        refused,
        Err(Error::Nic(NicError::Socket(
            SocketError::AddressFamily { .. }
        )))
    ));
    assert!(matches!(
        a.device.path_mtu(V6),
        Err(Error::Nic(NicError::Socket(
            SocketError::AddressFamily { .. }
        )))
    ));
}

/// Returns a WRITE of 8 bytes as the peer would send it, with an invalid ICRC.
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
        let (Some(a), Some(b)) = (Side::soft(address), Side::soft(address)) else {
            continue;
        };
        connect_to_card(&a, &b);
        let target = b.memory(64);
        let before = fill(&target, 4);
        // The packet comes from the peer's address and is valid except for its ICRC.
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
