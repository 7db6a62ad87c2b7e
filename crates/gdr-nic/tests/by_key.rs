//! Queue pairs, datagrams and shared receive queues whose memory is named by key.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use gdr_nic::{
    Access, AckTimeout, AsyncEvent, Capabilities, Completion, CompletionCounter, CompletionQueue,
    Connection, CountedOperation, CounterUnit, Data, Datagrams, Deadline, Device, Domain, Error,
    Event, Foreign, Lkey, Memory, Mtu, Operation, PostError, Psn, Qkey, QueuePair, Queues,
    RecvRequest, Region, Reliability, Remote, RetryCount, RetryLimit, Rkey, RnrRetry, RnrTimer,
    RtrAttributes, RtsAttributes, Segment, SendFlags, SendRequest, SharedReceiveQueue, SoftOptions,
    State, UdSendRequest, WcStatus, WrId,
};
use gdr_roce::wire::Grh;

const SIGNALLED: SendFlags = SendFlags::SIGNALLED;
const QKEY: Qkey = Qkey(0x1111_1111);
const CAPABILITIES: Capabilities = Capabilities {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_inline: 64,
};
/// The I/O virtual address of the memory.
const IOVA: u64 = 0x1000;
const LEN: usize = 256;

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Calls `check` until it returns `true`.
fn wait_until(mut check: impl FnMut() -> bool) {
    let deadline = soon();
    while !check() {
        assert!(!deadline.has_passed());
        thread::yield_now();
    }
}

/// A device with registered memory that is never freed.
struct Front {
    device: Device,
    domain: Domain,
    queue: CompletionQueue,
    region: Region,
    memory: *mut u8,
}

impl Front {
    /// Returns one end of a reliable connection, in RESET.
    fn connection(&self) -> QueuePair<Connection> {
        let queues = Queues::completing_in(&self.queue);
        let reliable = Reliability::Reliable;
        let made = self
            .device
            .queue_pair(self.domain, queues, CAPABILITIES, reliable);
        made.unwrap()
    }

    fn new() -> Self {
        Self::with_access(Access::LOCAL_WRITE)
    }

    fn with_access(access: Access) -> Self {
        let device = Device::open(&SoftOptions::default().port(0), None).unwrap();
        let domain = Domain::new();
        let bytes: &mut [u8] = Box::leak(Box::new([0; LEN]));
        let memory = bytes.as_mut_ptr();
        let range = Memory {
            address: memory.expose_provenance(),
            len: LEN,
            iova: IOVA,
        };
        // SAFETY: the bytes are never freed, and are accessed by volatile reads only.
        let region = unsafe { device.register(domain, range, access) }.unwrap();
        Self {
            queue: device.completion_queue(64, None),
            device,
            domain,
            region,
            memory,
        }
    }

    fn queues<'a>(&'a self, shared_receives: Option<&'a SharedReceiveQueue>) -> Queues<'a> {
        Queues {
            send: &self.queue,
            recv: &self.queue,
            shared_receives,
        }
    }

    fn datagrams(&self, shared: Option<&SharedReceiveQueue>) -> QueuePair<Datagrams> {
        let queues = self.queues(shared);
        let made = self
            .device
            .ud_queue_pair(self.domain, queues, CAPABILITIES, Mtu::B1024);
        made.unwrap()
    }

    fn segment(&self) -> Segment {
        Segment {
            lkey: Lkey(self.region.key()),
            addr: IOVA,
            len: LEN as u32,
        }
    }

    /// Returns the byte at an offset.
    fn byte(&self, at: usize) -> u8 {
        assert!(at < LEN);
        // SAFETY: the offset is in the memory, which is never freed.
        unsafe { self.memory.add(at).read_volatile() }
    }

    fn next(&self) -> Completion {
        let (mut next, deadline) = (None, soon());
        while next.is_none() {
            assert!(!deadline.has_passed());
            self.queue.poll(1, &mut |done| next = Some(done)).unwrap();
        }
        next.unwrap()
    }

    /// Sends a datagram between two queue pairs of this device.
    fn send(
        &self,
        from: &QueuePair<Datagrams>,
        to: &QueuePair<Datagrams>,
        qkey: Qkey,
        bytes: &[u8],
    ) {
        let request = UdSendRequest {
            id: WrId(9),
            to: self.device.address(),
            dest_qpn: to.qpn(),
            qkey,
            immediate: None,
            data: Data::Inline(bytes),
            flags: SendFlags::empty(),
        };
        let posted = from.post_sends(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }
}

fn start(pair: &QueuePair<Datagrams>) {
    pair.to_init(QKEY).unwrap();
    pair.to_rtr().unwrap();
    pair.to_rts(Psn::new(3)).unwrap();
}

/// Connects a queue pair to itself.
fn connect_to_itself(front: &Front, pair: &QueuePair<Connection>) {
    pair.to_init(Access::REMOTE_WRITE).unwrap();
    let to = RtrAttributes {
        dest_qpn: pair.qpn(),
        rq_psn: Psn::new(7),
        path_mtu: Mtu::B1024,
        max_dest_rd_atomic: 1,
        min_rnr_timer: RnrTimer::new(12),
    };
    pair.to_rtr(front.device.address(), &to).unwrap();
    let from = RtsAttributes {
        sq_psn: Psn::new(7),
        timeout: AckTimeout::new(14),
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 1,
    };
    pair.to_rts(&from).unwrap();
}

#[test]
fn a_queue_pair_for_datagrams_goes_through_its_states_again_after_a_reset() {
    let front = Front::new();
    let (a, b) = (front.datagrams(None), front.datagrams(None));
    start(&a);
    let segments = [front.segment()];
    let receive = |id| RecvRequest {
        id: WrId(id),
        segments: &segments,
    };
    let post = |id| b.post_recvs(|queue| queue.push(&receive(id))).unwrap();
    for round in 0..3 {
        assert_eq!(b.state(), State::Reset);
        assert_eq!(post(0), Err(PostError::State(State::Reset)));
        start(&b);
        assert!(matches!(b.to_init(QKEY), Err(Error::State(_))));
        post(round).unwrap();
        post(77).unwrap();
        front.send(&a, &b, QKEY, &[round as u8 + 1; 8]);
        let received = front.next();
        assert_eq!(received.id, WrId(round));
        assert_eq!(received.status, WcStatus::Success);
        assert_eq!(received.source_qpn, Some(a.qpn()));
        assert_eq!(front.byte(Grh::LEN), round as u8 + 1);
        // The reset discards the other receive without a completion.
        b.reset().unwrap();
    }
    assert_eq!(front.queue.poll(1, &mut |_| ()).unwrap(), 0);
}

#[test]
fn a_reset_removes_the_completions_of_its_queue_pair_only() {
    let front = Front::new();
    let (a, b) = (front.datagrams(None), front.datagrams(None));
    let segments = [front.segment()];
    for (pair, id) in [(&a, 1), (&b, 2)] {
        start(pair);
        let receive = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        let posted = pair.post_recvs(|queue| queue.push(&receive));
        posted.unwrap().unwrap();
        pair.to_error().unwrap();
    }
    a.reset().unwrap();
    let flushed = front.next();
    assert_eq!((flushed.id, flushed.qpn), (WrId(2), b.qpn()));
    assert_eq!(flushed.status, WcStatus::WrFlushed);
    assert_eq!(front.queue.poll(1, &mut |_| ()).unwrap(), 0);
}

#[test]
fn received_bytes_whose_completions_no_one_took_are_counted() {
    let front = Front::new();
    let (a, b) = (front.datagrams(None), front.datagrams(None));
    start(&a);
    let segments = [front.segment()];
    let mut received = 0;
    // Receives a datagram; returns the counters of received and of untaken bytes.
    let mut receive = |len| {
        start(&b);
        let receive = RecvRequest {
            id: WrId(1),
            segments: &segments,
        };
        b.post_recvs(|queue| queue.push(&receive)).unwrap().unwrap();
        front.send(&a, &b, QKEY, &[7; LEN][..len]);
        received += (Grh::LEN + len) as u64;
        let deadline = soon();
        while front.device.counters().payload.receive < received {
            assert!(!deadline.has_passed());
            front.device.progress();
        }
        let payload = front.device.counters().payload;
        (payload.receive, payload.untaken)
    };
    let header = Grh::LEN as u64;
    assert_eq!(receive(8), (header + 8, header + 8), "not yet");
    assert_eq!(front.next().status, WcStatus::Success);
    b.reset().unwrap();
    assert_eq!(receive(9), (2 * header + 17, header + 9), "one was taken");
    b.reset().unwrap();
    let untaken = 2 * header + 19;
    assert_eq!(receive(10), (3 * header + 27, untaken), "the reset");
    drop((a, b));
    let (device, queue) = (front.device, front.queue);
    drop(queue);
    let payload = device.counters().payload;
    assert_eq!(payload.receive, 3 * header + 27);
    assert_eq!(payload.untaken, untaken, "the end of the queue");
}

#[test]
fn a_replaced_region_keeps_its_key_and_receives_in_the_new_memory() {
    let (front, new) = (Front::new(), Front::new());
    let (a, b) = (front.datagrams(None), front.datagrams(None));
    start(&a);
    start(&b);
    let key = front.region.key();
    let range = Memory {
        address: new.memory.expose_provenance(),
        len: LEN,
        iova: IOVA,
    };
    // SAFETY: the bytes are never freed, and are accessed by volatile reads only.
    let by = unsafe {
        front
            .device
            .register(front.domain, range, Access::LOCAL_WRITE)
    }
    .unwrap();
    let ended = by.key();
    front.region.replace(by).unwrap();
    assert_eq!(front.region.key(), key);
    let mut segments = [front.segment()];
    let mut receive = |lkey| {
        segments[0].lkey = Lkey(lkey);
        let receive = RecvRequest {
            id: WrId(1),
            segments: &segments,
        };
        let posted = b.post_recvs(|queue| queue.push(&receive));
        posted.unwrap().unwrap();
        front.send(&a, &b, QKEY, &[7; 8]);
        front.next().status
    };
    assert_eq!(receive(key), WcStatus::Success);
    assert_eq!((front.byte(Grh::LEN), new.byte(Grh::LEN)), (0, 7));
    assert_eq!(receive(ended), WcStatus::LocalProtection);
    let refused = front.region.replace(new.region).unwrap_err().to_string();
    assert_eq!(refused, Error::Foreign(Foreign::MemoryRegion).to_string());
}

#[test]
fn a_changed_queue_key_is_that_of_the_next_datagram() {
    let front = Front::new();
    let (a, b) = (front.datagrams(None), front.datagrams(None));
    start(&a);
    start(&b);
    let segments = [front.segment()];
    let receive = RecvRequest {
        id: WrId(1),
        segments: &segments,
    };
    b.post_recvs(|queue| queue.push(&receive)).unwrap().unwrap();
    b.set_qkey(Qkey(5)).unwrap();
    front.send(&a, &b, QKEY, b"old");
    wait_until(|| {
        front.device.progress();
        front.device.counters().wrong_qkey == 1
    });
    front.send(&a, &b, Qkey(5), b"new");
    assert_eq!(front.next().byte_len, 43);
}

#[test]
fn shared_receives_are_posted_by_key_and_outlive_a_queue_pair() {
    let front = Front::new();
    let shared = front.device.shared_receive_queue(front.domain, 4).unwrap();
    let (a, b) = (front.datagrams(None), front.datagrams(Some(&shared)));
    let c = front.datagrams(Some(&shared));
    [&a, &b, &c].into_iter().for_each(start);
    let segments = [front.segment()];
    for id in 0..3 {
        let receive = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        shared.post(&receive).unwrap().unwrap();
        let refused = b.post_recvs(|queue| queue.push(&receive)).unwrap();
        assert_eq!(refused, Err(PostError::SharedReceives));
    }
    shared.arm_limit(2).unwrap();
    assert_eq!(shared.limit().unwrap(), 2);
    front.send(&a, &b, QKEY, b"first");
    assert_eq!(front.next().id, WrId(0));
    b.to_error().unwrap();
    let (qpn, event) = (b.qpn(), Event::LastWqeReached);
    let expected = AsyncEvent::QueuePair { qpn, event };
    assert_eq!(front.device.poll_event(), Some(expected));
    drop(b);
    front.send(&a, &c, QKEY, b"second");
    assert_eq!(front.next().id, WrId(1));
    let srq = shared.number();
    let expected = AsyncEvent::SharedReceiveQueueLimit { srq };
    assert_eq!(front.device.poll_event(), Some(expected));
    assert_eq!(shared.limit().unwrap(), 0);
}

#[test]
fn a_shared_queue_of_another_domain_is_refused() {
    let front = Front::new();
    let shared = front.device.shared_receive_queue(Domain::new(), 4).unwrap();
    let queues = front.queues(Some(&shared));
    let refused =
        front
            .device
            .queue_pair(front.domain, queues, CAPABILITIES, Reliability::Reliable);
    let foreign = Error::Foreign(Foreign::SharedReceiveQueue).to_string();
    assert_eq!(refused.unwrap_err().to_string(), foreign);
}

/// Posts a WRITE of one byte for each identifier, either all or none.
fn post_batch(
    front: &Front,
    pair: &QueuePair<Connection>,
    ids: std::ops::Range<u64>,
    flags: SendFlags,
) -> Result<(), PostError> {
    let post = |id| SendRequest {
        id: WrId(id),
        operation: Operation::Write {
            remote: Remote {
                rkey: Rkey(front.region.key()),
                addr: IOVA + id,
            },
            immediate: None,
        },
        data: Data::Inline(&[7]),
        flags,
    };
    let posted = pair.post_sends(|queue| {
        queue.all_or_none(|queue| ids.into_iter().try_for_each(|id| queue.push(&post(id))))
    });
    posted.unwrap()
}

#[test]
fn of_a_batch_with_a_refused_request_nothing_is_sent_or_completes() {
    let front = Front::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let pair = front.connection();
    connect_to_itself(&front, &pair);
    let sent = front.device.counters().payload.write;
    assert_eq!(
        post_batch(&front, &pair, 0..5, SIGNALLED),
        Err(PostError::Full(4))
    );
    assert_eq!(front.device.counters().payload.write, sent);
    post_batch(&front, &pair, 10..14, SIGNALLED).unwrap();
    let ids = [(); 4]
        .map(|()| front.next())
        .map(|done| (done.id, done.status));
    let expected = [10, 11, 12, 13].map(|id| (WrId(id), WcStatus::Success));
    assert_eq!(ids, expected);
    assert_eq!((0..5).map(|at| front.byte(at)).max(), Some(0));
    assert_eq!(front.device.counters().payload.write, sent + 4);
    // A queue pair in ERR flushes the requests that it accepts.
    pair.to_error().unwrap();
    let failing = pair.post_sends(|queue| {
        queue.all_or_none(|queue| {
            let empty = SendRequest {
                id: WrId(20),
                operation: Operation::Send { immediate: None },
                data: Data::Inline(&[]),
                flags: SendFlags::SIGNALLED,
            };
            queue.push(&empty)?;
            queue.push(&SendRequest {
                data: Data::Inline(&[0; 65]),
                ..empty
            })
        })
    });
    let too_long = PostError::InlineTooLong { len: 65, max: 64 };
    assert_eq!(failing.unwrap(), Err(too_long));
    post_batch(&front, &pair, 21..22, SIGNALLED).unwrap();
    let flushed = front.next();
    assert_eq!(
        (flushed.id, flushed.status),
        (WrId(21), WcStatus::WrFlushed)
    );
}

#[test]
fn counters_forget_requests_that_were_taken_back() {
    let front = Front::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let pair = front.connection();
    let counter = CompletionCounter::new(CounterUnit::Requests);
    pair.count_completions(&[CountedOperation::Write], &counter)
        .unwrap();
    connect_to_itself(&front, &pair);
    let silent = post_batch(&front, &pair, 0..5, SendFlags::empty());
    assert_eq!(silent, Err(PostError::Full(4)));
    // These have the numbers of the withdrawn requests, and are signalled.
    post_batch(&front, &pair, 10..14, SIGNALLED).unwrap();
    let ids = [(); 4].map(|()| front.next().id.0);
    assert_eq!(ids, [10, 11, 12, 13]);
    assert_eq!(counter.completed().load(Ordering::Acquire), 4);
}

#[test]
fn a_front_end_gets_every_event_however_many_there_are() {
    const CHANGES: u32 = 3000;
    let drained = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&drained);
    let on_event = move |event: &AsyncEvent| {
        let is_drained = matches!(
            event,
            AsyncEvent::QueuePair {
                event: Event::SendQueueDrained,
                ..
            }
        );
        counted.fetch_add(is_drained.into(), Ordering::Relaxed);
    };
    let options = SoftOptions::default().port(0);
    let device = Device::open(&options, Some(Box::new(on_event))).unwrap();
    let queue = device.completion_queue(4, None);
    let queues = Queues {
        send: &queue,
        recv: &queue,
        shared_receives: None,
    };
    let pair = device.ud_queue_pair(Domain::new(), queues, CAPABILITIES, Mtu::B1024);
    let pair = pair.unwrap();
    start(&pair);
    for _ in 0..CHANGES {
        pair.to_sqd().unwrap();
        pair.resume().unwrap();
    }
    wait_until(|| {
        device.progress();
        drained.load(Ordering::Relaxed) == CHANGES
    });
    assert_eq!(device.poll_event(), None);
}

#[test]
fn the_event_of_an_overrun_names_the_queue_that_lost_a_completion() {
    let front = Front::with_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    // Both have the same size, which `resize` then changes.
    let [sends, receives] = [(); 2].map(|()| front.device.completion_queue(9, None));
    for queue in [&sends, &receives] {
        assert!(queue.resize(1));
    }
    assert_ne!(sends.number(), receives.number());
    let make = |send, recv| {
        let queues = Queues {
            send,
            recv,
            shared_receives: None,
        };
        let reliable = Reliability::Reliable;
        let made = front
            .device
            .queue_pair(front.domain, queues, CAPABILITIES, reliable);
        let pair = made.unwrap();
        connect_to_itself(&front, &pair);
        pair
    };
    let [sender, receiver] = [make(&sends, &front.queue), make(&front.queue, &receives)];
    post_batch(&front, &sender, 0..3, SIGNALLED).unwrap();
    for id in 0..3 {
        let receive = RecvRequest {
            id: WrId(id),
            segments: &[],
        };
        receiver
            .post_recvs(|queue| queue.push(&receive))
            .unwrap()
            .unwrap();
    }
    receiver.to_error().unwrap();
    let named = RefCell::new(Vec::new());
    wait_until(|| {
        front.device.progress();
        if let Some(AsyncEvent::CompletionQueueOverrun {
            queue,
            qpn,
            capacity: 1,
        }) = front.device.poll_event()
        {
            named.borrow_mut().push((queue, qpn));
        }
        named.borrow().len() == 2
    });
    for overrun in [
        (sends.number(), sender.qpn()),
        (receives.number(), receiver.qpn()),
    ] {
        assert!(named.borrow().contains(&overrun), "{named:?}");
    }
}
