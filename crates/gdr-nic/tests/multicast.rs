//! Datagrams to multicast groups, between devices at two loopback addresses.

#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use gdr_nic::{
    Access, Capabilities, Completion, CompletionQueue, Data, Datagrams, Deadline, Device, Domain,
    Error, Lkey, MOST_ATTACHED, MOST_GROUPS, Memory, Mtu, Psn, Qkey, Qpn, QueuePair, Queues,
    RecvRequest, Region, Segment, SendFlags, SocketError, SoftOptions, UdSendRequest, WcStatus,
    WrId,
};
use gdr_roce::wire::Grh;

const QKEY: Qkey = Qkey(0x1111_1111);
const GROUP: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 3));
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(239, 1, 2, 4));
const LEN: usize = 256;
const IOVA: u64 = 0x1000;
const CAPABILITIES: Capabilities = Capabilities {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_inline: 64,
};

/// Returns a deadline that only a stuck test reaches.
fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

/// Opens devices at two addresses of this host, with the same port.
fn devices() -> [Device; 2] {
    let open = |address: [u8; 4], port| {
        let options = SoftOptions::new(IpAddr::from(address));
        Device::open(&options.port(port), None)
    };
    let deadline = soon();
    loop {
        let first = open([127, 0, 0, 1], 0).unwrap();
        // Another test may have taken the port at the second address.
        match open([127, 0, 0, 2], first.address().port()) {
            Ok(second) => return [first, second],
            Err(error) => assert!(!deadline.has_passed(), "{error}"),
        }
    }
}

/// A queue pair in RTS with one posted receive.
struct End {
    pair: QueuePair<Datagrams>,
    queue: CompletionQueue,
    region: Region,
    memory: *mut u8,
}

impl End {
    fn new(device: &Device) -> Self {
        let domain = Domain::new();
        let memory = Box::leak(vec![0; LEN].into_boxed_slice()).as_mut_ptr();
        let range = Memory {
            address: memory.expose_provenance(),
            len: LEN,
            iova: IOVA,
        };
        // SAFETY: the bytes are never freed, and are accessed by volatile reads only.
        let region = unsafe { device.register(domain, range, Access::LOCAL_WRITE) }.unwrap();
        let queue = device.completion_queue(16, None);
        let queues = Queues::completing_in(&queue);
        let pair = device.ud_queue_pair(domain, queues, CAPABILITIES, Mtu::B1024);
        let pair = pair.unwrap();
        pair.to_init(QKEY).unwrap();
        pair.to_rtr().unwrap();
        pair.to_rts(Psn::new(0)).unwrap();
        let end = Self {
            pair,
            queue,
            region,
            memory,
        };
        end.post_recv();
        end
    }

    fn post_recv(&self) {
        let segments = [Segment {
            lkey: Lkey(self.region.key()),
            addr: IOVA,
            len: LEN as u32,
        }];
        let request = RecvRequest {
            id: WrId(7),
            segments: &segments,
        };
        let posted = self.pair.post_recvs(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }

    fn send(&self, to: SocketAddr, qkey: Qkey, text: &[u8]) {
        self.send_to((to, Qpn::MULTICAST), qkey, text);
    }

    fn send_to(&self, (to, dest_qpn): (SocketAddr, Qpn), qkey: Qkey, text: &[u8]) {
        let request = UdSendRequest {
            id: WrId(1),
            to,
            dest_qpn,
            qkey,
            data: Data::Inline(text),
            immediate: None,
            flags: SendFlags::empty(),
        };
        let posted = self.pair.post_sends(|queue| queue.push(&request));
        posted.unwrap().unwrap();
    }

    fn received(&self) -> (Completion, [u8; LEN]) {
        let done = self.queue.wait(soon()).unwrap().unwrap();
        // SAFETY: the range is in the memory, which is never freed.
        let bytes = std::array::from_fn(|at| unsafe { self.memory.add(at).read_volatile() });
        (done, bytes)
    }

    /// Waits for a message; returns its text.
    fn text(&self) -> String {
        let (done, bytes) = self.received();
        assert_eq!((done.id, done.status), (WrId(7), WcStatus::Success));
        let text = &bytes[Grh::LEN..done.byte_len as usize];
        String::from_utf8(text.to_vec()).unwrap()
    }

    fn has_received(&self) -> bool {
        self.queue.poll(1, &mut |_| {}).unwrap() > 0
    }
}

#[test]
fn a_message_to_a_group_reaches_every_queue_pair_that_is_attached() {
    let [near, far] = devices();
    let group = SocketAddr::new(GROUP, near.address().port());
    let (sender, beside, stranger) = (End::new(&near), End::new(&near), End::new(&near));
    let distant = [End::new(&far), End::new(&far)];
    for end in [&sender, &beside, &distant[0], &distant[1]] {
        end.pair.attach_multicast(GROUP).unwrap();
    }
    // Attaching twice has no effect.
    beside.pair.attach_multicast(GROUP).unwrap();
    stranger.pair.attach_multicast(OTHER).unwrap();
    sender.send(group, QKEY, b"to all");
    for end in [&sender, &beside, &distant[0], &distant[1]] {
        let (done, bytes) = end.received();
        assert_eq!(done.status, WcStatus::Success);
        assert_eq!(done.source_qpn, Some(sender.pair.qpn()));
        assert_eq!(done.qpn, end.pair.qpn());
        assert_eq!(bytes[Grh::LEN..done.byte_len as usize], *b"to all");
        let grh = Grh::from_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(grh.addresses(), Some((near.address().ip(), GROUP)));
        assert!(!end.has_received(), "a second copy");
    }
    assert!(!stranger.has_received());
}

#[test]
fn a_queue_pair_that_was_detached_or_destroyed_receives_nothing_more() {
    let [near, far] = devices();
    let group = SocketAddr::new(GROUP, near.address().port());
    let (sender, left, stays) = (End::new(&near), End::new(&far), End::new(&far));
    let destroyed = End::new(&far);
    for end in [&left, &stays, &destroyed] {
        end.pair.attach_multicast(GROUP).unwrap();
    }
    drop(destroyed);
    left.pair.detach_multicast(GROUP).unwrap();
    let again = left.pair.detach_multicast(GROUP);
    assert!(matches!(again, Err(Error::NotAttached)), "{again:?}");
    sender.send(group, QKEY, b"who is there");
    assert_eq!(stays.text(), "who is there");
    assert!(!left.has_received());
    // The last member leaves, which closes the group's socket; the next one opens a new socket.
    stays.pair.detach_multicast(GROUP).unwrap();
    sender.send(group, QKEY, b"to no member");
    left.pair.attach_multicast(GROUP).unwrap();
    sender.send(group, QKEY, b"back");
    assert_eq!(left.text(), "back");
}

#[test]
fn a_message_with_another_queue_key_is_dropped_and_counted() {
    let [near, far] = devices();
    let group = SocketAddr::new(GROUP, near.address().port());
    let (sender, receiver) = (End::new(&near), End::new(&far));
    receiver.pair.attach_multicast(GROUP).unwrap();
    sender.send(group, Qkey(5), b"wrong");
    sender.send(group, QKEY, b"right");
    assert_eq!(receiver.text(), "right");
    assert_eq!(far.counters().wrong_qkey, 1);
}

#[test]
fn packets_to_groups_are_counted_once_by_each_device() {
    let [near, far] = devices();
    let group = SocketAddr::new(GROUP, near.address().port());
    let sender = End::new(&near);
    let members = [(); 3].map(|()| End::new(&far));
    for member in &members {
        member.pair.attach_multicast(GROUP).unwrap();
    }
    sender.send(group, QKEY, b"one");
    for member in &members {
        assert_eq!(member.text(), "one");
    }
    members[0].post_recv();
    sender.send_to((far.address(), members[0].pair.qpn()), QKEY, b"two");
    assert_eq!(members[0].text(), "two");
    let (sent, received) = (near.counters(), far.counters());
    assert_eq!((sent.packets_sent, sent.sent_to_groups), (2, 1));
    assert_eq!(
        (received.packets_received, received.received_by_groups),
        (2, 1)
    );
    assert_eq!((sent.received_by_groups, received.sent_to_groups), (0, 0));
}

#[test]
fn what_is_for_one_queue_pair_is_not_taken_from_a_group() {
    let [near, far] = devices();
    let group = SocketAddr::new(GROUP, near.address().port());
    let (sender, receiver) = (End::new(&near), End::new(&far));
    receiver.pair.attach_multicast(GROUP).unwrap();
    sender.send_to((group, receiver.pair.qpn()), QKEY, b"to a number");
    sender.send(group, QKEY, b"to the group");
    assert_eq!(receiver.text(), "to the group");
    receiver.post_recv();
    // A datagram to the device's address is not delivered to the members of a group either.
    sender.send(far.address(), QKEY, b"to a device");
    sender.send(group, QKEY, b"to the group again");
    assert_eq!(receiver.text(), "to the group again");
}

#[test]
fn only_groups_of_the_device_s_family_and_so_many_can_be_joined() {
    let device = Device::open(&SoftOptions::default().port(0), None).unwrap();
    let mut ends: Vec<_> = (0..=MOST_ATTACHED).map(|_| End::new(&device)).collect();
    let attach = |end: &End, group: &str| end.pair.attach_multicast(group.parse().unwrap());
    for refused in ["127.0.0.1", "10.0.0.1", "::1"] {
        let error = attach(&ends[0], refused).unwrap_err();
        let is_meant = matches!(error, Error::Socket(SocketError::NotMulticast(_)));
        assert!(is_meant, "{refused}: {error}");
    }
    let error = attach(&ends[0], "ff0e::1").unwrap_err();
    let is_meant = matches!(error, Error::Socket(SocketError::AddressFamily { .. }));
    assert!(is_meant, "{error}");
    for end in &ends[..MOST_ATTACHED] {
        end.pair.attach_multicast(GROUP).unwrap();
    }
    let error = ends[MOST_ATTACHED].pair.attach_multicast(GROUP);
    let is_meant = matches!(error, Err(Error::TooManyAttached { .. }));
    assert!(is_meant, "{error:?}");
    // Destroying a queue pair frees its place in the group.
    drop(ends.pop());
    drop(ends.remove(1));
    End::new(&device).pair.attach_multicast(GROUP).unwrap();
    for number in 1..MOST_GROUPS {
        let group = Ipv4Addr::from(u32::from(Ipv4Addr::new(239, 9, 0, 0)) + number as u32);
        ends[0].pair.attach_multicast(group.into()).unwrap();
    }
    let error = attach(&ends[0], "239.8.0.0");
    let is_meant = matches!(error, Err(Error::TooManyGroups { .. }));
    assert!(is_meant, "{error:?}");
}
