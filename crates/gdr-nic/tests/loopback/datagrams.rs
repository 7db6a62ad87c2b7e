//! Unreliable datagrams.

use std::net::{IpAddr, UdpSocket};

use gdr_rdma::{
    AsyncEvent, CompletionQueue, Device, Error, Event, Immediate, MemoryRegion, Mtu, NicError,
    PostError, ProtectionDomain, Qkey, Qpn, RecvRequest, SocketError, SoftOptions, State,
    UdEndpoint, UdQueuePair, UdQueuePairOptions, UdSendRequest, WcOpcode, WcStatus, Wires, WrId,
};
use gdr_roce::wire::{Grh, UDP_PORT};

use crate::fixture::*;

const QKEY: Qkey = Qkey(0x1111_1111);
const GRH: usize = Grh::LEN;
/// The address of a third host.
const THIRD: [u8; 4] = [127, 0, 0, 3];

/// A queue pair with its device.
struct UdSide {
    pair: UdQueuePair,
    queue: CompletionQueue,
    domain: ProtectionDomain,
    device: Device,
}

impl UdSide {
    /// Returns a queue pair in RTS, or `None` if this machine lacks the address; the test is then reported as skipped.
    fn new(address: IpAddr) -> Option<Self> {
        device(address).map(Self::on)
    }

    /// Like [`UdSide::new`], with this device.
    fn on(device: Device) -> Self {
        let side = Self::in_init_on(device, |options| options);
        side.pair.to_rtr().unwrap();
        side.pair.to_rts().unwrap();
        side
    }

    fn in_init(
        address: IpAddr,
        change: impl FnOnce(UdQueuePairOptions) -> UdQueuePairOptions,
    ) -> Option<Self> {
        Some(Self::in_init_on(device(address)?, change))
    }

    fn in_init_on(
        device: Device,
        change: impl FnOnce(UdQueuePairOptions) -> UdQueuePairOptions,
    ) -> Self {
        let domain = device.protection_domain();
        let queue = device.completion_queue(64);
        let options = change(UdQueuePairOptions::new(&queue, QKEY).mtu(Mtu::B4096));
        Self {
            pair: domain.ud_queue_pair(&options).unwrap(),
            queue,
            domain,
            device,
        }
    }

    fn memory(&self, len: usize) -> MemoryRegion {
        let buffer = gdr_rdma::Buffer::host(len).unwrap();
        self.domain.register(&buffer, EVERYTHING).unwrap()
    }

    /// Posts a receive into this region.
    fn post_recv(&self, id: u64, region: &MemoryRegion) {
        let segment = region.segment(0, region.len()).unwrap();
        let request = RecvRequest::new(WrId(id)).segment(segment);
        self.pair.post_recv(request).unwrap();
    }

    fn send(&self, to: UdEndpoint, bytes: &[u8]) {
        let request = UdSendRequest::new(WrId(9), to).inline(bytes);
        self.pair.post_send(request).unwrap();
        let sent = self.queue.wait(soon()).unwrap();
        assert_eq!((sent.id, sent.status), (WrId(9), WcStatus::Success));
        assert_eq!(sent.opcode, WcOpcode::Send);
    }
}

#[test]
fn a_datagram_arrives_behind_the_header_that_names_its_sender() {
    for (near, far) in [(FIRST, SECOND), (V6, V6)] {
        let (Some(a), Some(b)) = (UdSide::new(near), UdSide::new(far)) else {
            continue;
        };
        let target = b.memory(100);
        fill(&target, 3);
        b.post_recv(5, &target);
        let request = UdSendRequest::new(WrId(1), b.pair.endpoint());
        let request = request.inline(b"hello").immediate(Immediate(77));
        a.pair.post_send(request.solicited()).unwrap();
        let received = b.queue.wait(soon()).unwrap();
        assert_eq!(received.status, WcStatus::Success);
        assert_eq!((received.id, received.byte_len), (WrId(5), 45));
        assert_eq!(received.opcode, WcOpcode::Recv);
        assert_eq!(received.immediate, Some(Immediate(77)));
        assert_eq!(received.source_qpn, Some(a.pair.qpn()));
        assert_eq!(received.qpn, b.pair.qpn());
        assert!(received.solicited);
        let bytes = bytes(&target);
        let grh = Grh::from_bytes(*bytes.first_chunk().unwrap());
        assert_eq!(grh.addresses(), Some((near, far)));
        match near {
            IpAddr::V4(_) => {
                assert_eq!(bytes[..20], [0; 20]);
                // BTH 12, DETH 8, immediate 4, payload 5, padding 3 and ICRC 4 bytes.
                assert_eq!(bytes[20..24], [0x45, 0, 0, 20 + 8 + 36]);
            }
            IpAddr::V6(_) => {
                assert_eq!(bytes[0] >> 4, 6);
                assert_eq!(bytes[4..8], [0, 8 + 36, 17, Grh::HOP_LIMIT]);
            }
        }
        assert_eq!(bytes[GRH..][..5], *b"hello");
        assert_eq!(bytes[GRH + 5..], pattern(100, 3)[GRH + 5..]);
    }
}

#[test]
fn one_queue_pair_talks_with_many_and_the_sender_is_enough_to_answer() {
    let (Some(a), Some(b), Some(c)) = (
        UdSide::new(FIRST),
        UdSide::new(SECOND),
        UdSide::new(IpAddr::from(THIRD)),
    ) else {
        return;
    };
    let sides = [&b, &c];
    let target = a.memory(4096);
    for side in sides {
        a.post_recv(0, &target);
        side.send(a.pair.endpoint(), &side.pair.qpn().get().to_be_bytes());
        let received = a.queue.wait(soon()).unwrap();
        let placed = bytes(&target);
        assert_eq!(placed[GRH..][..4], side.pair.qpn().get().to_be_bytes());

        let grh = Grh::from_bytes(*placed.first_chunk().unwrap());
        let (source, _) = grh.addresses().unwrap();
        let sender = UdEndpoint {
            address: (source, side.device.address().port()).into(),
            qpn: received.source_qpn.unwrap(),
            // The high bit selects the Q_Key of the sending queue pair.
            qkey: Qkey(1 << 31),
        };
        let answer = side.memory(100);
        side.post_recv(7, &answer);
        a.send(sender, b"answer");
        assert_eq!(side.queue.wait(soon()).unwrap().id, WrId(7));
        assert_eq!(bytes(&answer)[GRH..][..6], *b"answer");
    }
}

#[test]
fn messages_up_to_the_path_mtu_come_from_and_go_to_registered_memory() {
    let (Some(a), Some(b)) = (UdSide::new(FIRST), UdSide::new(SECOND)) else {
        return;
    };
    let (source, target) = (a.memory(4096), b.memory(GRH + 4096));
    for len in [0_u32, 1, 3, 4095, 4096] {
        let sent = fill(&source, len as u8);
        b.post_recv(0, &target);
        let request = UdSendRequest::new(WrId(1), b.pair.endpoint());
        let segment = source.segment(0, len.into()).unwrap();
        a.pair.post_send(request.segment(segment)).unwrap();
        let received = b.queue.wait(soon()).unwrap();
        assert_eq!(received.byte_len, 40 + len);
        let len = len as usize;
        assert!(bytes(&target)[GRH..][..len] == sent[..len], "{len}");
    }
}

#[test]
fn a_wrong_queue_key_is_dropped_and_counted() {
    for (near, far) in [(FIRST, SECOND), (V6, V6)] {
        let (Some(a), Some(b)) = (UdSide::new(near), UdSide::new(far)) else {
            continue;
        };
        let target = b.memory(100);
        let before = fill(&target, 3);
        b.post_recv(0, &target);
        let wrong = UdEndpoint {
            qkey: Qkey(2),
            ..b.pair.endpoint()
        };
        a.send(wrong, b"hello");
        wait_until(|| b.device.counters().wrong_qkey == 1);
        assert!(b.queue.poll().unwrap().is_none());
        assert!(bytes(&target) == before);
        a.send(b.pair.endpoint(), b"hello");
        assert_eq!(b.queue.wait(soon()).unwrap().status, WcStatus::Success);
    }
}

#[test]
fn without_a_receive_a_datagram_is_dropped_and_counted() {
    let (Some(a), Some(b)) = (UdSide::new(FIRST), UdSide::new(SECOND)) else {
        return;
    };
    a.send(b.pair.endpoint(), b"lost");
    wait_until(|| b.device.counters().no_receive == 1);
    let target = b.memory(100);
    b.post_recv(0, &target);
    a.send(b.pair.endpoint(), b"hello");
    assert_eq!(b.queue.wait(soon()).unwrap().byte_len, 45);
    assert_eq!(b.device.counters().no_receive, 1);
}

#[test]
fn a_message_that_does_not_fit_its_receive_fails_that_receive_only() {
    let (Some(a), Some(b)) = (UdSide::new(FIRST), UdSide::new(SECOND)) else {
        return;
    };
    let (short, long) = (b.memory(44), b.memory(45));
    let before = fill(&short, 1);
    b.post_recv(0, &short);
    b.post_recv(1, &long);
    a.send(b.pair.endpoint(), b"hello");
    assert_eq!(b.queue.wait(soon()).unwrap().status, WcStatus::LocalLength);
    assert!(bytes(&short) == before);
    assert_eq!(b.pair.state(), State::ReadyToSend);
    a.send(b.pair.endpoint(), b"hello");
    let received = b.queue.wait(soon()).unwrap();
    assert_eq!((received.id, received.status), (WrId(1), WcStatus::Success));
}

#[test]
fn a_message_longer_than_the_path_mtu_is_refused_by_its_completion() {
    let Some(a) = UdSide::new(FIRST) else { return };
    let source = a.memory(4097);
    let request = UdSendRequest::new(WrId(1), a.pair.endpoint());
    let segment = source.segment(0, 4097).unwrap();
    a.pair.post_send(request.segment(segment)).unwrap();
    assert_eq!(a.queue.wait(soon()).unwrap().status, WcStatus::LocalLength);
    assert_eq!(a.pair.state(), State::SendQueueError);
}

#[test]
fn datagrams_of_any_host_pass_the_kernel_and_packets_for_a_connection_do_not() {
    let Some(b) = UdSide::new(SECOND) else { return };
    // Over shared memory, only the first datagram would pass the kernel's filter.
    let by_udp = SoftOptions::new(THIRD.into()).port(0).wires(Wires::Udp);
    let Some(a) = device_with(by_udp, THIRD.into()) else {
        return;
    };
    let a = UdSide::on(a);
    let connection = Side::on(b.device.clone());
    let peer = Side::soft(FIRST).unwrap();
    connect(&connection, &peer, &options());
    let target = b.memory(100);
    b.post_recv(0, &target);
    a.send(b.pair.endpoint(), b"hello");
    assert_eq!(b.queue.wait(soon()).unwrap().status, WcStatus::Success);
    let before = b.device.counters();
    // A datagram to the connected queue pair, from a host that is not its peer.
    let stranger = UdEndpoint {
        qpn: connection.pair.qpn(),
        ..b.pair.endpoint()
    };
    a.send(stranger, b"hello");
    wait_until(|| b.device.counters().kernel_drops == before.kernel_drops + 1);
    assert_eq!(
        b.device.counters().packets_received,
        before.packets_received
    );
    // Once the queue pair is destroyed, the kernel drops its datagrams too.
    let endpoint = b.pair.endpoint();
    drop(b.pair);
    a.send(endpoint, b"hello");
    wait_until(|| b.device.counters().kernel_drops == before.kernel_drops + 2);
}

#[test]
fn a_damaged_datagram_is_dropped() {
    for address in [FIRST, V6] {
        let Some(b) = UdSide::new(address) else {
            continue;
        };
        let target = b.memory(100);
        let before = fill(&target, 3);
        b.post_recv(0, &target);
        let mut packet = vec![0x64, 0, 0xff, 0xff];
        packet.extend(b.pair.qpn().get().to_be_bytes());
        packet.extend([0; 4]);
        packet.extend(QKEY.0.to_be_bytes());
        packet.extend([0, 0, 0, 2]);
        packet.extend([0xee; 12]);
        let card = UdpSocket::bind((address, 0)).unwrap();
        card.send_to(&packet, b.device.address()).unwrap();
        wait_until(|| b.device.counters().icrc_mismatches == 1);
        assert!(bytes(&target) == before);
    }
}

#[test]
fn datagrams_are_received_from_rtr_on_and_flushed_in_error() {
    let Some(a) = UdSide::new(FIRST) else { return };
    let Some(b) = UdSide::in_init(SECOND, |options| options) else {
        return;
    };
    let target = b.memory(100);
    b.post_recv(0, &target);
    let early = UdSendRequest::new(WrId(1), a.pair.endpoint());
    let refused = b.pair.post_send(early);
    let expected = PostError::State(State::Init);
    assert!(matches!(refused, Err(Error::Nic(NicError::Post(error))) if error == expected));
    a.send(b.pair.endpoint(), b"early");
    wait_until(|| b.device.counters().kernel_drops == 1);
    b.pair.to_rtr().unwrap();
    assert!(matches!(
        b.pair.to_rtr(),
        Err(Error::Nic(NicError::State(_)))
    ));
    a.send(b.pair.endpoint(), b"hello");
    assert_eq!(b.queue.wait(soon()).unwrap().byte_len, 45);
    b.post_recv(1, &target);
    b.pair.to_error();
    let flushed = b.queue.wait(soon()).unwrap();
    assert_eq!((flushed.id, flushed.status), (WrId(1), WcStatus::WrFlushed));
    assert!(b.device.poll_event().is_none());
}

#[test]
fn an_address_of_another_family_or_a_foreign_region_is_refused() {
    let (Some(a), Some(b)) = (UdSide::new(FIRST), UdSide::new(SECOND)) else {
        return;
    };
    let to = UdEndpoint {
        address: (V6, UDP_PORT).into(),
        qpn: Qpn::new(2),
        qkey: QKEY,
    };
    let refused = a.pair.post_send(UdSendRequest::new(WrId(0), to));
    assert!(matches!(
        refused,
        Err(Error::Nic(NicError::Socket(
            SocketError::AddressFamily { .. }
        )))
    ));
    let segment = b.memory(8).segment(0, 8).unwrap();
    let request = UdSendRequest::new(WrId(0), b.pair.endpoint());
    let refused = a.pair.post_send(request.segment(segment.clone()));
    assert!(matches!(refused, Err(Error::Nic(NicError::Foreign(_)))));
    let refused = a.pair.post_recv(RecvRequest::new(WrId(0)).segment(segment));
    assert!(matches!(refused, Err(Error::Nic(NicError::Foreign(_)))));
}

#[test]
fn datagrams_and_a_connection_share_receives() {
    let Some(a) = UdSide::new(FIRST) else { return };
    let Some(mut b) = UdSide::in_init(SECOND, |options| options) else {
        return;
    };
    let shared = b.domain.shared_receive_queue(4).unwrap();
    let options = UdQueuePairOptions::new(&b.queue, QKEY).shared_receive_queue(&shared);
    b.pair = b.domain.ud_queue_pair(&options).unwrap();
    b.pair.to_rtr().unwrap();
    let target = b.memory(100);
    let receive = |id| {
        let segment = target.segment(0, 100).unwrap();
        RecvRequest::new(WrId(id)).segment(segment)
    };
    shared.post_recv(receive(3)).unwrap();
    shared.post_recv(receive(4)).unwrap();
    assert!(matches!(
        b.pair.post_recv(receive(5)),
        Err(Error::Nic(NicError::Post(PostError::SharedReceives)))
    ));
    a.send(b.pair.endpoint(), b"hello");
    assert_eq!(b.queue.wait(soon()).unwrap().id, WrId(3));
    b.pair.to_error();
    let (qpn, event) = (b.pair.qpn(), Event::LastWqeReached);
    let expected = AsyncEvent::QueuePair { qpn, event };
    assert_eq!(b.device.wait_event(soon()).unwrap(), expected);
    assert!(
        b.queue.poll().unwrap().is_none(),
        "the other one is not flushed"
    );
}
