//! Devices with several shards.

use std::collections::HashSet;
use std::net::IpAddr;
use std::thread;

use gdr_rdma::{
    AsyncEvent, Capabilities, CompletionQueue, Device, Error, MemoryRegion, NicError, PortUse,
    Qkey, QueuePair, QueuePairOptions, RecvRequest, Segment, SendRequest, SocketError, SoftOptions,
    Stripe, StripedPart, StripedRange, UdEndpoint, UdQueuePairOptions, UdSendRequest, WcStatus,
    WrId,
};

use crate::fixture::*;

const SHARDS: usize = 4;

/// A device with several shards, and one completion queue for many queue pairs.
struct Wide {
    side: Side,
    pairs: Vec<QueuePair>,
}

impl Wide {
    fn new(address: IpAddr, shards: usize, pairs: usize) -> Self {
        let options = SoftOptions::new(address).port(0).shards(shards);
        let side = Side::on(device_with(options, address).unwrap());
        Self {
            pairs: (0..pairs).map(|_| side.another()).collect(),
            side,
        }
    }

    fn connect(&self, other: &Self) {
        for (near, far) in self.pairs.iter().zip(&other.pairs) {
            near.connect(&far.endpoint(), &options()).unwrap();
            far.connect(&near.endpoint(), &options()).unwrap();
        }
    }
}

/// Returns the shard of a queue pair, which is part of its number.
fn shard(pair: &QueuePair) -> u32 {
    pair.qpn().get() >> 15 & 7
}

fn whole(region: &MemoryRegion) -> Segment {
    region.segment(0, region.len()).unwrap()
}

#[test]
fn queue_pairs_are_spread_over_the_shards() {
    let wide = Wide::new(FIRST, SHARDS, 11);
    let mut count = [0; SHARDS];
    count[shard(&wide.side.pair) as usize] += 1;
    for pair in &wide.pairs {
        count[shard(pair) as usize] += 1;
    }
    assert_eq!(count, [3; SHARDS]);
}

#[test]
fn bytes_reach_the_shard_of_their_queue_pair_whatever_the_number_of_shards() {
    for (address, other) in [(FIRST, SECOND), (V6, V6)] {
        if device(address).is_none() {
            continue;
        }
        for (near, far) in [(1, 2), (2, 3), (3, 8), (8, 5)] {
            const PAIRS: usize = 9;
            let (near, far) = (
                Wide::new(address, near, PAIRS),
                Wide::new(other, far, PAIRS),
            );
            near.connect(&far);
            let len = 100_000;
            let source = near.side.memory(len);
            let sent = fill(&source, 3);
            let memory = || (far.side.memory(len), near.side.memory(len));
            let memory: Vec<_> = (0..PAIRS).map(|_| memory()).collect();
            for (n, pair) in near.pairs.iter().enumerate() {
                let (target, back) = &memory[n];
                let write = SendRequest::write(WrId(n as u64), target.remote().at(0));
                let read = SendRequest::read(WrId(n as u64), target.remote().at(0));
                let requests = [write.segment(whole(&source)), read.segment(whole(back))];
                pair.post_sends(requests).unwrap();
            }
            for _ in 0..2 * PAIRS {
                near.side.done();
            }
            for (target, back) in &memory {
                assert!(bytes(target) == sent && bytes(back) == sent);
            }
            for counters in [near.side.device.counters(), far.side.device.counters()] {
                assert_eq!(counters.unknown_queue_pair, 0, "none was misdirected");
                assert_eq!(counters.wrong_source, 0);
            }
        }
    }
}

#[test]
fn threads_with_a_completion_queue_each_move_bytes_at_the_same_time() {
    let (near, far) = (Wide::new(FIRST, SHARDS, 0), Wide::new(SECOND, SHARDS, 0));
    thread::scope(|scope| {
        for seed in 0..SHARDS as u8 {
            let (near, far) = (&near.side, &far.side);
            scope.spawn(move || {
                let pair = |side: &Side| {
                    let queue = side.device.completion_queue(64);
                    let options = QueuePairOptions::new(&queue);
                    (side.domain.queue_pair(&options).unwrap(), queue)
                };
                let ((a, queue), (b, _)) = (pair(near), pair(far));
                a.connect(&b.endpoint(), &options()).unwrap();
                b.connect(&a.endpoint(), &options()).unwrap();
                let (source, target) = (near.memory(1 << 20), far.memory(1 << 20));
                let sent = fill(&source, seed);
                for n in 0..8 {
                    let write = SendRequest::write(WrId(n), target.remote().at(0));
                    a.post_send(write.segment(whole(&source))).unwrap();
                    let done = queue.wait(soon()).unwrap();
                    assert_eq!((done.id, done.status), (WrId(n), WcStatus::Success));
                }
                assert!(bytes(&target) == sent);
            });
        }
    });
}

/// Sends short requests to all shards from one thread, whose completions arrive in a queue that it polls.
#[test]
fn a_thread_that_only_polls_gets_the_completions_of_all_shards() {
    let (near, far) = (Wide::new(FIRST, SHARDS, 6), Wide::new(SECOND, SHARDS, 6));
    near.connect(&far);
    let target = far.side.memory(8 * near.pairs.len());
    const ROUNDS: u64 = 300;
    for round in 1..=ROUNDS {
        for (n, pair) in near.pairs.iter().enumerate() {
            let to = target.remote().at(8 * n as u64);
            let write = SendRequest::write(WrId(n as u64), to).inline(&round.to_ne_bytes());
            pair.post_send(write).unwrap();
        }
        let (mut seen, deadline) = (0, soon());
        while seen < near.pairs.len() {
            assert!(!deadline.has_passed(), "round {round}: {seen} completions");
            seen += usize::from(poll(&near.side.queue));
        }
    }
    let last = ROUNDS.to_ne_bytes().repeat(near.pairs.len());
    assert_eq!(bytes(&target), last);
}

/// Returns whether there was a completion, which must be successful.
fn poll(queue: &CompletionQueue) -> bool {
    let completion = queue.poll().unwrap();
    if let Some(completion) = completion {
        assert_eq!(completion.status, WcStatus::Success);
    }
    completion.is_some()
}

#[test]
fn a_shared_receive_queue_serves_queue_pairs_of_all_shards() {
    let (near, far) = (Wide::new(FIRST, SHARDS, 6), Wide::new(SECOND, SHARDS, 0));
    let shared = far.side.domain.shared_receive_queue(64).unwrap();
    let options_of_far = QueuePairOptions::new(&far.side.queue).shared_receive_queue(&shared);
    let receivers: Vec<_> = near
        .pairs
        .iter()
        .map(|near| {
            let far = far.side.domain.queue_pair(&options_of_far).unwrap();
            near.connect(&far.endpoint(), &options()).unwrap();
            far.connect(&near.endpoint(), &options()).unwrap();
            far
        })
        .collect();
    let memory = far.side.memory(8 * receivers.len());
    for n in 0..receivers.len() as u64 {
        let receive = RecvRequest::new(WrId(n)).segment(memory.segment(8 * n, 8).unwrap());
        shared.post_recv(receive).unwrap();
    }
    for pair in &near.pairs {
        let send = SendRequest::send(WrId(0)).inline(&[1; 8]);
        pair.post_send(send).unwrap();
    }
    let mut ids: Vec<_> = receivers.iter().map(|_| far.side.done().id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
    assert!(bytes(&memory) == [1; 48]);
}

#[test]
fn datagrams_reach_the_queue_pair_of_any_shard() {
    let (near, far) = (Wide::new(FIRST, 2, 0), Wide::new(SECOND, SHARDS, 0));
    let qkey = Qkey(0x1234);
    let pair = |side: &Side| {
        let options = UdQueuePairOptions::new(&side.queue, qkey);
        let pair = side.domain.ud_queue_pair(&options).unwrap();
        pair.to_rtr().unwrap();
        pair.to_rts().unwrap();
        pair
    };
    let sender = pair(&near.side);
    let receivers: Vec<_> = (0..5).map(|_| pair(&far.side)).collect();
    let memory = far.side.memory(64);
    for (n, receiver) in receivers.iter().enumerate() {
        let receive = RecvRequest::new(WrId(n as u64));
        let receive = receive.segment(memory.segment(0, 64).unwrap());
        receiver.post_recv(receive).unwrap();
        let to = UdEndpoint {
            address: far.side.device.address(),
            qpn: receiver.qpn(),
            qkey,
        };
        let send = UdSendRequest::new(WrId(0), to).inline(b"to a shard");
        sender.post_send(send).unwrap();
        let received = far.side.done();
        assert_eq!(
            (received.id, received.qpn),
            (WrId(n as u64), receiver.qpn())
        );
    }
}

#[test]
fn a_region_that_ended_is_unknown_to_every_shard() {
    let (near, far) = (
        Wide::new(FIRST, SHARDS, SHARDS),
        Wide::new(SECOND, SHARDS, SHARDS),
    );
    near.connect(&far);
    let target = far.side.memory(8);
    let remote = target.remote().at(0);
    let write = || SendRequest::write(WrId(0), remote).inline(&[1; 8]);
    for pair in &near.pairs {
        pair.post_send(write()).unwrap();
        near.side.done();
    }
    drop(target);
    for pair in &near.pairs {
        pair.post_send(write()).unwrap();
        assert_eq!(near.side.status(), WcStatus::RemoteAccess);
    }
}

#[test]
fn another_device_cannot_join_the_sockets_of_the_shards() {
    let address = IpAddr::from([127, 0, 55, 1]);
    let exclusive = SoftOptions::new(address).shards(SHARDS);
    let shared = SoftOptions::new(address).port_use(PortUse::Shared);
    let device = Device::soft_with(exclusive).unwrap();
    for options in [exclusive, shared, exclusive.shards(1)] {
        let refused = Device::soft_with(options);
        assert!(
            matches!(
                refused,
                Err(Error::Nic(NicError::Socket(SocketError::PortInUse { .. })))
            ),
            "{refused:?}"
        );
    }
    drop(device);
    let device = Device::soft_with(shared).unwrap();
    let refused = Device::soft_with(exclusive);
    assert!(
        matches!(
            refused,
            Err(Error::Nic(NicError::Socket(SocketError::PortInUse { .. })))
        ),
        "{refused:?}"
    );
    drop(device);
    Device::soft_with(exclusive).unwrap();
}

#[test]
fn the_shards_of_a_shared_port_have_a_slot_each() {
    let address = IpAddr::from([127, 0, 55, 2]);
    let open = |shards| {
        let shared = SoftOptions::new(address).port_use(PortUse::Shared);
        Side::on(Device::soft_with(shared.shards(shards)).unwrap())
    };
    let (a, b) = (open(3), open(2));
    let pairs: Vec<_> = (0..6).map(|_| (a.another(), b.another())).collect();
    let slots = |of: &dyn Fn(&(QueuePair, QueuePair)) -> u32| {
        let mut slots: Vec<_> = pairs.iter().map(of).collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    };
    assert_eq!(slots(&|pair| pair.0.qpn().get() >> 18), [0, 1, 2]);
    assert_eq!(slots(&|pair| pair.1.qpn().get() >> 18), [3, 4]);
    let target = b.memory(8 * pairs.len());
    for (n, (near, far)) in pairs.iter().enumerate() {
        near.connect(&far.endpoint(), &options()).unwrap();
        far.connect(&near.endpoint(), &options()).unwrap();
        let to = target.remote().at(8 * n as u64);
        near.post_send(SendRequest::write(WrId(0), to).inline(&[7; 8]))
            .unwrap();
        a.done();
    }
    assert!(bytes(&target) == [7; 48]);
    drop((pairs, target, b));
    let again = open(2);
    assert_eq!(again.pair.qpn().get() >> 18, 3, "the slots are free again");
}

#[test]
fn completions_that_do_not_fit_end_the_queue_pairs_of_every_shard() {
    let (near, far) = (
        Wide::new(FIRST, SHARDS, 0),
        Wide::new(SECOND, SHARDS, SHARDS),
    );
    let queue = near.side.device.completion_queue(1);
    let capabilities = Capabilities {
        max_send_wr: 4,
        max_recv_wr: 1,
        max_inline: 8,
    };
    let own = QueuePairOptions::new(&queue).capabilities(capabilities);
    let target = far.side.memory(8);
    let pairs: Vec<_> = far
        .pairs
        .iter()
        .map(|far| {
            let near = near.side.domain.queue_pair(&own).unwrap();
            near.connect(&far.endpoint(), &options()).unwrap();
            far.connect(&near.endpoint(), &options()).unwrap();
            near
        })
        .collect();
    for pair in &pairs {
        let write = SendRequest::write(WrId(0), target.remote().at(0)).inline(&[1]);
        pair.post_send(write).unwrap();
    }
    let event = near.side.device.wait_event(soon()).unwrap();
    assert!(
        matches!(
            event,
            AsyncEvent::CompletionQueueOverrun { capacity: 1, .. }
        ),
        "{event:?}"
    );
    // Further completions may be stored once the stored one has been taken.
    let error = (0..=pairs.len()).find_map(|_| queue.wait(soon()).err());
    assert!(
        matches!(
            error,
            Some(Error::Nic(NicError::CompletionQueueOverrun { .. }))
        ),
        "{error:?}"
    );
}

/// Executes requests over all queue pairs; stops at the first failure.
fn transfer(side: &Wide, parts: Vec<StripedPart>) -> WcStatus {
    let mut parts = parts.into_iter();
    let mut stripe = Stripe::over(&side.pairs).window(2);
    loop {
        stripe.post(&mut parts).unwrap();
        if stripe.outstanding() == 0 {
            return WcStatus::Success;
        }
        let completion = side.side.queue.wait(soon()).unwrap();
        assert!(stripe.completed(&completion), "{completion:?}");
        if completion.status != WcStatus::Success {
            return completion.status;
        }
    }
}

#[test]
fn a_striped_transfer_moves_every_byte_once_and_no_other() {
    let (near, far) = (
        Wide::new(FIRST, SHARDS, SHARDS),
        Wide::new(SECOND, SHARDS, SHARDS),
    );
    near.connect(&far);
    const ROOM: usize = (9 << 20) + 8192;
    let (source, target) = (near.side.memory(ROOM), far.side.memory(ROOM));
    let back = near.side.memory(ROOM);
    let sent = fill(&source, 5);
    for len in [0, 1, 4096, 100_001, 9 << 20] {
        let cleared = fill(&target, !5);
        fill(&back, !5);
        let range = |local| StripedRange {
            local,
            offset: 100,
            remote: target.remote().at(100),
            len,
        };
        let writes = range(&source).writes(SHARDS).unwrap();
        assert_eq!(transfer(&near, writes), WcStatus::Success);
        let reads = range(&back).reads(SHARDS).unwrap();
        assert_eq!(transfer(&near, reads), WcStatus::Success);
        let end = 100 + len as usize;
        let expected = [&cleared[..100], &sent[100..end], &cleared[end..]].concat();
        assert!(bytes(&target) == expected, "{len} written");
        assert!(bytes(&back) == expected, "{len} read");
    }
    let range = StripedRange {
        local: &source,
        offset: 8192,
        remote: target.remote().at(0),
        len: ROOM as u64,
    };
    for parts in [range.writes(SHARDS), range.reads(SHARDS)] {
        assert!(
            matches!(parts, Err(Error::Nic(NicError::OutOfRange { .. }))),
            "{parts:?}"
        );
    }
}

#[test]
fn a_striped_transfer_keeps_all_queue_pairs_busy_and_counts_what_is_complete() {
    let (near, far) = (Wide::new(FIRST, SHARDS, 3), Wide::new(SECOND, SHARDS, 3));
    near.connect(&far);
    let (source, target) = (near.side.memory(100), far.side.memory(100));
    let part = |n: u64| {
        let write = SendRequest::write(WrId(0), target.remote().at(n));
        StripedPart {
            request: write.segment(source.segment(n, 1).unwrap()),
            bytes: 1,
        }
    };
    let mut parts = (0..100).map(part);
    let mut stripe = Stripe::over(&near.pairs).window(4).numbered_from(1000);
    stripe.post(&mut parts).unwrap();
    assert_eq!(stripe.outstanding(), 12);
    let mut of_pair = [0; 3];
    let mut ids = HashSet::new();
    while stripe.outstanding() > 0 {
        let completion = near.side.queue.wait(soon()).unwrap();
        let pair = near.pairs.iter().position(|it| it.qpn() == completion.qpn);
        of_pair[pair.unwrap()] += 1;
        assert!(ids.insert(completion.id));
        assert!(stripe.completed(&completion));
        stripe.post(&mut parts).unwrap();
    }
    assert_eq!((stripe.moved(), stripe.next_number()), (100, 1100));
    assert!(of_pair.iter().all(|count| *count >= 4), "{of_pair:?}");
}

#[test]
fn a_part_of_a_striped_transfer_that_fails_has_a_completion() {
    let (near, far) = (
        Wide::new(FIRST, SHARDS, SHARDS),
        Wide::new(SECOND, SHARDS, SHARDS),
    );
    near.connect(&far);
    let (source, target) = (near.side.memory(4 << 20), far.side.memory(1 << 20));
    let range = StripedRange {
        local: &source,
        offset: 0,
        remote: target.remote().at(0),
        len: 4 << 20,
    };
    let status = transfer(&near, range.writes(SHARDS).unwrap());
    assert_eq!(status, WcStatus::RemoteAccess);
}
