//! Connections that share a receive queue.

use gdr_rdma::{
    AsyncEvent, Buffer, Error, Event, Foreign, MemoryRegion, NicError, PostError, QueuePair,
    QueuePairOptions, RecvRequest, RnrRetry, SendRequest, SharedReceiveQueue, State, WcStatus,
    WrId,
};

use crate::fixture::*;

/// The number of connections that share the queue.
const PAIRS: usize = 3;
/// The length of a receive in bytes; receive `n` starts at offset `n * ROOM`.
const ROOM: usize = 64;

/// A side whose queue pairs share a receive queue, and a peer with as many queue pairs.
struct Hub {
    near: Side,
    far: Side,
    clients: Vec<QueuePair>,
    servers: Vec<QueuePair>,
    queue: SharedReceiveQueue,
    memory: MemoryRegion,
}

impl Hub {
    fn new(max_wr: u32) -> Option<Self> {
        let (near, far) = (Side::soft(FIRST)?, Side::soft(SECOND)?);
        let queue = far.domain.shared_receive_queue(max_wr).unwrap();
        let (near_options, far_options) = (
            QueuePairOptions::new(&near.queue),
            QueuePairOptions::new(&far.queue).shared_receive_queue(&queue),
        );
        let make = |side: &Side, options| {
            let pair = |_| side.domain.queue_pair(options).unwrap();
            (0..PAIRS).map(pair).collect::<Vec<_>>()
        };
        let clients = make(&near, &near_options);
        let servers = make(&far, &far_options);
        for (client, server) in clients.iter().zip(&servers) {
            client.connect(&server.endpoint(), &options()).unwrap();
            server.connect(&client.endpoint(), &options()).unwrap();
        }
        Some(Self {
            memory: far.memory(32 * ROOM),
            near,
            far,
            clients,
            servers,
            queue,
        })
    }

    fn post(&self, id: u64) -> Result<(), Error> {
        let segment = self.memory.segment(id * ROOM as u64, ROOM as u64);
        let request = RecvRequest::new(WrId(id)).segment(segment.unwrap());
        self.queue.post_recv(request)
    }

    fn send(&self, client: usize, bytes: &[u8]) {
        let request = SendRequest::send(WrId(client as u64)).inline(bytes);
        self.clients[client].post_send(request).unwrap();
    }
}

#[test]
fn three_connections_take_receives_in_the_order_of_arrival() {
    let Some(hub) = Hub::new(8) else { return };
    (0..6).for_each(|id| hub.post(id).unwrap());
    for (id, client) in [2, 0, 1, 1, 2, 0].into_iter().enumerate() {
        let message = [client as u8 + 1; 8];
        hub.send(client, &message);
        let received = hub.far.done();
        assert_eq!(received.id, WrId(id as u64));
        assert_eq!(received.qpn, hub.servers[client].qpn());
        assert_eq!((received.byte_len, received.source_qpn), (8, None));
        assert_eq!(bytes(&hub.memory)[id * ROOM..][..8], message);
        assert_eq!(hub.near.done().id, WrId(client as u64));
    }
}

#[test]
fn peers_wait_while_the_queue_is_empty_and_none_waits_for_ever() {
    let Some(hub) = Hub::new(8) else { return };
    for client in 0..PAIRS {
        hub.send(client, b"hello");
    }
    // Each client has received an RNR NAK.
    wait_until(|| hub.near.device.counters().packets_received >= 3);
    assert!(hub.near.queue.poll().unwrap().is_none());
    (0..3).for_each(|id| hub.post(id).unwrap());
    let mut ids: Vec<_> = (0..3).map(|_| hub.far.done().id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2]);
    for _ in 0..3 {
        hub.near.done();
    }
}

#[test]
fn a_peer_without_retries_fails_on_an_empty_queue() {
    let (Some(a), Some(mut b)) = (Side::soft(FIRST), Side::soft(SECOND)) else {
        return;
    };
    let queue = b.domain.shared_receive_queue(4).unwrap();
    let shared = QueuePairOptions::new(&b.queue).shared_receive_queue(&queue);
    b.pair = b.domain.queue_pair(&shared).unwrap();
    let mut options = options();
    options.rnr_retry = RnrRetry::new(1);
    connect(&a, &b, &options);
    a.pair
        .post_send(SendRequest::send(WrId(0)).inline(b"hello?"))
        .unwrap();
    assert_eq!(a.status(), WcStatus::RnrRetryExceeded);
}

#[test]
fn the_limit_event_is_raised_once_when_the_queue_falls_below_it() {
    let Some(hub) = Hub::new(8) else { return };
    (0..4).for_each(|id| hub.post(id).unwrap());
    hub.queue.arm_limit(3).unwrap();
    let srq = hub.queue.number();
    let limit = AsyncEvent::SharedReceiveQueueLimit { srq };
    hub.send(0, b"four to three");
    hub.far.done();
    assert_eq!(hub.far.device.poll_event(), None);
    assert_eq!(hub.queue.limit(), 3);
    hub.send(1, b"three to two");
    assert_eq!(hub.far.device.wait_event(soon()).unwrap(), limit);
    hub.far.done();
    assert_eq!(hub.queue.limit(), 0);
    hub.send(2, b"two to one");
    hub.far.done();
    assert_eq!(hub.far.device.poll_event(), None);
    // The limit is above the number of queued receives, so arming it raises the event at once.
    hub.queue.arm_limit(2).unwrap();
    assert_eq!(hub.far.device.poll_event(), Some(limit));
}

#[test]
fn a_queue_pair_that_fails_leaves_the_receives_to_the_others() {
    let Some(hub) = Hub::new(8) else { return };
    (0..3).for_each(|id| hub.post(id).unwrap());
    hub.send(0, &[1; ROOM + 1]);
    let failed = hub.far.queue.wait(soon()).unwrap();
    assert_eq!((failed.id, failed.status), (WrId(0), WcStatus::LocalLength));
    assert_eq!(hub.near.status(), WcStatus::RemoteInvalidRequest);
    assert_eq!(hub.servers[0].state(), State::Error);
    let qpn = hub.servers[0].qpn();
    for event in [Event::InvalidRequest, Event::LastWqeReached] {
        let expected = AsyncEvent::QueuePair { qpn, event };
        assert_eq!(hub.far.device.wait_event(soon()).unwrap(), expected);
    }
    hub.send(1, b"hello");
    assert_eq!(hub.far.done().id, WrId(1));
    hub.servers[2].to_error();
    assert!(
        hub.far.queue.poll().unwrap().is_none(),
        "nothing is flushed"
    );
}

#[test]
fn a_queue_pair_that_is_dropped_leaves_the_receives_and_their_memory_to_the_others() {
    let Some(mut hub) = Hub::new(8) else { return };
    (0..2).for_each(|id| hub.post(id).unwrap());
    drop(hub.servers.remove(0));
    hub.send(1, b"hello");
    assert_eq!(hub.far.done().id, WrId(0));
    // A region lives as long as a request refers to it, and the queue as long as a queue pair uses it.
    let Hub {
        queue,
        memory,
        near,
        far,
        servers,
        clients,
    } = hub;
    let buffer = memory.buffer().clone();
    drop((memory, queue));
    let request = SendRequest::send(WrId(0)).inline(b"again");
    clients[1].post_send(request).unwrap();
    assert_eq!(far.done().id, WrId(1));
    let mut bytes = [0; 5];
    buffer.read_at(ROOM as u64, &mut bytes).unwrap();
    assert_eq!(&bytes, b"again");
    drop((servers, near));
}

#[test]
fn a_full_queue_a_foreign_region_and_a_foreign_queue_are_refused() {
    let Some(hub) = Hub::new(2) else { return };
    hub.post(0).unwrap();
    hub.post(1).unwrap();
    let full = hub.post(2);
    assert!(matches!(
        full,
        Err(Error::Nic(NicError::Post(PostError::Full(2))))
    ));
    let own = hub.servers[0].post_recv(RecvRequest::new(WrId(0)));
    assert!(matches!(
        own,
        Err(Error::Nic(NicError::Post(PostError::SharedReceives)))
    ));

    let elsewhere = hub.far.device.protection_domain();
    let region = elsewhere.register(&Buffer::host(8).unwrap(), EVERYTHING);
    let segment = region.unwrap().segment(0, 8).unwrap();
    let foreign = hub
        .queue
        .post_recv(RecvRequest::new(WrId(0)).segment(segment));
    assert!(matches!(
        foreign,
        Err(Error::Nic(NicError::Foreign(Foreign::MemoryRegion)))
    ));
    let options = QueuePairOptions::new(&hub.far.queue).shared_receive_queue(&hub.queue);
    for domain in [&elsewhere, &hub.near.domain] {
        assert!(matches!(
            domain.queue_pair(&options),
            Err(Error::Nic(NicError::Foreign(_)))
        ));
    }
}
