//! What outlives what.

use std::time::Duration;

use gdr_rdma::{
    AckTimeout, Buffer, QueuePairOptions, RecvRequest, RetryCount, SendRequest, WcStatus, WrId,
};
use proptest::prelude::*;

use crate::fixture::*;

#[test]
fn a_posted_region_outlives_its_handle_until_the_request_completes() {
    let Some((a, b)) = sides() else { return };
    let place = b.memory(1000);
    let buffer = place.buffer().clone();
    let whole = place.segment(0, 1000).unwrap();
    b.pair
        .post_recv(RecvRequest::new(WrId(0)).segment(whole))
        .unwrap();
    drop(place);
    let source = a.memory(1000);
    let sent = fill(&source, 1);
    let whole = source.segment(0, 1000).unwrap();
    a.pair
        .post_send(SendRequest::send(WrId(0)).segment(whole))
        .unwrap();
    drop(source);
    b.done();
    a.done();
    let mut arrived = vec![0; 1000];
    buffer.read_at(0, &mut arrived).unwrap();
    assert!(arrived == sent);
}

#[test]
fn a_key_is_invalid_after_its_region_is_dropped() {
    let Some((a, b)) = sides() else { return };
    let target = b.memory(64);
    let (remote, buffer) = (target.remote(), target.buffer().clone());
    let again = b.domain.register(&buffer, EVERYTHING).unwrap();
    assert_ne!(again.rkey(), target.rkey());
    drop(target);
    let write = SendRequest::write(WrId(0), remote.at(0)).inline(&[1; 8]);
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);
    assert_eq!(buffer.load_u64(0).unwrap(), 0);
}

#[test]
fn a_region_that_is_deregistered_during_a_message_ends_the_message() {
    let Some((a, b)) = sides() else { return };
    let source = a.memory(64 << 20);
    for _ in 0..4 {
        let target = b.memory(64 << 20);
        let write = SendRequest::write(WrId(0), target.remote().at(0))
            .segment(source.segment(0, 64 << 20).unwrap());
        a.pair.post_send(write).unwrap();
        while target.buffer().load_u8(0).is_ok() && b.device.counters().packets_received < 64 {
            a.device.progress();
        }
        drop(target);
        let status = a.status();
        assert!(
            matches!(
                status,
                WcStatus::RemoteAccess | WcStatus::Success | WcStatus::WrFlushed
            ),
            "{status}"
        );
    }
}

#[test]
fn a_dropped_device_releases_its_descriptors_thread_and_port() {
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let threads = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
            .filter(|name| name.trim_end() == "gdr-nic")
            .count()
    };
    // Other tests of this process come and go; what would leak here is more than they ever hold.
    let (before, running) = (open(), threads());
    for _ in 0..150 {
        let Some(device) = device(FIRST) else { return };
        let port = device.address().port();
        drop(device);
        // Nothing holds the port any more.
        let options = gdr_rdma::SoftOptions::new(FIRST).port(port);
        match gdr_rdma::Device::soft_with(options) {
            // Another test may have been given it in between.
            Ok(_) | Err(gdr_rdma::Error::Nic(gdr_rdma::NicError::PortInUse { .. })) => {}
            Err(error) => panic!("{error}"),
        }
    }
    assert!(open() < before + 150, "{before} to {}", open());
    assert!(threads() < running + 100);
}

#[test]
fn a_waiting_thread_is_woken_by_an_error() {
    let Some((a, _b)) = sides() else { return };
    a.pair.post_recv(RecvRequest::new(WrId(0))).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.status());
        a.pair.to_error();
        assert_eq!(waiter.join().unwrap(), WcStatus::WrFlushed);
    });
}

/// What can be dropped on its own.
enum Thing {
    Side(Box<Side>),
    Device(#[allow(dead_code)] gdr_rdma::Device),
    Domain(#[allow(dead_code)] gdr_rdma::ProtectionDomain),
    Queue(#[allow(dead_code)] gdr_rdma::CompletionQueue),
    Pair(#[allow(dead_code)] gdr_rdma::QueuePair),
    Region(#[allow(dead_code)] gdr_rdma::MemoryRegion),
    Buffer(#[allow(dead_code)] Buffer),
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn everything_may_be_dropped_in_any_order_while_bytes_move(
        order in Just((0..14_usize).collect::<Vec<_>>()).prop_shuffle(),
        pauses in prop::collection::vec(0..200_u64, 14),
    ) {
        let (Some(a), Some(b)) = (Side::new(FIRST), Side::new(SECOND)) else {
            return Ok(());
        };
        let mut options = options();
        options.timeout = AckTimeout::new(6);
        options.retry_count = RetryCount::new(1);
        connect(&a, &b, &options);
        let regions = [a.memory(300_000), b.memory(300_000)];
        for n in 0..8 {
            let far = regions[1].remote().at(n);
            let near = || regions[0].segment(n, 200_000).unwrap();
            a.pair.post_send(SendRequest::write(WrId(n), far).segment(near())).unwrap();
            a.pair.post_send(SendRequest::read(WrId(n), far).segment(near())).unwrap();
            let place = regions[1].segment(0, 100).unwrap();
            b.pair.post_recv(RecvRequest::new(WrId(n)).segment(place)).unwrap();
        }
        let spare = |side: &Side| {
            side.domain.queue_pair(&QueuePairOptions::new(&side.queue)).unwrap()
        };
        let mut things: Vec<Option<Thing>> = Vec::new();
        for (side, region) in [a, b].into_iter().zip(regions) {
            things.push(Some(Thing::Pair(spare(&side))));
            things.push(Some(Thing::Device(side.device.clone())));
            things.push(Some(Thing::Domain(side.domain.clone())));
            things.push(Some(Thing::Queue(side.queue.clone())));
            things.push(Some(Thing::Buffer(region.buffer().clone())));
            things.push(Some(Thing::Region(region)));
            things.push(Some(Thing::Side(Box::new(side))));
        }
        for (index, pause) in order.into_iter().zip(pauses) {
            if let Some(Thing::Side(side)) = &things[index] {
                side.device.progress();
            }
            things[index] = None;
            let until = std::time::Instant::now() + Duration::from_micros(pause);
            while std::time::Instant::now() < until {
                std::hint::spin_loop();
            }
        }
    }
}
