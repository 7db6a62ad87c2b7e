//! Queue pair numbers that a device reuses at once, as firmware may.

use std::sync::mpsc;
use std::thread;

use fake_ibverbs::{DeviceSpec, Fake, Fault, Kind};
use gdr_rdma::{CompletionQueue, QueuePair, QueuePairOptions, SendRequest, WrId};

use crate::fixture::*;

fn reusing() -> DeviceSpec {
    DeviceSpec {
        reuses_numbers: true,
        ..roce()
    }
}

/// Creates another queue pair on a side's queue, connected to the other side's queue pair.
fn another(a: &Side, b: &Side, queue: &CompletionQueue) -> QueuePair {
    let pair = a.domain.queue_pair(&QueuePairOptions::new(queue)).unwrap();
    pair.connect(&b.pair.endpoint(), &options()).unwrap();
    b.pair.connect(&pair.endpoint(), &options()).unwrap();
    pair
}

/// Returns a side without a queue pair, and a side whose queue pair is not connected.
fn bare(fake: &Fake, spec: &DeviceSpec) -> (Side, Side) {
    (side(fake, spec), side(fake, &roce()))
}

#[test]
fn a_queue_pair_with_the_number_of_one_being_dropped_completes_its_requests() {
    let fake = clean_fake();
    let (a, b) = bare(&fake, &reusing());
    let source = a.memory(64);
    let target = b.memory(64);
    let old = a.domain.queue_pair(&QueuePairOptions::new(&a.queue));
    let old = old.unwrap();
    let number = old.qpn();
    let detain = |detained| fake.fault(&a.name(), Fault::Detain(detained));
    let pairs = fake.live(&a.name(), Kind::Pair);
    detain(true);
    thread::scope(|scope| {
        let (dropped, gone) = mpsc::channel();
        scope.spawn(move || {
            drop(old);
            dropped.send(()).unwrap();
        });
        let end = soon();
        while fake.live(&a.name(), Kind::Pair) == pairs {
            assert!(!end.has_passed());
            thread::yield_now();
        }
        // The number is free, and the drop of the old queue pair continues once the new one exists.
        let new = another(&a, &b, &a.queue);
        assert_eq!(new.qpn(), number);
        detain(false);
        gone.recv().unwrap();
        let write = SendRequest::write(WrId(7), target.remote().at(0));
        new.post_send(write.segment(source.segment(0, 64).unwrap()))
            .unwrap();
        assert_eq!(a.done().id, WrId(7));
    });
}

#[test]
fn a_completion_of_a_destroyed_queue_pair_completes_no_request_of_its_successor() {
    let fake = clean_fake();
    let spec = DeviceSpec {
        keeps_completions: true,
        ..reusing()
    };
    let (a, b) = bare(&fake, &spec);
    let source = a.memory(64);
    let target = b.memory(64);
    let write = |id| {
        SendRequest::write(WrId(id), target.remote().at(0)).segment(source.segment(0, 64).unwrap())
    };
    let old = another(&a, &b, &a.queue);
    let number = old.qpn();
    old.post_send(write(1)).unwrap();
    drop(old);

    let b = {
        let device = b.device.clone();
        drop(b.pair);
        Side::on(device)
    };
    let new = another(&a, &b, &a.queue);
    assert_eq!(new.qpn(), number);
    hold(&fake, &a.name(), true);
    new.post_send(write(2)).unwrap();
    assert_eq!(a.queue.poll().unwrap(), None, "nothing of it has ended");
    hold(&fake, &a.name(), false);
    drop((new, b));
    drop((source, target));
    drop(a);
}

#[test]
fn a_dropped_queue_pair_releases_its_requests_before_its_completion_queue() {
    let fake = clean_fake();
    let (a, b) = sides(&fake);
    let (source, target) = (a.memory(4096), b.memory(4096));
    hold(&fake, &a.name(), true);
    let write = SendRequest::write(WrId(1), target.remote().at(0))
        .segment(source.segment(0, 4096).unwrap());
    a.pair.post_send(write).unwrap();
    let name = a.name();
    let queue = a.queue.clone();
    drop((source, a));
    assert_eq!(fake.live(&name, Kind::Region), 0);
    assert_eq!(queue.poll().unwrap(), None);
}
