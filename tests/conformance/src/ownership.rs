//! What outlives what.

use std::any::Any;
use std::time::{Duration, Instant};

use gdr_rdma::{Access, AckTimeout, RecvRequest, RetryCount, SendRequest, WcStatus, WrId};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::{Bench, Side, fill};

pub fn a_posted_region_outlives_its_handle_until_the_request_completes(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
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

pub fn a_key_is_invalid_after_its_region_is_dropped(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let target = b.memory(64);
    let (remote, buffer) = (target.remote(), target.buffer().clone());
    let again = b.domain.register(&buffer, Access::all()).unwrap();
    assert_ne!(again.rkey(), target.rkey());
    drop(target);
    let write = SendRequest::write(WrId(0), remote.at(0)).inline(&[1; 8]);
    a.pair.post_send(write).unwrap();
    assert_eq!(a.status(), WcStatus::RemoteAccess);
    assert_eq!(buffer.load_u64(0).unwrap(), 0);
}

pub fn a_waiting_thread_is_woken_by_an_error(bench: &Bench<'_>) {
    let (a, _b) = bench.sides();
    a.pair.post_recv(RecvRequest::new(WrId(0))).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| a.status());
        a.pair.to_error();
        assert_eq!(waiter.join().unwrap(), WcStatus::WrFlushed);
    });
}

pub fn everything_may_be_dropped_in_any_order_while_bytes_move(bench: &Bench<'_>) {
    let orders = Just((0..16_usize).collect::<Vec<_>>()).prop_shuffle();
    let pauses = prop::collection::vec(0..200_u64, 16);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 24,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let outcome = runner.run(&(orders, pauses), |(order, pauses)| {
        drop_in_order(bench, &order, &pauses);
        Ok(())
    });
    outcome.unwrap();
}

/// Drops everything of two sides in this order, with these pauses in microseconds.
fn drop_in_order(bench: &Bench<'_>, order: &[usize], pauses: &[u64]) {
    let (a, b) = bench.sides_with(|options| {
        options.timeout = AckTimeout::new(6);
        options.retry_count = RetryCount::new(1);
    });
    let regions = [a.memory(300_000), b.memory(300_000)];
    for n in 0..8 {
        let far = regions[1].remote().at(n);
        let near = || regions[0].segment(n, 200_000).unwrap();
        let write = SendRequest::write(WrId(n), far).segment(near());
        let read = SendRequest::read(WrId(n), far).segment(near());
        a.pair.post_sends([write, read]).unwrap();
        let place = regions[1].segment(0, 100).unwrap();
        let receive = RecvRequest::new(WrId(n)).segment(place);
        b.pair.post_recv(receive).unwrap();
    }
    let mut things: Vec<Option<Box<dyn Any>>> = Vec::new();
    for (side, region) in [a, b].into_iter().zip(regions) {
        let spare = side.another();
        let buffer = region.buffer().clone();
        let Side {
            pair,
            queue,
            domain,
            device,
        } = side;
        let device = (device.clone(), device);
        things.extend([
            Some(Box::new(spare) as Box<dyn Any>),
            Some(Box::new(pair)),
            Some(Box::new(queue)),
            Some(Box::new(domain)),
            Some(Box::new(device.0)),
            Some(Box::new(device.1)),
            Some(Box::new(buffer)),
            Some(Box::new(region)),
        ]);
    }
    for (index, pause) in order.iter().zip(pauses) {
        things[*index] = None;
        let until = Instant::now() + Duration::from_micros(*pause);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
    }
}
