//! Unreliable datagrams between the soft provider and rxe.

use std::net::IpAddr;

use conformance::{pattern, soon};
use gdr_rdma::{
    Access, Buffer, CompletionQueue, Device, Immediate, MemoryRegion, Mtu, Qkey, Qpn, RecvRequest,
    UdEndpoint, UdQueuePair, UdQueuePairOptions, UdSendRequest, WcStatus, WrId,
};
use gdr_vm_tests::rxe_endpoint::{self, RxeDatagrams};

use crate::fixture::*;

const QKEY: u32 = 0x1111_1111;
/// The bytes in front of a received message.
const GRH: usize = 40;
/// Lengths of messages; the longest is the path MTU of the soft queue pair.
const LENGTHS: [u32; 6] = [0, 1, 3, 256, 1023, 1024];

/// A queue pair of the soft device, in RTS.
struct SoftDatagrams {
    pair: UdQueuePair,
    queue: CompletionQueue,
    memory: MemoryRegion,
}

impl SoftDatagrams {
    fn new(device: &Device) -> Self {
        let domain = device.protection_domain();
        let queue = device.completion_queue(64);
        let options = UdQueuePairOptions::new(&queue, Qkey(QKEY)).mtu(Mtu::B1024);
        let pair = domain.ud_queue_pair(&options).unwrap();
        pair.to_rtr().unwrap();
        pair.to_rts().unwrap();
        let memory = domain.register(&Buffer::host(8192).unwrap(), Access::all());
        Self {
            pair,
            queue,
            memory: memory.unwrap(),
        }
    }

    fn receive(&self, id: u64) {
        let request = RecvRequest::new(WrId(id)).segment(self.memory.segment(0, 4096).unwrap());
        self.pair.post_recv(request).unwrap();
    }
}

fn rxe(family: Family) -> RxeDatagrams {
    let device = rxe_endpoint::Device::open("rxe0").unwrap();
    RxeDatagrams::new(&device, family.far(), QKEY, 8192).unwrap()
}

/// Returns the addresses in a network header.
fn addresses(grh: &[u8]) -> (IpAddr, IpAddr) {
    let v6 = |at: usize| IpAddr::from(<[u8; 16]>::try_from(&grh[at..at + 16]).unwrap());
    let v4 = |at: usize| IpAddr::from(<[u8; 4]>::try_from(&grh[at..at + 4]).unwrap());
    match grh[0] >> 4 {
        6 => (v6(8), v6(24)),
        _ => {
            assert_eq!(grh[20], 0x45);
            let words = grh[20..40].chunks(2);
            let sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header checksum");
            (v4(32), v4(36))
        }
    }
}

fn from_rxe(family: Family) {
    let (device, rxe) = (Host::Soft.device(family), rxe(family));
    let soft = SoftDatagrams::new(&device);
    let source = pattern(8192, 7);
    rxe.fill(0, &source);
    let near = rxe.address_handle(family.near()).unwrap();
    let to = (&near, soft.pair.qpn().get(), QKEY);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let immediate = (n % 2 == 1).then_some(0xdead_beef);
        soft.receive(n as u64);
        rxe.send_datagram(9, (0, len), to, immediate).unwrap();
        assert_eq!(rxe.done(soon()).id, 9);
        let received = soft.queue.wait(soon()).unwrap();
        assert_eq!(received.status, WcStatus::Success);
        assert_eq!(received.id, WrId(n as u64));
        assert_eq!(received.byte_len, GRH as u32 + len);
        assert_eq!(received.immediate, immediate.map(Immediate));
        assert_eq!(received.source_qpn, Some(Qpn::new(rxe.qpn())));
        let bytes = bytes(&soft.memory, 0, GRH + len as usize);
        assert_eq!(addresses(&bytes[..GRH]), (family.far(), family.near()));
        assert_same(&bytes[GRH..], &source[..len as usize], "payload");
    }
    // A wrong queue key.
    let wrong = (to.0, to.1, 2);
    soft.receive(99);
    rxe.send_datagram(9, (0, 8), wrong, None).unwrap();
    rxe.done(soon());
    rxe.send_datagram(9, (0, 9), to, None).unwrap();
    rxe.done(soon());
    assert_eq!(soft.queue.wait(soon()).unwrap().byte_len, GRH as u32 + 9);
    assert_eq!(device.counters().wrong_qkey, 1);
}

fn to_rxe(family: Family) {
    let (device, rxe) = (Host::Soft.device(family), rxe(family));
    let soft = SoftDatagrams::new(&device);
    let source = pattern(4096, 5);
    soft.memory.buffer().write_at(0, &source).unwrap();
    let to = UdEndpoint {
        address: (family.far(), 4791).into(),
        qpn: Qpn::new(rxe.qpn()),
        qkey: Qkey(QKEY),
    };
    let send = |to, len: u32, immediate: Option<u32>| {
        let request = UdSendRequest::new(WrId(9), to);
        let request = request.segment(soft.memory.segment(0, len.into()).unwrap());
        let request = match immediate {
            Some(value) => request.immediate(Immediate(value)),
            None => request,
        };
        soft.pair.post_send(request).unwrap();
        let sent = soft.queue.wait(soon()).unwrap();
        assert_eq!(sent.status, WcStatus::Success);
    };
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let immediate = (n % 2 == 1).then_some(0xdead_beef);
        rxe.receive(n as u64, 0, 4096);
        send(to, len, immediate);
        let received = rxe.done(soon());
        assert_eq!(received.id, n as u64);
        assert_eq!(received.bytes, GRH as u32 + len);
        assert_eq!(received.immediate, immediate);
        assert_eq!(received.source_qpn, Some(soft.pair.qpn().get()));
        let bytes = rxe.bytes(0, GRH + len as usize);
        assert_eq!(addresses(&bytes[..GRH]), (family.near(), family.far()));
        assert_same(&bytes[GRH..], &source[..len as usize], "payload");
    }
    rxe.receive(99, 0, 4096);
    let wrong = UdEndpoint {
        qkey: Qkey(2),
        ..to
    };
    send(wrong, 8, None);
    send(to, 9, None);
    assert_eq!(rxe.done(soon()).bytes, GRH as u32 + 9);
}

#[test]
#[ignore = "runs in the VM"]
fn datagrams_of_rxe_arrive_over_ipv4() {
    from_rxe(Family::V4);
}

#[test]
#[ignore = "runs in the VM"]
fn datagrams_of_rxe_arrive_over_ipv6() {
    from_rxe(Family::V6);
}

#[test]
#[ignore = "runs in the VM"]
fn rxe_receives_datagrams_over_ipv4() {
    to_rxe(Family::V4);
}

#[test]
#[ignore = "runs in the VM"]
fn rxe_receives_datagrams_over_ipv6() {
    to_rxe(Family::V6);
}
