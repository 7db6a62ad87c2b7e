//! Reliable connections that share a receive queue.
use std::collections::VecDeque;

use crate::fixture::{BASE, Settings, connect};
use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, Completion, Data, Event, HeapMemory, Immediate, Lkey, Mtu, Operation, PostError, Qpn,
    QueuePair, RecvRequest, Remote, Rkey, Segment, SendFlags, SendRequest, SharedReceiveQueue,
    State, Time, WcOpcode, WcStatus, WrId,
};
use proptest::prelude::*;

/// The number of connections.
const PAIRS: usize = 3;
/// The length of each receive in bytes; the receive with identifier `n` starts at `n` times this length.
const ROOM: u32 = 1024;

/// Connections whose receiving ends share a queue, over a lossless network.
struct Hub {
    queue: SharedReceiveQueue,
    clients: Vec<QueuePair>,
    servers: Vec<QueuePair>,
    memory: HeapMemory,
    lkey: Lkey,
    rkey: Rkey,
    now: Time,
}

impl Hub {
    fn new(max_wr: u32) -> Self {
        let settings = Settings {
            mtu: Mtu::B256,
            ..Settings::default()
        };
        let queue = SharedReceiveQueue::new(max_wr);
        let qpn = |side: u32, n: usize| Qpn::new(0x100 * side + 2 + n as u32);
        let (caps, config) = (settings.caps, settings.config);
        let clients = (0..PAIRS).map(|n| {
            let qp = QueuePair::with_config(qpn(1, n), caps, config);
            connect(qp, qpn(2, n), 0, &settings)
        });
        let servers = (0..PAIRS).map(|n| {
            let qp = QueuePair::with_shared_receives(qpn(2, n), caps, config, &queue);
            connect(qp, qpn(1, n), 1, &settings)
        });
        let mut memory = HeapMemory::new();
        let (lkey, rkey) = memory.register(BASE, vec![0; 64 * ROOM as usize], Access::all());
        Self {
            clients: clients.collect(),
            servers: servers.collect(),
            queue,
            memory,
            lkey,
            rkey,
            now: Time::EPOCH,
        }
    }

    fn post(&self, id: u64) -> Result<(), PostError> {
        self.queue.post(&RecvRequest {
            id: WrId(id),
            segments: &[Segment {
                lkey: self.lkey,
                addr: BASE + id * u64::from(ROOM),
                len: ROOM,
            }],
        })
    }

    /// Sends `len` bytes of the value `byte` from a client.
    fn send(&mut self, client: usize, byte: u8, len: usize) {
        // Not inline, as inline data is limited to 256 bytes.
        let (lkey, _) = self
            .memory
            .register(0, vec![byte; len], Access::LOCAL_WRITE);
        let segments = [Segment {
            lkey,
            addr: 0,
            len: len as u32,
        }];
        self.post_operation(
            client,
            Operation::Send {
                immediate: Some(Immediate(byte.into())),
            },
            &segments,
        );
    }

    fn post_operation(&mut self, client: usize, operation: Operation, segments: &[Segment]) {
        let request = SendRequest {
            id: WrId(0),
            operation,
            data: Data::Segments(segments),
            flags: SendFlags::SIGNALLED,
        };
        self.clients[client].post_send(&request).unwrap();
    }

    /// Carries the next packet of each queue pair. Returns false if there is none.
    fn carry(&mut self) -> bool {
        let mut out = [0; MAX_DATAGRAM];
        let mut any = false;
        for n in 0..PAIRS {
            let (client, server) = (&mut self.clients[n], &mut self.servers[n]);
            let Self { memory, now, .. } = self;
            let mut carry = |from: &mut QueuePair, to: &mut QueuePair| {
                if let Some(len) = from.poll_transmit(*now, memory, &mut out) {
                    any = true;
                    to.receive(*now, &Packet::new(&out[..len]).unwrap(), memory);
                }
            };
            carry(client, server);
            carry(server, client);
        }
        any
    }

    /// Carries all packets that can be sent now.
    fn settle(&mut self) {
        while self.carry() {}
    }

    /// Advances to the next deadline of a client, and settles.
    fn wait(&mut self) {
        let deadlines = self.clients.iter().filter_map(QueuePair::next_deadline);
        self.now = deadlines.min().unwrap();
        for client in &mut self.clients {
            client.handle_deadline(self.now);
        }
        self.settle();
    }

    fn received(&mut self, server: usize) -> Vec<Completion> {
        std::iter::from_fn(|| self.servers[server].poll_completion()).collect()
    }

    fn sent(&mut self, client: usize) -> Vec<WcStatus> {
        let completions = std::iter::from_fn(|| self.clients[client].poll_completion());
        completions.map(|completion| completion.status).collect()
    }

    fn events(&mut self, server: usize) -> Vec<Event> {
        let events = std::iter::from_fn(|| self.servers[server].poll_event());
        events.collect()
    }

    fn bytes(&self, id: u64, len: usize) -> &[u8] {
        let at = id as usize * ROOM as usize;
        &self.memory.bytes(self.lkey).unwrap()[at..at + len]
    }
}

#[test]
fn messages_take_receives_in_the_order_of_arrival_at_any_queue_pair() {
    let mut hub = Hub::new(8);
    (0..3).for_each(|id| hub.post(id).unwrap());
    for (client, byte) in [(2, 12), (0, 10), (1, 11)] {
        hub.send(client, byte, 5);
        hub.settle();
    }
    for (id, server, byte) in [(0, 2, 12), (1, 0, 10), (2, 1, 11)] {
        let received = hub.received(server);
        let [completion] = received[..] else {
            panic!("{received:?}");
        };
        assert_eq!(completion.id, WrId(id));
        assert_eq!(completion.qpn, hub.servers[server].qpn());
        assert_eq!((completion.byte_len, completion.source_qpn), (5, None));
        assert_eq!(hub.bytes(id, 5), [byte; 5]);
    }
}

#[test]
fn long_messages_that_arrive_together_do_not_mix() {
    let mut hub = Hub::new(8);
    (0..3).for_each(|id| hub.post(id).unwrap());
    for client in 0..PAIRS {
        hub.send(client, client as u8 + 1, 1000);
    }
    // One packet from each in turn.
    hub.settle();
    for server in 0..PAIRS {
        let received = hub.received(server);
        assert_eq!(received.len(), 1);
        let WrId(id) = received[0].id;
        assert_eq!(hub.bytes(id, 1000), [server as u8 + 1; 1000]);
    }
}

#[test]
fn without_a_receive_every_peer_waits_until_one_is_posted() {
    let mut hub = Hub::new(8);
    for client in 0..PAIRS {
        hub.send(client, 1, 5);
    }
    hub.settle();
    for client in 0..PAIRS {
        assert!(hub.sent(client).is_empty());
        assert_eq!(hub.clients[client].statistics().rnr_naks_received, 1);
    }
    (0..3).for_each(|id| hub.post(id).unwrap());
    hub.wait();
    for client in 0..PAIRS {
        assert_eq!(hub.sent(client), [WcStatus::Success]);
    }
    assert!(hub.queue.is_empty());
}

#[test]
fn a_write_with_immediate_takes_a_receive_only_if_it_is_executed() {
    let mut hub = Hub::new(8);
    hub.post(0).unwrap();
    let write = |rkey| Operation::Write {
        remote: Remote { rkey, addr: BASE },
        immediate: Some(Immediate(7)),
    };
    let segments = [Segment {
        lkey: hub.lkey,
        addr: BASE + 4096,
        len: 16,
    }];
    hub.post_operation(0, write(Rkey(1)), &segments);
    hub.settle();
    assert_eq!(hub.sent(0), [WcStatus::RemoteAccess]);
    assert!(hub.received(0).is_empty());
    assert_eq!(hub.queue.len(), 1, "for the others");

    hub.post_operation(1, write(hub.rkey), &segments);
    hub.settle();
    let received = hub.received(1);
    assert_eq!(received[0].opcode, WcOpcode::RecvWriteImmediate);
    assert_eq!(received[0].id, WrId(0));
}

#[test]
fn a_queue_pair_in_error_flushes_only_the_receive_that_it_has_taken() {
    let mut hub = Hub::new(8);
    (0..3).for_each(|id| hub.post(id).unwrap());
    hub.send(0, 1, 1000);
    assert!(hub.carry(), "the first of four packets");
    hub.servers[0].to_error();
    hub.servers[0].to_error();
    let flushed = hub.received(0);
    assert_eq!(flushed.len(), 1);
    assert_eq!(
        (flushed[0].id, flushed[0].status),
        (WrId(0), WcStatus::WrFlushed)
    );
    assert_eq!(hub.events(0), [Event::LastWqeReached], "once");
    assert_eq!(hub.queue.len(), 2);
    hub.send(1, 2, 5);
    hub.settle();
    assert_eq!(hub.received(1)[0].id, WrId(1));
    assert!(hub.events(1).is_empty());
}

#[test]
fn a_message_longer_than_its_receive_fails_one_connection_only() {
    let mut hub = Hub::new(8);
    (0..2).for_each(|id| hub.post(id).unwrap());
    hub.send(0, 1, ROOM as usize + 1);
    hub.settle();
    assert_eq!(hub.sent(0), [WcStatus::RemoteInvalidRequest]);
    assert_eq!(hub.received(0)[0].status, WcStatus::LocalLength);
    assert_eq!(hub.servers[0].state(), State::Error);
    let expected = [Event::InvalidRequest, Event::LastWqeReached];
    assert_eq!(hub.events(0), expected);
    hub.send(1, 2, 5);
    hub.settle();
    assert_eq!(hub.received(1)[0].id, WrId(1));
}

#[test]
fn a_queue_pair_in_reset_puts_the_receive_that_it_has_taken_back_in_front() {
    let mut hub = Hub::new(8);
    (0..2).for_each(|id| hub.post(id).unwrap());
    hub.send(0, 1, 1000);
    assert!(hub.carry());
    assert_eq!(hub.queue.len(), 1);
    hub.servers[0].to_reset();
    assert_eq!(hub.queue.len(), 2);
    assert!(hub.received(0).is_empty());
    hub.send(1, 2, 5);
    hub.settle();
    assert_eq!(hub.received(1)[0].id, WrId(0));
    // It still uses the shared queue.
    let own = RecvRequest {
        id: WrId(9),
        segments: &[],
    };
    hub.servers[0].to_init(Access::all()).unwrap();
    assert_eq!(
        hub.servers[0].post_recv(&own),
        Err(PostError::SharedReceives)
    );
}

#[test]
fn a_queue_pair_with_a_shared_queue_has_none_of_its_own() {
    let mut hub = Hub::new(8);
    let own = RecvRequest {
        id: WrId(0),
        segments: &[],
    };
    assert_eq!(
        hub.servers[0].post_recv(&own),
        Err(PostError::SharedReceives)
    );
}

/// A step of [`every_message_takes_one_receive_in_order`].
#[derive(Clone, Debug)]
enum Step {
    Post,
    Send { client: usize, len: usize },
    Carry,
    Wait,
    Fail { server: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Post),
        6 => (0..PAIRS, 0..ROOM as usize).prop_map(|(client, len)| Step::Send { client, len }),
        12 => Just(Step::Carry),
        4 => Just(Step::Wait),
        1 => (0..PAIRS).prop_map(|server| Step::Fail { server }),
    ]
}

proptest! {
    #[test]
    fn every_message_takes_one_receive_in_order(
        steps in proptest::collection::vec(step(), 0..120),
    ) {
        let mut hub = Hub::new(4);
        let mut posted = VecDeque::new();
        let mut next = 0;
        let mut successes = [0; PAIRS];
        for step in steps {
            match step {
                Step::Post => {
                    if next < 60 && hub.post(next).is_ok() {
                        posted.push_back(WrId(next));
                        next += 1;
                    }
                }
                Step::Send { client, len } => {
                    if hub.clients[client].state() == State::ReadyToSend
                        && len % 7 != 0
                    {
                        hub.send(client, client as u8, len);
                        hub.carry();
                    }
                }
                Step::Carry => {
                    hub.carry();
                }
                Step::Wait => {
                    if hub.clients.iter().any(|client| client.next_deadline().is_some()) {
                        hub.wait();
                    }
                }
                Step::Fail { server } => hub.servers[server].to_error(),
            }
            let received = |server| hub.received(server).into_iter().map(move |done| (server, done));
            let mut received: Vec<_> = (0..PAIRS).flat_map(received).collect();
            received.sort_by_key(|(_, completion)| completion.id.0);
            for (server, completion) in received {
                // Each completion belongs to a posted receive that had not completed before.
                let at = posted.iter().position(|id| *id == completion.id);
                let at = at.ok_or_else(|| TestCaseError::fail("completed twice"))?;
                // Earlier incomplete receives were taken by other queue pairs.
                prop_assert!(at < PAIRS);
                posted.remove(at);
                successes[server] += usize::from(completion.status == WcStatus::Success);
            }
            // No receive is lost: each is queued, complete, or in use by one queue pair.
            let queued = hub.queue.len();
            prop_assert!((queued..=queued + PAIRS).contains(&posted.len()));
        }
        for (client, successes) in successes.iter().enumerate() {
            let sent = hub.sent(client);
            let acknowledged = sent.iter().filter(|status| **status == WcStatus::Success);
            prop_assert!(acknowledged.count() <= *successes);
        }
    }
}
