//! Several connections of a device, and several threads.

use gdr_rdma::{Mtu, QueuePairOptions, SendRequest, WrId};

use crate::{Bench, Side, bytes, connect, fill, pattern, side, soon};

pub fn both_sides_write_at_once_and_every_path_mtu_works(bench: &Bench<'_>) {
    for mtu in Mtu::ALL {
        if mtu > bench.connection().path_mtu {
            continue;
        }
        let (a, b) = bench.sides_with(|options| options.path_mtu = mtu);
        let regions = [&a, &b].map(|side| (side.memory(300_001), side.memory(300_001)));
        let sent = [fill(&regions[0].0, 7), fill(&regions[1].0, 8)];
        for (from, to, side) in [(0, 1, &a), (1, 0, &b)] {
            let request = side::write(&regions[from].0, regions[to].1.remote().at(0));
            side.pair.post_send(request).unwrap();
        }
        a.done();
        b.done();
        assert!(bytes(&regions[1].1) == sent[0], "{mtu}");
        assert!(bytes(&regions[0].1) == sent[1], "{mtu}");
    }
}

pub fn a_device_connects_to_itself(bench: &Bench<'_>) {
    let device = bench.near();
    let (a, b) = (Side::on(device.clone()), Side::on(device));
    connect(&a, &b, bench.connection());
    let (source, target) = (a.memory(100_000), b.memory(100_000));
    let sent = fill(&source, 11);
    a.write(&source, target.remote().at(0));
    assert!(bytes(&target) == sent);
}

pub fn many_queue_pairs_of_two_threads_share_a_device(bench: &Bench<'_>) {
    let (a, b) = bench.apart();
    let options = bench.connection();
    std::thread::scope(|scope| {
        for thread in 0..2_u8 {
            let (a, b) = (&a, &b);
            scope.spawn(move || {
                let queues = [a, b].map(|side| side.device.completion_queue(256));
                for round in 0..8 {
                    let make = |side: &Side, queue| {
                        let options = QueuePairOptions::new(queue);
                        side.domain.queue_pair(&options).unwrap()
                    };
                    let pairs = [make(a, &queues[0]), make(b, &queues[1])];
                    pairs[0].connect(&pairs[1].endpoint(), options).unwrap();
                    pairs[1].connect(&pairs[0].endpoint(), options).unwrap();
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

pub fn several_threads_post_to_one_queue_pair(bench: &Bench<'_>) {
    let (a, b) = bench.sides();
    let target = b.memory(4 * 1024);
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (a, target) = (&a, &target);
            scope.spawn(move || {
                for _ in 0..20 {
                    let source = a.memory(1024);
                    fill(&source, thread as u8);
                    a.write(&source, target.remote().at(thread * 1024));
                }
            });
        }
    });
    let got = bytes(&target);
    for thread in 0..4 {
        assert!(got[thread * 1024..][..1024] == pattern(1024, thread as u8));
    }
}
