//! Extended reliable connections (XRC) between two devices, over both wires.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::net::IpAddr;
use std::thread;
use std::time::Duration;

use gdr_nic::{
    Access, AckTimeout, AsyncEvent, Capabilities, Completion, CompletionQueue, Connection, Data,
    Deadline, Device, Domain, Error, Foreign, Immediate, Lkey, Memory, Mtu, Operation, Psn,
    QueuePair, Queues, RecvRequest, Region, Reliability, Remote, RetryCount, RetryLimit, Rkey,
    RnrRetry, RnrTimer, RtrAttributes, RtsAttributes, Segment, SendFlags, SendRequest,
    SharedReceiveQueue, SoftOptions, WcOpcode, WcStatus, Wires, WrId, XrcDomain, XrcSrqn,
};

const LEN: usize = 1 << 16;
const IOVA: u64 = 0x1000;
const CAPABILITIES: Capabilities = Capabilities {
    max_send_wr: 16,
    max_recv_wr: 0,
    max_inline: 64,
};

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Registered memory that is never freed.
struct Registered {
    domain: Domain,
    region: Region,
    bytes: *mut u8,
}

impl Registered {
    fn new(device: &Device, filled: u8) -> Self {
        let bytes = Box::leak(vec![filled; LEN].into_boxed_slice()).as_mut_ptr();
        let domain = Domain::new();
        let range = Memory {
            address: bytes.expose_provenance(),
            len: LEN,
            iova: IOVA,
        };
        // SAFETY: the bytes are never freed, and are accessed by volatile reads only.
        let region = unsafe { device.register(domain, range, Access::all()) }.unwrap();
        Self {
            domain,
            region,
            bytes,
        }
    }

    fn segment(&self, at: usize, len: u32) -> Segment {
        Segment {
            lkey: Lkey(self.region.key()),
            addr: IOVA + at as u64,
            len,
        }
    }

    fn remote(&self, at: usize) -> Remote {
        Remote {
            rkey: Rkey(self.region.key()),
            addr: IOVA + at as u64,
        }
    }

    fn has(&self, value: u8, at: usize, len: usize) -> bool {
        // SAFETY: the range is in the memory, which is never freed.
        let byte = |at| unsafe { self.bytes.add(at).read_volatile() };
        (at..at + len).all(|at| byte(at) == value)
    }
}

/// A shared receive queue with a protection domain and a completion queue of its own.
struct Receiver {
    memory: Registered,
    completions: CompletionQueue,
    queue: SharedReceiveQueue,
}

impl Receiver {
    fn new(device: &Device, domain: &XrcDomain) -> Self {
        let memory = Registered::new(device, 0);
        let completions = device.completion_queue(64, None);
        let queue = domain.receive_queue(memory.domain, 16, &completions);
        Self {
            queue: queue.unwrap(),
            memory,
            completions,
        }
    }

    fn post(&self, id: u64, len: u32) {
        let segments = [self.memory.segment(0, len)];
        let request = RecvRequest {
            id: WrId(id),
            segments: &segments,
        };
        self.queue.post(&request).unwrap().unwrap();
    }

    fn number(&self) -> XrcSrqn {
        self.queue.xrc_number().unwrap()
    }

    fn next(&self) -> Completion {
        self.completions.wait(soon()).unwrap().unwrap()
    }
}

/// A sending device, and a device whose peers name the shared receive queue of each message.
struct Ends {
    source: Registered,
    sent: CompletionQueue,
    initiator: QueuePair<Connection>,
    target: QueuePair<Connection>,
    domain: XrcDomain,
    device: Device,
    sender: Device,
}

fn open(wires: Wires) -> Device {
    let options = SoftOptions::new(IpAddr::from([127, 0, 0, 1])).port(0);
    Device::open(&options.wires(wires), None).unwrap()
}

fn connect(pair: &QueuePair<Connection>, to: &Device, peer: &QueuePair<Connection>) {
    pair.to_init(Access::all()).unwrap();
    let attributes = RtrAttributes {
        dest_qpn: peer.qpn(),
        rq_psn: Psn::new(0),
        path_mtu: Mtu::B1024,
        max_dest_rd_atomic: 4,
        min_rnr_timer: RnrTimer::new(1),
    };
    pair.to_rtr(to.address(), &attributes).unwrap();
    let attributes = RtsAttributes {
        sq_psn: Psn::new(0),
        // A process that gets no CPU for half a second has not failed.
        timeout: AckTimeout::new(17),
        retry_limit: RetryLimit::Count(RetryCount::new(7)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 4,
    };
    pair.to_rts(&attributes).unwrap();
}

impl Ends {
    fn new(wires: Wires) -> Self {
        let (sender, device) = (open(wires), open(wires));
        let source = Registered::new(&sender, 0x5a);
        let sent = sender.completion_queue(64, None);
        let queues = Queues::completing_in(&sent);
        let extended = Reliability::Extended;
        let initiator = sender.queue_pair(source.domain, queues, CAPABILITIES, extended);
        let initiator = initiator.unwrap();
        let domain = device.xrc_domain().unwrap();
        let target = domain.target().unwrap();
        connect(&target, &sender, &initiator);
        connect(&initiator, &device, &target);
        Self {
            source,
            sent,
            initiator,
            target,
            domain,
            device,
            sender,
        }
    }

    /// Posts a request and waits for its completion.
    fn run(&self, receives: XrcSrqn, operation: Operation, len: u32) -> WcStatus {
        self.post(receives, operation, len);
        let done = self.sent.wait(soon()).unwrap().unwrap();
        assert_eq!(done.id, WrId(7));
        done.status
    }

    fn post(&self, receives: XrcSrqn, operation: Operation, len: u32) {
        let segments = [self.source.segment(0, len)];
        let request = SendRequest {
            id: WrId(7),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        };
        let posted = self
            .initiator
            .post_sends(|queue| queue.push_to(receives, &request));
        posted.unwrap().unwrap();
    }
}

const SEND: Operation = Operation::Send { immediate: None };

#[test]
fn messages_arrive_by_the_queue_that_they_name() {
    for wires in [Wires::All, Wires::Udp] {
        let ends = Ends::new(wires);
        let receivers = [0, 1].map(|_| Receiver::new(&ends.device, &ends.domain));
        assert_ne!(receivers[0].number(), receivers[1].number());
        for (round, len) in [8, 3000, 40_000].into_iter().enumerate() {
            for receiver in &receivers {
                receiver.post(round as u64, LEN as u32);
                assert_eq!(ends.run(receiver.number(), SEND, len), WcStatus::Success);
                let done = receiver.next();
                let outline = (done.id, done.status, done.opcode, done.byte_len);
                let expected = (WrId(round as u64), WcStatus::Success, WcOpcode::Recv, len);
                assert_eq!(outline, expected, "{wires:?}");
                assert_eq!(done.qpn, ends.target.qpn());
                assert!(receiver.memory.has(0x5a, 0, len as usize));
                assert!(receiver.memory.has(0, len as usize, LEN - len as usize));
            }
        }
        let counters = ends.device.counters();
        assert_eq!(counters.payload.receive, 2 * (8 + 3000 + 40_000));
    }
}

#[test]
fn requests_reach_the_regions_of_the_domains_that_have_a_queue() {
    for wires in [Wires::All, Wires::Udp] {
        let ends = Ends::new(wires);
        let receivers = [0, 1].map(|_| Receiver::new(&ends.device, &ends.domain));
        let immediate = Some(Immediate(3));
        for receiver in &receivers {
            let (number, remote) = (receiver.number(), receiver.memory.remote(4096));
            receiver.post(1, 0);
            let write = Operation::Write { remote, immediate };
            assert_eq!(ends.run(number, write, 5000), WcStatus::Success);
            let done = receiver.next();
            assert_eq!(
                (done.opcode, done.immediate),
                (WcOpcode::RecvWriteImmediate, immediate)
            );
            assert!(receiver.memory.has(0x5a, 4096, 5000));
            let read = Operation::Read { remote };
            assert_eq!(ends.run(number, read, 5000), WcStatus::Success);
        }
        let stranger = Registered::new(&ends.device, 0);
        let remote = stranger.remote(0);
        let write = Operation::Write {
            remote,
            immediate: None,
        };
        let status = ends.run(receivers[0].number(), write, 8);
        assert_eq!(status, WcStatus::RemoteAccess);
        assert!(stranger.has(0, 0, LEN));
    }
}

#[test]
fn a_queue_that_is_gone_cannot_be_named_and_its_number_is_free() {
    let ends = Ends::new(Wires::All);
    let receiver = Receiver::new(&ends.device, &ends.domain);
    let number = receiver.number();
    assert_eq!(receiver.queue.clone().xrc_number(), Some(number));
    receiver.post(1, 64);
    drop(receiver);
    assert_eq!(ends.run(number, SEND, 8), WcStatus::RemoteInvalidRequest);
    assert_eq!(Receiver::new(&ends.device, &ends.domain).number(), number);
}

#[test]
fn a_reset_puts_the_receive_in_use_back_to_its_queue() {
    let ends = Ends::new(Wires::Udp);
    let receiver = Receiver::new(&ends.device, &ends.domain);
    receiver.post(1, 64);
    ends.target.reset().unwrap();
    connect(&ends.target, &ends.sender, &ends.initiator);
    assert_eq!(ends.run(receiver.number(), SEND, 8), WcStatus::Success);
    assert_eq!(receiver.next().id, WrId(1));
}

#[test]
fn the_limit_of_a_named_queue_raises_its_event() {
    let ends = Ends::new(Wires::All);
    let receivers = [0, 1].map(|_| Receiver::new(&ends.device, &ends.domain));
    for receiver in &receivers {
        receiver.post(1, 64);
        receiver.post(2, 64);
        receiver.queue.arm_limit(2).unwrap();
    }
    assert_eq!(ends.run(receivers[1].number(), SEND, 8), WcStatus::Success);
    let deadline = soon();
    let srq = loop {
        match ends.device.poll_event() {
            Some(AsyncEvent::SharedReceiveQueueLimit { srq }) => break srq,
            _ => thread::yield_now(),
        }
        assert!(!deadline.has_passed());
    };
    assert_eq!(srq, receivers[1].queue.number());
}

#[test]
fn a_queue_of_an_xrc_domain_is_of_no_other_service() {
    let ends = Ends::new(Wires::All);
    let receiver = Receiver::new(&ends.device, &ends.domain);
    let queues = Queues {
        send: &receiver.completions,
        recv: &receiver.completions,
        shared_receives: Some(&receiver.queue),
    };
    let domain = receiver.memory.domain;
    let made = ends
        .device
        .queue_pair(domain, queues, CAPABILITIES, Reliability::Reliable);
    assert!(matches!(
        made,
        Err(Error::Foreign(Foreign::SharedReceiveQueue))
    ));
    let foreign = ends.domain.receive_queue(domain, 4, &ends.sent);
    assert!(matches!(
        foreign,
        Err(Error::Foreign(Foreign::CompletionQueue))
    ));
    let plain = ends.device.shared_receive_queue(domain, 4).unwrap();
    assert_eq!(plain.xrc_number(), None);
}
