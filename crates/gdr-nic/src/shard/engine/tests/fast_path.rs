use std::sync::Weak;

use gdr_copy::ProcessId;
use gdr_roce::{Data, Lkey, RecvRequest, Segment as DataSegment, SendFlags};
use gdr_udp::Deadline;
use rustix::event::{EventfdFlags, eventfd};

use super::*;
use crate::shard::memory::read_host;
use crate::shard::region_table::{RegionTable, TableEntry};
use crate::shard::ring_writer::ShardRegions;
use crate::wire::memory::Welcome;

const KEY: u32 = 77;

fn doorbell() -> OwnedFd {
    eventfd(0, EventfdFlags::NONBLOCK).unwrap()
}

/// An engine whose queue pair sends on a ring that nothing reads.
fn engine_with_ring() -> (Engine, Qpn, Arc<Segment>) {
    let (mut engine, qpn) = engine_with(AckTimeout::new(20));
    let segment = Arc::new(Segment::create(1 << 16).unwrap().0);
    let address = engine.wire.socket.local();
    let all = Welcome::to(engine.wire.socket.range());
    let outbound = Arc::clone(&segment);
    let ring = engine
        .rings
        .add_outbound(outbound, address, all, doorbell(), Weak::new());
    engine.qps.get_mut(qpn.get()).unwrap().ring = Some(ring);
    (engine, qpn, segment)
}

/// An engine whose queue pair has a ring to itself.
fn engine_on_ring() -> (Engine, Qpn) {
    let (mut engine, qpn, segment) = engine_with_ring();
    let sender = RingSender {
        address: engine.wire.socket.local(),
        memory: None,
    };
    engine.add_inbound(segment, sender, doorbell());
    (engine, qpn)
}

/// Eight bytes of registered host memory.
fn regions() -> (Buffer, Regions) {
    let buffer = Buffer::host(8).unwrap();
    buffer.write_at(0, &[1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
    let region = Region {
        domain: Domain::TEST,
        addr: 100,
        len: 8,
        offset: 0,
        access: Access::empty(),
        buffer: buffer.clone(),
        references: References::default(),
        binding: None,
    };
    (buffer, Regions::from_iter([(KEY, Arc::new(region))]))
}

fn segment(addr: u64, len: u32) -> DataSegment {
    DataSegment {
        lkey: Lkey(KEY),
        addr,
        len,
    }
}

/// A table of regions with that memory.
fn table() -> (Arc<RegionTable>, TableEntry) {
    let table = Arc::new(RegionTable::new(ProcessId::current(), 1));
    let (_, mut regions) = regions();
    let region = Arc::into_inner(regions.remove(&KEY).unwrap()).unwrap();
    let entry = RegionTable::insert_as(&table, KEY, region).unwrap();
    (table, entry)
}

fn send_at_once(engine: &mut Engine, qpn: Qpn, request: &SendRequest<'_>) -> Option<SentAtOnce> {
    let (table, _entry) = table();
    let now = engine.device.clock.now();
    let regions = ShardRegions {
        table: &table,
        shard: 0,
    };
    engine.post_and_transmit(qpn, request, now, regions)
}

/// Posts a list, as a call that has locked the engine does. Returns how many packets it wrote to the ring.
fn post_list<T>(
    engine: &mut Engine,
    qpn: Qpn,
    post: impl FnOnce(&mut SendQueue<'_, Connection>) -> T,
) -> u64 {
    let (table, _entry) = table();
    let regions = ShardRegions {
        table: &table,
        shard: 0,
    };
    let (before, now) = (engine.counters().sent_by_memory, engine.device.clock.now());
    let mut queue = engine.send_queue(qpn, now, regions).unwrap();
    post(&mut queue);
    if queue.has_written {
        engine.follow_list(qpn);
    }
    engine.counters().sent_by_memory - before
}

/// A WRITE of no bytes.
fn write() -> SendRequest<'static> {
    let operation = Operation::Write {
        remote: Remote {
            rkey: Rkey(0),
            addr: 0,
        },
        immediate: None,
    };
    SendRequest {
        operation,
        ..message(WrId(0), &[])
    }
}

/// Posts a WRITE of no bytes.
fn write_at_once(engine: &mut Engine, qpn: Qpn) -> Option<SentAtOnce> {
    send_at_once(engine, qpn, &write())
}

/// Polls until nothing is outstanding.
fn finish(engine: &mut Engine, qpn: Qpn) {
    let (regions, deadline) = (Regions::default(), Deadline::after(Duration::from_secs(60)));
    while engine.schedule(qpn).unwrap().transport.has_outstanding() {
        assert!(!deadline.has_passed(), "a request is never acknowledged");
        engine.poll(&regions, 0);
    }
}

#[test]
fn a_request_is_on_the_ring_when_it_was_posted() {
    let (mut engine, qpn) = engine_on_ring();
    assert!(!engine.rings.has_packet());
    let sent = write_at_once(&mut engine, qpn);
    assert!(matches!(sent, Some(SentAtOnce::Shown)), "{sent:?}");
    assert!(engine.rings.has_packet() && !engine.rings.has_hidden());
    assert_eq!(engine.counters().sent_by_memory, 1);
    assert!(engine.wakeup().at.is_some(), "its timer runs");
    finish(&mut engine, qpn);
}

#[test]
fn requests_behind_others_are_published_together() {
    let (mut engine, qpn) = engine_on_ring();
    write_at_once(&mut engine, qpn);
    for n in 1..8 {
        let sent = write_at_once(&mut engine, qpn);
        assert_eq!(sent, Some(SentAtOnce::Hidden), "{n}");
    }
    let sent = write_at_once(&mut engine, qpn);
    assert!(matches!(sent, Some(SentAtOnce::Shown)), "{sent:?}");
    assert_eq!(write_at_once(&mut engine, qpn), Some(SentAtOnce::Hidden));
    engine.poll(&Regions::default(), 0);
    assert!(!engine.rings.has_hidden());
    write_at_once(&mut engine, qpn);
    engine.sleep = Some(engine.wakeup());
    let sent = write_at_once(&mut engine, qpn);
    assert!(matches!(sent, Some(SentAtOnce::Shown)), "no poll follows");
    finish(&mut engine, qpn);
    assert!(engine.counters().received_by_memory >= 12);
}

#[test]
fn a_packet_that_is_not_published_is_work() {
    let (mut engine, qpn, _) = engine_with_ring();
    write_at_once(&mut engine, qpn);
    assert!(!engine.has_work());
    write_at_once(&mut engine, qpn);
    assert!(engine.has_work());
    engine.poll(&Regions::default(), 0);
    assert!(!engine.has_work());
}

#[test]
fn bytes_come_from_host_memory_of_the_domain_and_from_nowhere_else() {
    let (mut engine, qpn) = engine_on_ring();
    let mut sends = |segments: &[DataSegment]| {
        let request = SendRequest {
            data: Data::Segments(segments),
            ..message(WrId(0), &[])
        };
        send_at_once(&mut engine, qpn, &request).is_some()
    };
    for (addr, len) in [(99, 8), (101, 8), (108, 1), (0, 8), (u64::MAX, 8), (100, 9)] {
        assert!(!sends(&[segment(addr, len)]), "{len} bytes at {addr}");
    }
    let unknown = DataSegment {
        lkey: Lkey(KEY + 1),
        ..segment(100, 8)
    };
    assert!(!sends(&[unknown]));
    assert!(!sends(&[segment(100, 4), segment(104, 4)]), "a list");
    assert!(sends(&[segment(102, 6)]));

    let (_, regions) = regions();
    let read = |domain, out: &mut [u8]| read_host(&regions, domain, &segment(102, 6), out);
    let mut out = [0; 6];
    read(Domain::TEST, &mut out).unwrap();
    assert_eq!(out, [3, 4, 5, 6, 7, 8]);
    assert!(read(Domain::new(), &mut out).is_err(), "another domain");
}

#[test]
fn a_request_takes_the_usual_way_if_anything_else_decides_when_it_is_sent() {
    let refused = |engine: &mut Engine, qpn, why: &str| {
        let before = engine.counters();
        assert_eq!(write_at_once(engine, qpn), None, "{why}");
        assert_eq!(engine.counters(), before, "{why}");
    };
    let (mut engine, qpn) = engine_on_ring();
    let limit = std::num::NonZeroU64::new(1_000_000);
    engine.device.send_limit.set(limit);
    refused(&mut engine, qpn, "the rate limit");
    engine.device.send_limit.set(None);
    engine.device.fail(&Error::ForkedChild);
    refused(&mut engine, qpn, "the device has failed");

    let (mut engine, qpn) = engine_on_ring();
    post_write(&mut engine, qpn);
    refused(&mut engine, qpn, "an earlier request is not sent yet");
    engine.send(&Regions::default(), 0);
    assert!(write_at_once(&mut engine, qpn).is_some());

    let (mut engine, qpn) = super::engine();
    refused(&mut engine, qpn, "it has no ring");
}

#[test]
fn room_that_was_promised_to_the_intake_is_left() {
    let (mut engine, qpn) = engine_on_ring();
    let open = |engine: &mut Engine, unused| {
        engine.schedule(qpn).unwrap().intake = IntakeUse::Open {
            unused,
            promised: 63,
        };
    };
    open(&mut engine, 0);
    assert!(write_at_once(&mut engine, qpn).is_some(), "64 fit");
    assert_eq!(write_at_once(&mut engine, qpn), None);
    finish(&mut engine, qpn);
    assert!(write_at_once(&mut engine, qpn).is_some());
    finish(&mut engine, qpn);
    open(&mut engine, 1_000);
    assert_eq!(write_at_once(&mut engine, qpn), None, "it must close");
}

#[test]
fn the_requests_of_a_list_are_written_in_turn() {
    let (mut engine, qpn) = engine_on_ring();
    let written = post_list(&mut engine, qpn, |queue| {
        (0..5).try_for_each(|_| queue.push(&write()))
    });
    assert_eq!(written, 5);
    finish(&mut engine, qpn);

    // Those behind one that has to wait must wait, too.
    let written = post_list(&mut engine, qpn, |queue| {
        queue.push(&write()).unwrap();
        let unknown = [DataSegment {
            lkey: Lkey(KEY + 1),
            ..segment(100, 8)
        }];
        let data = Data::Segments(&unknown);
        queue.push(&SendRequest { data, ..write() }).unwrap();
        queue.push(&write()).unwrap();
    });
    assert_eq!(written, 1);
    let qp = engine.qps.get_mut(qpn.get()).unwrap();
    assert!(qp.transport.has_unsent_requests());
}

#[test]
fn a_list_that_may_be_withdrawn_is_not_sent_yet() {
    let (mut engine, qpn) = engine_on_ring();
    let withdrawn = post_list(&mut engine, qpn, |queue| {
        let failed = queue.all_or_none(|queue| {
            queue.push(&write()).unwrap();
            Err(())
        });
        assert_eq!(failed, Err(()));
    });
    assert_eq!(withdrawn, 0);
    let written = post_list(&mut engine, qpn, |queue| {
        let empty = queue.all_or_none(|_| Ok::<(), ()>(()));
        empty.and_then(|()| queue.push(&write()).map_err(|_| ()))
    });
    assert_eq!(written, 1, "nothing waits for its turn");
    let kept = post_list(&mut engine, qpn, |queue| {
        queue.all_or_none(|queue| queue.push(&write()))
    });
    assert_eq!(kept, 0);
    engine.schedule(qpn);
    engine.send(&Regions::default(), 0);
    assert_eq!(engine.counters().sent_by_memory, 2);
    finish(&mut engine, qpn);
}

#[test]
fn a_list_takes_the_usual_way_if_anything_else_decides_when_it_is_sent() {
    let (mut engine, qpn) = engine_on_ring();
    let written = |engine: &mut Engine| post_list(engine, qpn, |queue| queue.push(&write()));
    engine
        .device
        .send_limit
        .set(std::num::NonZeroU64::new(1_000_000));
    assert_eq!(written(&mut engine), 0);
    engine.device.send_limit.set(None);
    assert_eq!(
        written(&mut engine),
        0,
        "an earlier request is not sent yet"
    );
    engine.schedule(qpn);
    engine.send(&Regions::default(), 0);
    assert_eq!(written(&mut engine), 1);
}

/// An engine that owes an acknowledgement to its own queue pair, which it delays.
fn engine_that_owes() -> (Engine, Qpn) {
    let (mut engine, qpn) = engine_on_ring();
    let posted = RecvQueue::of(engine.schedule(qpn).unwrap()).push(&RecvRequest {
        id: WrId(0),
        segments: &[],
    });
    posted.unwrap();
    let request = SendRequest {
        flags: SendFlags::SIGNALLED,
        ..message(WrId(0), &[])
    };
    assert!(send_at_once(&mut engine, qpn, &request).is_some());
    // Only the reception of a poll, so that the acknowledgement is still owed.
    assert!(engine.rings.is_beginning());
    engine.rings.begin(false);
    engine.process(Time::EPOCH, &Regions::default());
    let qp = engine.qps.get_mut(qpn.get()).unwrap();
    assert!(qp.transport.owes_only_acknowledgement());
    qp.acknowledgement = Acknowledgement::Kept;
    engine.held.push(qpn.get());
    (engine, qpn)
}

/// Checks that the acknowledgement was sent with the only packet since, and nothing else is to be sent.
fn check_acknowledged(mut engine: Engine, qpn: Qpn) {
    assert_eq!(engine.counters().sent_by_memory, 3);
    assert!(engine.held.is_empty());
    let qp = engine.qps.get_mut(qpn.get()).unwrap();
    assert_eq!(qp.acknowledgement, Acknowledgement::Due);
    assert!(!qp.may_transmit());
    finish(&mut engine, qpn);
}

#[test]
fn an_acknowledgement_is_published_with_the_reply() {
    let (mut engine, qpn) = engine_that_owes();
    let sent = write_at_once(&mut engine, qpn);
    assert!(matches!(sent, Some(SentAtOnce::Shown)), "{sent:?}");
    check_acknowledged(engine, qpn);
}

#[test]
fn an_acknowledgement_follows_a_list() {
    let (mut engine, qpn) = engine_that_owes();
    let written = post_list(&mut engine, qpn, |queue| queue.push(&write()));
    assert_eq!(written, 2, "a request and the acknowledgement");
    check_acknowledged(engine, qpn);
}
