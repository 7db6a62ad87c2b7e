//! The management queue pair of an address, shared by several devices just as by several processes.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use gdr_cm::{
    Arrival, CmEvent, CommId, Dreq, IdPair, Management, Manager, Message, Path, PeerProcess,
    ReceivedMad, Rep, Req, ServiceId, SidrReq, SidrStatus,
};
use gdr_nic::{Deadline, Device, Error, PortUse, SocketError, SoftOptions};
use gdr_roce::{PartitionKey, Psn, Qkey, Qpn, Reliability, Time};

/// Longer than any correct wait.
const LIMIT: Duration = Duration::from_secs(60);

fn open(address: IpAddr) -> Device {
    let options = SoftOptions::new(address)
        .port_use(PortUse::Shared)
        .shards(1);
    Device::open(&options, None).unwrap()
}

/// A process's end, and its receiving thread.
struct Member {
    management: Arc<Management>,
    received: Receiver<ReceivedMad>,
    ended: Receiver<PeerProcess>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    fn new(address: IpAddr) -> Self {
        let management = Arc::new(Management::open(&open(address)).unwrap());
        let (send, received) = mpsc::channel();
        let (tell_end, ended) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let (receiver, stopped) = (Arc::clone(&management), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Acquire) {
                match receiver.receive(None) {
                    Some(Arrival::Mad(mad)) => send.send(mad).unwrap(),
                    Some(Arrival::Ended(peer)) => tell_end.send(peer).unwrap(),
                    None => {}
                }
            }
        });
        Self {
            management,
            received,
            ended,
            stop,
            thread: Some(thread),
        }
    }

    fn id(&self) -> CommId {
        CommId(u32::from(self.management.prefix()) << 20 | 5)
    }

    fn process(&self) -> PeerProcess {
        PeerProcess {
            address: self.management.local().ip(),
            prefix: self.management.prefix(),
        }
    }

    /// Sends a message repeatedly until it is received, as it may be lost while there is no keeper.
    fn send_until(&self, to: &Self, message: &Message) -> ReceivedMad {
        let deadline = Deadline::after(LIMIT);
        let address = to.management.local().ip();
        while !deadline.has_passed() {
            self.management.send(address, &message.emit(1));
            if let Ok(received) = to.received.recv_timeout(Duration::from_millis(50)) {
                return received;
            }
        }
        panic!("{message:?} did not arrive");
    }

    /// Sends a message repeatedly until it is answered. Returns the reply.
    fn asks(&self, address: IpAddr, message: &Message) -> Message {
        let deadline = Deadline::after(LIMIT);
        while !deadline.has_passed() {
            self.management.send(address, &message.emit(1));
            if let Ok(received) = self.received.recv_timeout(Duration::from_millis(50)) {
                return Message::parse(&received.mad).unwrap();
            }
        }
        panic!("{message:?} was not answered");
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        self.management.wake();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn rtu(to: CommId) -> Message {
    Message::Rtu(IdPair {
        local: CommId(9),
        remote: to,
    })
}

fn asking(id: CommId, service: ServiceId) -> Message {
    Message::SidrReq(SidrReq {
        id,
        partition: PartitionKey::DEFAULT,
        service,
        private_data: [3; SidrReq::PRIVATE],
    })
}

const SERVICE: ServiceId = ServiceId::of_port(0x0106, 7174);

#[test]
fn each_process_receives_the_messages_of_its_connections() {
    for address in ["127.0.56.1", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        if std::net::UdpSocket::bind((address, 0)).is_err() {
            skip::skip(format_args!("this machine has no {address}"));
            continue;
        }
        let members = [(); 3].map(|()| Member::new(address));
        for from in &members {
            for to in &members {
                let message = rtu(to.id());
                let received = from.send_until(to, &message);
                assert_eq!(received.from, address);
                assert_eq!(Message::parse(&received.mad), Ok(message));
                // Nothing arrived for the others. More copies may be in flight.
                while to.received.recv_timeout(Duration::from_millis(20)).is_ok() {}
                for other in members.iter().filter(|it| it.id() != to.id()) {
                    assert!(matches!(
                        other.received.try_recv(),
                        Err(TryRecvError::Empty)
                    ));
                }
            }
        }
    }
}

#[test]
fn requests_go_to_the_process_that_listens() {
    let address = IpAddr::from([127, 0, 56, 2]);
    let members = [(); 2].map(|()| Member::new(address));
    let client = Member::new(IpAddr::from([127, 0, 56, 3]));
    for listener in 0..2 {
        let (one, other) = (&members[listener], &members[1 - listener]);
        assert!(one.management.listen(SERVICE).unwrap());
        assert!(!other.management.listen(SERVICE).unwrap(), "it is taken");
        assert!(!one.management.listen(SERVICE).unwrap());
        let request = asking(client.id(), SERVICE);
        let received = client.send_until(one, &request);
        assert_eq!(received.from, client.management.local().ip());
        assert_eq!(Message::parse(&received.mad), Ok(request));
        one.management.ignore(SERVICE);
    }
    // No process listens any more, and the keeper reports that.
    let Message::SidrRep(answer) = client.asks(address, &asking(client.id(), SERVICE)) else {
        panic!("not an answer");
    };
    assert_eq!(answer.status, SidrStatus::UNSUPPORTED);
}

#[test]
fn a_request_that_came_too_early_goes_to_who_listens_next() {
    let address = IpAddr::from([127, 0, 56, 9]);
    let client = Member::new(IpAddr::from([127, 0, 56, 10]));
    let members = [(); 2].map(|()| Member::new(address));
    // By now there is a keeper.
    client.send_until(&members[1], &rtu(members[1].id()));
    let request = asking(client.id(), SERVICE);
    let is_held_for = |member: &Member| {
        client.management.send(address, &request.emit(1));
        let answer = client.received.recv_timeout(Duration::from_millis(40));
        assert!(member.management.listen(SERVICE).unwrap());
        let received = member.received.recv_timeout(Duration::from_secs(1));
        member.management.ignore(SERVICE);
        answer.is_err() && received.is_ok_and(|it| Message::parse(&it.mad) == Ok(request))
    };
    for member in &members {
        // Retried, as threads may be late on a busy machine.
        assert!((0..10).any(|_| is_held_for(member)));
    }
}

#[test]
fn a_request_that_its_sender_gives_up_is_undone_where_it_went() {
    let address = IpAddr::from([127, 0, 56, 16]);
    let members = [(); 2].map(|()| Member::new(address));
    let client = Member::new(IpAddr::from([127, 0, 56, 15]));
    for listener in &members {
        assert!(listener.management.listen(SERVICE).unwrap());
        let mut manager = Manager::new(client.management.prefix(), 0);
        let id = manager.connect(Time::EPOCH, address, &req(Qpn::new(17)));
        let (_, asked) = manager.poll_transmit().unwrap();
        client.send_until(listener, &Message::parse(&asked).unwrap());
        manager.abandon(Time::EPOCH, id);
        let (_, given_up) = manager.poll_transmit().unwrap();
        let given_up = Message::parse(&given_up).unwrap();
        let received = client.send_until(listener, &given_up);
        assert_eq!(Message::parse(&received.mad), Ok(given_up));
        listener.management.ignore(SERVICE);
    }
}

#[test]
fn what_is_for_no_process_is_answered() {
    let address = IpAddr::from([127, 0, 56, 4]);
    let member = Member::new(address);
    let gone = CommId(member.id().0 ^ 1 << 20);
    let ids = IdPair {
        local: member.id(),
        remote: gone,
    };
    let dreq = Message::Dreq(Dreq {
        ids,
        remote_qpn: Qpn::new(4),
        private_data: [0; Dreq::PRIVATE],
    });
    let answer = member.asks(address, &dreq);
    assert_eq!(
        answer,
        Message::Drep(IdPair {
            local: gone,
            remote: member.id()
        })
    );
}

#[test]
fn another_process_receives_when_the_keeper_ends() {
    let address = IpAddr::from([127, 0, 56, 5]);
    let client = Member::new(IpAddr::from([127, 0, 56, 6]));
    let mut members: Vec<_> = (0..4).map(|_| Member::new(address)).collect();
    while let Some(last) = members.last() {
        client.send_until(last, &rtu(last.id()));
        // The first member is the keeper, or one of the others has become it.
        members.remove(0);
    }
}

/// A connection endpoint that loses every tenth message it sends.
struct LossyEnd {
    management: Management,
    manager: Manager,
    start: Instant,
    sent: u32,
    established: usize,
    disconnected: usize,
}

impl LossyEnd {
    fn new(address: IpAddr) -> Self {
        let management = Management::open(&open(address)).unwrap();
        Self {
            manager: Manager::new(management.prefix(), 0),
            management,
            start: Instant::now(),
            sent: 0,
            established: 0,
            disconnected: 0,
        }
    }

    fn now(&self) -> Time {
        Time::since_epoch(self.start.elapsed())
    }

    /// Receives briefly, and replies. The active side disconnects as soon as it is connected.
    fn progress(&mut self) {
        while let Some((to, mad)) = self.manager.poll_transmit() {
            self.sent += 1;
            if !self.sent.is_multiple_of(10) {
                self.management.send(to, &mad);
            }
        }
        let deadline = Deadline::after(Duration::from_millis(1));
        let arrival = self.management.receive(Some(deadline));
        let now = self.now();
        if let Some(Arrival::Mad(ReceivedMad { from, mad })) = arrival {
            self.manager.receive(now, from, &mad);
        }
        self.manager.poll(now);
        while let Some(event) = self.manager.poll_event() {
            match event {
                CmEvent::Requested { id, req, .. } => {
                    self.manager.accept(now, id, &rep(req.qpn)).unwrap();
                }
                CmEvent::Accepted { id, .. } => {
                    self.manager.confirm(id).unwrap();
                    self.established += 1;
                    self.manager.disconnect(now, id).unwrap();
                }
                CmEvent::Established { .. } => self.established += 1,
                CmEvent::Disconnected { .. } => self.disconnected += 1,
                CmEvent::TimeWaitOver { .. } => {}
                event => panic!("{event:?}"),
            }
        }
    }
}

#[test]
fn the_next_keeper_receives_what_the_last_one_has_left() {
    let address: IpAddr = "127.0.56.9".parse().unwrap();
    let keeper = Management::open(&open(address)).unwrap();
    // Claims the name.
    let none = keeper.receive(Some(Deadline::after(Duration::ZERO)));
    assert!(none.is_none());
    let other = Member::new(address);
    let deadline = Deadline::after(LIMIT);
    let is_watching = || {
        keeper.send(address, &rtu(other.id()).emit(1));
        let handed_on = keeper.receive(Some(Deadline::after(Duration::from_millis(1))));
        assert!(handed_on.is_none());
        other.received.try_recv().is_ok()
    };
    while !is_watching() {
        assert!(!deadline.has_passed());
    }
    // Like a process that ends right after sending this.
    let last = Message::Rtu(IdPair {
        local: CommId(10),
        remote: other.id(),
    });
    keeper.send(address, &last.emit(1));
    drop(keeper);
    loop {
        let received = other.received.recv_timeout(LIMIT).unwrap();
        if Message::parse(&received.mad).unwrap() == last {
            return;
        }
    }
}

fn req(qpn: Qpn) -> Req {
    Req {
        id: CommId::default(),
        service: SERVICE,
        ca_guid: 7,
        qkey: Qkey::default(),
        qpn,
        responder_resources: 1,
        initiator_depth: 1,
        remote_response_timeout: 20,
        reliability: Some(Reliability::Reliable),
        has_flow_control: false,
        starting_psn: Psn::new(1),
        local_response_timeout: 20,
        retry_count: 7,
        partition: PartitionKey::DEFAULT,
        path_mtu: 3,
        rnr_retry_count: 7,
        max_cm_retries: 15,
        has_shared_receives: false,
        path: Path {
            local_gid: [0; 16],
            remote_gid: [0; 16],
            flow_label: 0,
            traffic_class: 0,
            hop_limit: 64,
            ack_timeout: 18,
        },
        private_data: [0; Req::PRIVATE],
    }
}

fn rep(qpn: Qpn) -> Rep {
    Rep {
        ids: IdPair::default(),
        qkey: Qkey::default(),
        qpn,
        target_qpn: Qpn::default(),
        starting_psn: Psn::new(2),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 0,
        has_flow_control: false,
        rnr_retry_count: 7,
        has_shared_receives: false,
        ca_guid: 8,
        private_data: [0; Rep::PRIVATE],
    }
}

#[test]
fn all_connections_begin_and_end_although_every_tenth_message_is_lost() {
    const CONNECTIONS: usize = 100;
    let (own, peer) = ([127, 0, 56, 13].into(), [127, 0, 56, 14].into());
    let (mut active, mut passive) = (LossyEnd::new(own), LossyEnd::new(peer));
    assert!(passive.management.listen(SERVICE).unwrap());
    passive.manager.listen(SERVICE);
    for number in 0..CONNECTIONS {
        let qpn = Qpn::new(number as u32 + 16);
        let now = active.now();
        active.manager.connect(now, peer, &req(qpn));
    }
    let deadline = Deadline::after(LIMIT);
    let is_over = |end: &LossyEnd| end.disconnected == CONNECTIONS;
    while !(is_over(&active) && is_over(&passive)) {
        assert!(!deadline.has_passed());
        active.progress();
        passive.progress();
    }
    assert_eq!(active.established, CONNECTIONS);
    assert!(active.sent + passive.sent > 5 * CONNECTIONS as u32);
}

#[test]
fn the_end_of_a_peer_is_reported_once_to_who_watches_it() {
    let addresses = [
        IpAddr::from([127, 0, 56, 11]),
        IpAddr::from([127, 0, 56, 12]),
    ];
    for peer_address in addresses {
        let [one, other, unconcerned] = [(); 3].map(|()| Member::new(addresses[0]));
        let peer = Member::new(peer_address);
        let process = peer.process();
        for watcher in [&one, &other] {
            watcher.management.watch(process);
            watcher.management.watch(process);
            watcher.management.watch(watcher.process());
        }
        // A process that ended before. At another address, it could be on another host.
        let before = Member::new(peer_address).process();
        one.management.watch(before);
        if peer_address == addresses[0] {
            assert_eq!(one.ended.recv_timeout(LIMIT), Ok(before));
        }
        drop(peer);
        for watcher in [&one, &other] {
            assert_eq!(watcher.ended.recv_timeout(LIMIT), Ok(process));
        }
        // Later messages are received, with no second report before them.
        for member in [&one, &other, &unconcerned] {
            unconcerned.send_until(member, &rtu(member.id()));
            assert_eq!(member.ended.try_recv(), Err(TryRecvError::Empty));
        }
    }
}

#[test]
fn a_port_that_is_not_shared_has_no_management_queue_pair() {
    let options = SoftOptions::new(IpAddr::from([127, 0, 56, 8]));
    let device = Device::open(&options, None).unwrap();
    assert!(matches!(
        Management::open(&device),
        Err(Error::Socket(SocketError::PortNotShared { .. }))
    ));
}
