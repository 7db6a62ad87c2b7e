mod fast_path;

use std::net::{IpAddr, Ipv4Addr, UdpSocket};

use gdr_roce::wire::Opcode;
use gdr_roce::{
    Access, AckTimeout, Capabilities, LossRecovery, Mtu, Operation, Psn, QueuePair, Remote,
    RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, SendRequest,
    WrId,
};

use super::*;
use crate::buffer::Buffer;
use crate::connection::{self, Connection};
use crate::loopback::{self, message};
use crate::recv_queue::RecvQueue;
use crate::send_queue::SendQueue;
use crate::shard::clock::nanoseconds;
use crate::shard::cq_entries::{CqEntries, CqProducer, OnCompletion};
use crate::shard::region_table::Region;
use crate::shard::transport::Transport;
use crate::types::{Domain, SoftOptions};
use crate::wire::memory::References;
use gdr_udp::{Shards, SourcePort};

/// An engine without a thread, with a queue pair that is connected to itself.
fn engine() -> (Engine, Qpn) {
    engine_with(AckTimeout::NEVER)
}

/// Like [`engine`], with this timeout of the queue pair.
fn engine_with(timeout: AckTimeout) -> (Engine, Qpn) {
    engine_on(timeout, None)
}

/// Like [`engine_with`], with what its queue of receives calls.
fn engine_on(timeout: AckTimeout, on_receive: Option<OnCompletion>) -> (Engine, Qpn) {
    let options = SoftOptions::default().port(0).receive_buffer(1 << 20);
    let options = options.busy_poll(Duration::ZERO);
    let sockets = Socket::bind_shards(&options.socket(), Shards::Exactly(1));
    let socket = Arc::new(sockets.unwrap().remove(0));
    let device = Arc::new(DeviceState::new(1, &options, None).unwrap());
    let mut engine = Engine::new(Arc::clone(&socket), device).unwrap();
    let qpn = engine.new_qpn().unwrap();
    let capabilities = Capabilities {
        max_send_wr: 64,
        max_recv_wr: 1,
        max_inline: 8,
    };
    let mut roce = QueuePair::with_config(qpn, capabilities, connection::config(1 << 20));
    roce.to_init(Access::all()).unwrap();
    roce.to_rtr(&RtrAttributes {
        dest_qpn: qpn,
        rq_psn: Psn::default(),
        path_mtu: Mtu::B4096,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::new(12),
    })
    .unwrap();
    roce.to_rts(&RtsAttributes {
        sq_psn: Psn::default(),
        timeout,
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::new(0),
        max_rd_atomic: 1,
    })
    .unwrap();
    let queue = |on_completion| {
        let entries = CqEntries::new(64, on_completion, Arc::default());
        CqProducer::new(Arc::new(entries), 0)
    };
    let transport = Transport::Connection(roce);
    let mut qp = QpContext::new(transport, Domain::TEST, queue(None), queue(on_receive));
    let address = socket.local();
    qp.peer = Some(Peer {
        address,
        source_port: SourcePort::OfAddress,
        loss_recovery: LossRecovery::GoBackN,
    });
    engine.add(qp);
    let added = engine.wire.peers.add_peer(address.ip());
    added.unwrap();
    (engine, qpn)
}

/// Posts a request to the send queue.
fn send(engine: &mut Engine, qpn: Qpn, request: &SendRequest<'_>) {
    let qp = engine.schedule(qpn).unwrap();
    let mut queue = SendQueue::<Connection>::of(qp).unwrap();
    queue.push(request).unwrap();
}

fn post(engine: &mut Engine, qpn: Qpn) {
    send(engine, qpn, &message(WrId(0), &[1]));
}

#[test]
fn at_most_eight_short_requests_are_deferred_behind_others() {
    let (mut engine, qpn) = engine();
    post(&mut engine, qpn);
    assert!(!engine.may_defer(qpn), "there is no outstanding request");
    engine.send(&Regions::default(), 0);
    for n in 1..8 {
        post(&mut engine, qpn);
        assert!(engine.may_defer(qpn), "{n}");
    }
    post(&mut engine, qpn);
    assert!(!engine.may_defer(qpn));
    engine.send(&Regions::default(), 0);
    assert_eq!(engine.counters().packets_sent, 9);
    post(&mut engine, qpn);
    assert!(engine.may_defer(qpn));
}

#[test]
fn no_request_is_deferred_if_no_poll_would_follow() {
    let (mut engine, qpn) = engine();
    post(&mut engine, qpn);
    engine.send(&Regions::default(), 0);
    post(&mut engine, qpn);
    assert!(engine.may_defer(qpn));
    engine.sleep = Some(engine.wakeup());
    assert!(!engine.may_defer(qpn), "the thread sleeps");
    engine.sleep = None;
    engine.device.fail(&Error::ForkedChild);
    assert!(!engine.may_defer(qpn), "the engine is dead");
}

/// Sends a message without bytes from the queue pair to itself.
fn send_message(engine: &mut Engine, qpn: Qpn) {
    let qp = engine.schedule(qpn).unwrap();
    let posted = RecvQueue::of(qp).push(&loopback::receive(WrId(0)));
    posted.unwrap();
    send(engine, qpn, &message(WrId(0), &[]));
    engine.send(&Regions::default(), 0);
}

/// Polls until this many packets were received.
fn receive(engine: &mut Engine, packets: u64) {
    while engine.counters().packets_received < packets {
        engine.poll(&Regions::default(), 0);
    }
}

fn sent(engine: &Engine) -> u64 {
    engine.counters().packets_sent
}

/// An engine whose queue pair answered a message at once, and was sent another by itself. Three packets
/// were sent: both messages and the acknowledgement of the first.
fn after_an_answer() -> (Engine, Qpn) {
    after_an_answer_on(None)
}

/// Like [`after_an_answer`], with what the queue of receives calls.
fn after_an_answer_on(on_receive: Option<OnCompletion>) -> (Engine, Qpn) {
    let (mut engine, qpn) = engine_on(AckTimeout::NEVER, on_receive);
    send_message(&mut engine, qpn);
    receive(&mut engine, 1);
    assert_eq!(sent(&engine), 2, "nothing was answered before");
    send_message(&mut engine, qpn);
    (engine, qpn)
}

#[test]
fn an_acknowledgement_leaves_with_the_answer_of_a_program_that_answers_at_once() {
    let (mut engine, qpn) = after_an_answer();
    for round in 0..5 {
        receive(&mut engine, 3 + 2 * round);
        assert_eq!(sent(&engine), 3 + 2 * round, "it is kept back");
        send_message(&mut engine, qpn);
        assert_eq!(sent(&engine), 5 + 2 * round, "both");
    }
}

#[test]
fn an_acknowledgement_does_not_wait_for_a_program_that_polls_without_an_answer() {
    let (mut engine, qpn) = after_an_answer();
    receive(&mut engine, 3);
    for _ in 0..answers::POLLS {
        assert_eq!(sent(&engine), 3);
        assert!(engine.has_work(), "the thread may not sleep");
        engine.poll(&Regions::default(), 0);
    }
    engine.poll(&Regions::default(), 0);
    assert_eq!(sent(&engine), 4);
    // The next one is not kept back.
    send_message(&mut engine, qpn);
    receive(&mut engine, 5);
    assert_eq!(sent(&engine), 6);
}

#[test]
fn an_acknowledgement_that_was_kept_back_leaves_before_a_later_packet_is_processed() {
    let (mut engine, _) = after_an_answer();
    receive(&mut engine, 3);
    let neighbour = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    neighbour.send_to(&[1], engine.wire.socket.local()).unwrap();
    while engine.counters().malformed == 0 {
        assert_eq!(sent(&engine), 3);
        engine.polls = 0;
        engine.poll(&Regions::default(), 0);
    }
    assert_eq!(sent(&engine), 4);
}

#[test]
fn no_acknowledgement_is_kept_back_while_the_thread_sleeps() {
    let (mut engine, _) = after_an_answer();
    engine.sleep = Some(engine.wakeup());
    receive(&mut engine, 3);
    assert_eq!(sent(&engine), 4);
}

#[test]
fn no_acknowledgement_is_kept_back_from_a_program_that_waits_for_an_announcement() {
    for (announcement, packets) in [(Announcement::None, 3), (Announcement::Sent, 4)] {
        let (mut engine, _) = after_an_answer_on(Some(Box::new(move |_| announcement)));
        receive(&mut engine, 3);
        assert_eq!(sent(&engine), packets, "{announcement:?}");
    }
}

#[test]
fn an_acknowledgement_that_was_kept_back_leaves_before_the_queue_pair_ends() {
    let (mut engine, qpn) = after_an_answer();
    receive(&mut engine, 3);
    engine.acknowledge(Qpn::new(qpn.get() ^ 1), &Regions::default());
    assert_eq!(sent(&engine), 3, "another one ends");
    engine.acknowledge(qpn, &Regions::default());
    assert_eq!(sent(&engine), 4);
    engine.acknowledge(qpn, &Regions::default());
    assert_eq!(sent(&engine), 4);
}

#[test]
fn all_queue_pairs_acknowledge_what_they_have_executed_before_the_process_ends() {
    let (mut engine, _) = after_an_answer();
    receive(&mut engine, 3);
    assert_eq!(sent(&engine), 3);
    engine.acknowledge_all(&Regions::default());
    assert_eq!(sent(&engine), 4);
    engine.acknowledge_all(&Regions::default());
    assert_eq!(sent(&engine), 4);
}

/// Posts a WRITE of no bytes, for which the peer needs no receive.
fn post_write(engine: &mut Engine, qpn: Qpn) {
    let nowhere = Remote {
        rkey: Rkey(0),
        addr: 0,
    };
    let write = SendRequest {
        operation: Operation::Write {
            remote: nowhere,
            immediate: None,
        },
        ..message(WrId(0), &[])
    };
    send(engine, qpn, &write);
}

/// The deadline of the queue pair.
fn deadline(engine: &mut Engine, qpn: Qpn) -> Option<Time> {
    engine
        .qps
        .get_mut(qpn.get())
        .unwrap()
        .transport
        .next_deadline()
}

/// An engine whose queue pair has sent a request and received its acknowledgement, and when the timer
/// of that request expires.
fn after_a_request() -> (Engine, Qpn, Time) {
    let (mut engine, qpn) = engine_with(AckTimeout::new(20));
    post_write(&mut engine, qpn);
    engine.send(&Regions::default(), 0);
    let expires = deadline(&mut engine, qpn).unwrap();
    while deadline(&mut engine, qpn).is_some() {
        engine.poll(&Regions::default(), 0);
    }
    (engine, qpn, expires)
}

#[test]
fn a_timer_that_was_stopped_or_moved_is_no_work_when_its_time_comes() {
    let (mut engine, _, expires) = after_a_request();
    assert!(
        !engine.expire(expires, &Regions::default()),
        "it was stopped"
    );
    assert!(engine.timers.is_empty());

    let (mut engine, qpn, expires) = after_a_request();
    post_write(&mut engine, qpn);
    engine.send(&Regions::default(), nanoseconds(expires.elapsed()));
    assert_eq!(engine.wakeup().at, Some(expires), "it is not yet moved");
    let sent = engine.counters().packets_sent;
    assert!(!engine.expire(expires, &Regions::default()), "it was moved");
    let later = deadline(&mut engine, qpn);
    assert!(later > Some(expires));
    assert_eq!(engine.wakeup().at, later);
    assert!(
        engine.expire(later.unwrap(), &Regions::default()),
        "it expires"
    );
    engine.send(&Regions::default(), nanoseconds(later.unwrap().elapsed()));
    assert_eq!(engine.counters().packets_sent, sent + 1);
}

#[test]
fn a_timer_that_is_earlier_than_the_one_before_is_set_at_once() {
    let (mut engine, qpn, expires) = after_a_request();
    post_write(&mut engine, qpn);
    engine.send(&Regions::default(), 1);
    let earlier = deadline(&mut engine, qpn);
    assert!(earlier < Some(expires), "the round trip is known now");
    assert_eq!(engine.wakeup().at, earlier);
    assert_eq!(engine.timers.len(), 1);
}

#[test]
fn a_sleeping_thread_is_woken_once_for_what_happened_since() {
    let (mut engine, qpn) = engine();
    engine.sleep = Some(engine.wakeup());
    assert!(!engine.take_wake_up(), "nothing has happened");
    post(&mut engine, qpn);
    assert!(engine.take_wake_up(), "something is to be sent");
    assert!(!engine.take_wake_up(), "it was woken");
    engine.send(&Regions::default(), 0);
    engine.sleep = Some(Wakeup::default());
    let (now, later) = (engine.now(), Time::since_epoch(Duration::from_secs(9)));
    engine.timers.insert((later, 7));
    assert!(engine.take_wake_up(), "it sleeps without an end");
    engine.sleep = Some(engine.wakeup());
    assert!(!engine.take_wake_up(), "it knows the end");
    engine.timers.insert((now, 8));
    assert!(engine.take_wake_up(), "it sleeps too long");
    engine.sleep = Some(engine.wakeup());
    engine.wire.batch.block();
    assert!(
        engine.take_wake_up(),
        "room in the socket would not wake it"
    );
}

/// Requests whose bytes are in mapped memory are read after a fence of the thread that reads.
#[test]
fn requests_posted_outside_a_poll_are_read_after_a_fence_of_their_own() {
    let driver = gdr_cuda::SimDriver::new(1);
    let gpu = gdr_cuda::Gpu::open(driver.clone(), gdr_cuda::Ordinal(0)).unwrap();
    let memory = gpu.allocate(gdr_cuda::MemoryKind::Plain, 1 << 16).unwrap();
    let context = gdr_copy::Context::builder().simulated(driver);
    let context = context.backend(gdr_copy::BackendKind::Sim).open().unwrap();
    let pinned = context.pin(memory.ptr(), memory.len()).unwrap();
    let buffer = Buffer::direct(pinned.map().unwrap()).unwrap();
    let (mut engine, qpn) = engine();
    let region = Region {
        domain: Domain::TEST,
        addr: buffer.address(),
        len: buffer.len(),
        offset: 0,
        access: Access::all(),
        buffer: buffer.clone(),
        references: References::default(),
        binding: None,
    };
    let regions = Regions::from_iter([(77, Arc::new(region))]);
    let post = |engine: &mut Engine| {
        let segment = gdr_roce::Segment {
            lkey: gdr_roce::Lkey(77),
            addr: buffer.address(),
            len: 64,
        };
        let request = gdr_roce::SendRequest {
            id: WrId(0),
            operation: gdr_roce::Operation::Send { immediate: None },
            data: gdr_roce::Data::Segments(&[segment]),
            flags: gdr_roce::SendFlags::SIGNALLED,
        };
        let qp = engine.schedule(qpn).unwrap();
        let roce = qp.transport.connection().unwrap();
        roce.post_send(&request).unwrap();
    };
    post(&mut engine);
    engine.poll(&regions, 0);
    assert_eq!(buffer.fences(), 1, "in a turn");
    for n in 1..=5 {
        post(&mut engine);
        engine.send(&regions, 0);
        assert_eq!(buffer.fences(), 1 + n, "outside one");
    }
    assert_eq!(engine.counters().packets_sent, 6);
}

/// An acknowledgement for this queue pair, without its ICRC.
fn acknowledgement(qpn: u32) -> Vec<u8> {
    let mut packet = vec![Opcode::Acknowledge as u8, 0, 0xff, 0xff];
    packet.extend(qpn.to_be_bytes());
    packet.resize(20, 0);
    packet
}

#[test]
fn a_poll_without_an_accepted_packet_counts_as_idle() {
    let (mut engine, qpn) = engine();
    let neighbour = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let turns_for = |engine: &mut Engine, datagram: &[u8]| {
        let received = engine.counters().packets_received;
        neighbour
            .send_to(datagram, engine.wire.socket.local())
            .unwrap();
        while engine.counters().packets_received == received {
            assert!(!engine.poll(&Regions::default(), 0));
        }
        engine.counters()
    };
    assert_eq!(turns_for(&mut engine, &[1]).malformed, 1);
    let unknown = acknowledgement(qpn.get() ^ 1);
    assert_eq!(turns_for(&mut engine, &unknown).unknown_queue_pair, 1);
    let foreign = acknowledgement(qpn.get());
    assert_eq!(turns_for(&mut engine, &foreign).wrong_source, 1);
    let change_peer = |engine: &mut Engine, address: [u8; 4]| {
        let peer = engine.qps.get_mut(qpn.get()).unwrap().peer.as_mut();
        let peer = peer.unwrap();
        peer.source_port = SourcePort::Any;
        peer.address.set_ip(address.into());
    };
    change_peer(&mut engine, [127, 0, 0, 9]);
    assert_eq!(turns_for(&mut engine, &foreign).wrong_source, 2);
    change_peer(&mut engine, [127, 0, 0, 1]);
    let damaged = acknowledgement(qpn.get());
    assert_eq!(turns_for(&mut engine, &damaged).icrc_mismatches, 1);
}

#[test]
fn a_poll_with_a_packet_of_the_peer_counts_as_work() {
    let (mut engine, qpn) = engine();
    post(&mut engine, qpn);
    engine.send(&Regions::default(), 0);
    let mut worked = false;
    while engine.counters().packets_received == 0 {
        worked = engine.poll(&Regions::default(), 0);
    }
    assert!(worked);
}

#[test]
fn naks_for_lost_packets_are_counted_on_both_sides() {
    let (mut engine, qpn) = engine();
    // The first of two packets is lost; the second then is out of order.
    post(&mut engine, qpn);
    let qp = engine.qps.get_mut(qpn.get()).unwrap();
    let mut lost = [0; gdr_roce::wire::MAX_DATAGRAM];
    let regions = Regions::default();
    let (cache, mut unfinished) = (RegionCache::default(), Unfinished::default());
    let mut memory = DomainMemory::new(&regions, &cache, Domain::TEST, qpn, &mut unfinished);
    let now = Time::EPOCH;
    assert!(qp.poll_transmit(now, &mut memory, &mut lost).is_some());
    post(&mut engine, qpn);
    engine.send(&regions, 0);
    while engine.counters().sequence_naks_received == 0 {
        engine.poll(&regions, 0);
    }
    let counters = engine.counters();
    assert_eq!(counters.sequence_naks_sent, 1);
    assert_eq!(counters.sequence_naks_received, 1);
    drop(engine.remove(qpn));
    assert_eq!(
        engine.counters(),
        counters,
        "the former queue pair's are kept"
    );
}

/// With more peers than the kernel lists, what strangers send arrives.
#[test]
fn an_empty_datagram_enables_the_raw_socket_only_if_a_peer_sent_it() {
    let (mut engine, _) = engine();
    if engine.wire.socket.raw().is_none() {
        skip::skip("no raw socket (CAP_NET_RAW)");
        return;
    }
    let many: Vec<_> = (1..=17).map(|n| IpAddr::from([127, 0, 9, n])).collect();
    let open = [].iter();
    engine.wire.socket.accept_from(many.iter(), open).unwrap();
    for (from, enabled) in [([127, 0, 0, 3], false), ([127, 0, 0, 1], true)] {
        let sender = UdpSocket::bind((Ipv4Addr::from(from), 0)).unwrap();
        let malformed = engine.counters().malformed;
        // The second one shows that the first has been looked at.
        for datagram in [&[][..], &[1]] {
            sender
                .send_to(datagram, engine.wire.socket.local())
                .unwrap();
        }
        while engine.counters().malformed == malformed {
            engine.poll(&Regions::default(), 0);
        }
        let raw = engine.wire.socket.raw().unwrap();
        assert_eq!(raw.is_enabled(), enabled, "{from:?}");
    }
}
