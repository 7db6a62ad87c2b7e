//! Which bytes of a receive must be writable: for every service, only those that its message fills.
use std::net::Ipv4Addr;

use crate::fixture::{BASE, Network, QPNS, Settings, Side, connect, connected};
use gdr_roce::wire::icrc::Ip;
use gdr_roce::wire::{Grh, MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, Capabilities, Completion, Data, FrameReceived, HeapMemory, Lkey, Mtu, Operation, Psn,
    Qkey, QueuePair, RawPacketQueuePair, RecvRequest, Segment, SendFlags, SendRequest,
    SharedReceiveQueue, UdQueuePair, UdReceived, UdSendRequest, WcStatus, WrId,
};
use proptest::prelude::*;

const CAPS: Capabilities = Capabilities {
    max_send_wr: 4,
    max_recv_wr: 4,
    max_inline: 64,
};
const QKEY: Qkey = Qkey(7);
/// Messages of a connection have several packets of this size.
const MTU: Mtu = Mtu::B256;
/// The value of unwritten bytes.
const UNTOUCHED: u8 = 0xee;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Service {
    Reliable,
    ReliableShared,
    Unreliable,
    Datagram,
    DatagramShared,
    Frame,
}

const SERVICES: [Service; 6] = [
    Service::Reliable,
    Service::ReliableShared,
    Service::Unreliable,
    Service::Datagram,
    Service::DatagramShared,
    Service::Frame,
];

impl Service {
    /// Returns the length of the header stored before the message.
    fn header(self) -> usize {
        match self {
            Self::Datagram | Self::DatagramShared => Grh::LEN,
            _ => 0,
        }
    }

    fn accepts(self, message: usize) -> bool {
        match self {
            Self::Datagram | Self::DatagramShared => message <= MTU.bytes(),
            Self::Frame => message >= 14,
            _ => true,
        }
    }
}

/// A segment and its memory.
#[derive(Clone, Copy, Debug)]
struct Piece {
    len: u32,
    /// The length of its region, which starts where the segment starts.
    region: usize,
    registration: Registration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Registration {
    Writable,
    ReadOnly,
    None,
}

impl Piece {
    /// Returns how many of its first bytes are writable.
    fn usable(&self) -> usize {
        match self.registration {
            Registration::Writable => self.region.min(self.len as usize),
            Registration::ReadOnly | Registration::None => 0,
        }
    }
}

/// The memory and segments of a receive.
struct Target {
    memory: HeapMemory,
    segments: Vec<Segment>,
}

fn target(pieces: &[Piece]) -> Target {
    let mut memory = HeapMemory::new();
    let segments = pieces.iter().zip(1_u64..).map(|(piece, n)| {
        let addr = BASE + (n << 20);
        let access = match piece.registration {
            Registration::Writable => Access::LOCAL_WRITE,
            Registration::ReadOnly | Registration::None => Access::REMOTE_READ,
        };
        let (lkey, _) = memory.register(addr, vec![UNTOUCHED; piece.region], access);
        if piece.registration == Registration::None {
            memory.deregister(lkey);
        }
        Segment {
            lkey,
            addr,
            len: piece.len,
        }
    });
    let segments = segments.collect();
    Target { memory, segments }
}

fn grh() -> Grh {
    let ip = Ip::V4 {
        src: Ipv4Addr::new(10, 0, 0, 1),
        dst: Ipv4Addr::new(10, 0, 0, 2),
        identification: 0,
        dont_fragment: true,
    };
    Grh::of_fields(&ip, 100)
}

/// Sends `message` into a receive of these pieces; returns its completion and the memory.
fn transfer(service: Service, pieces: &[Piece], message: &[u8]) -> (Completion, HeapMemory) {
    let Target { memory, segments } = target(pieces);
    let request = RecvRequest {
        id: WrId(9),
        segments: &segments,
    };
    let shared = SharedReceiveQueue::new(4);
    match service {
        Service::Reliable | Service::ReliableShared | Service::Unreliable => {
            let settings = Settings {
                mtu: MTU,
                ..Settings::default()
            };
            let receiver = match service {
                Service::ReliableShared => QueuePair::with_shared_receives(
                    QPNS[1],
                    settings.caps,
                    settings.config,
                    &shared,
                ),
                Service::Unreliable => QueuePair::unreliable(QPNS[1], settings.caps, None),
                _ => QueuePair::with_config(QPNS[1], settings.caps, settings.config),
            };
            let mut receiver = connect(receiver, QPNS[0], 1, &settings);
            match service {
                Service::ReliableShared => shared.post(&request).unwrap(),
                _ => receiver.post_recv(&request).unwrap(),
            }
            let sender = match service {
                Service::Unreliable => {
                    let sender = QueuePair::unreliable(QPNS[0], settings.caps, None);
                    connect(sender, QPNS[1], 0, &settings)
                }
                _ => connected(0, &settings),
            };
            let (source, lkey) = source(message);
            let [sender, receiver] = [(sender, source), (receiver, memory)];
            let sides = [sender, receiver].map(|(qp, memory)| Side { qp, memory });
            let mut net = Network::new(sides, 1);
            net.sides[0]
                .qp
                .post_send(&SendRequest {
                    id: WrId(1),
                    operation: Operation::Send { immediate: None },
                    data: Data::Segments(&[segment_of(lkey, message)]),
                    flags: SendFlags::SIGNALLED,
                })
                .unwrap();
            net.settle();
            let received = net.completions(1);
            let sent = net.completions(0);
            let status = match (service, received[0].status) {
                (Service::Unreliable, _) | (_, WcStatus::Success) => WcStatus::Success,
                _ => WcStatus::RemoteOperation,
            };
            assert_eq!(sent[0].status, status, "{service:?}");
            let [_, receiver] = net.sides;
            (received[0], receiver.memory)
        }
        Service::Datagram | Service::DatagramShared => {
            let mut qp = match service {
                Service::Datagram => UdQueuePair::new(QPNS[1], CAPS, MTU),
                _ => UdQueuePair::with_shared_receives(QPNS[1], CAPS, MTU, &shared),
            };
            ready(&mut qp);
            match service {
                Service::Datagram => qp.post_recv(&request).unwrap(),
                _ => shared.post(&request).unwrap(),
            }
            let packet = datagram(message);
            let packet = Packet::new(&packet).unwrap();
            let mut memory = memory;
            let outcome = qp.receive(&packet, &grh(), &mut memory);
            assert_eq!(outcome, UdReceived::Completed);
            (qp.poll_completion().unwrap(), memory)
        }
        Service::Frame => {
            let mut qp = RawPacketQueuePair::new(QPNS[1], CAPS);
            qp.to_init().unwrap();
            qp.to_rtr().unwrap();
            qp.post_recv(&request).unwrap();
            let mut memory = memory;
            let outcome = qp.receive(message, true, &mut memory);
            assert_eq!(outcome, FrameReceived::Completed);
            (qp.poll_completion().unwrap(), memory)
        }
    }
}

/// Returns memory that holds a message.
fn source(message: &[u8]) -> (HeapMemory, Lkey) {
    let mut memory = HeapMemory::new();
    let (lkey, _) = memory.register(BASE, message.to_vec(), Access::empty());
    (memory, lkey)
}

fn segment_of(lkey: Lkey, message: &[u8]) -> Segment {
    Segment {
        lkey,
        addr: BASE,
        len: message.len() as u32,
    }
}

fn ready(qp: &mut UdQueuePair<()>) {
    qp.to_init(QKEY).unwrap();
    qp.to_rtr().unwrap();
    qp.to_rts(Psn::new(5)).unwrap();
}

/// Returns the packet of a datagram.
fn datagram(message: &[u8]) -> Vec<u8> {
    let mut sender = UdQueuePair::new(QPNS[0], CAPS, MTU);
    ready(&mut sender);
    let (mut memory, lkey) = source(message);
    let request = UdSendRequest {
        id: WrId(1),
        to: (),
        dest_qpn: QPNS[1],
        qkey: QKEY,
        immediate: None,
        data: Data::Segments(&[segment_of(lkey, message)]),
        flags: SendFlags::SIGNALLED,
    };
    sender.post_send(&request).unwrap();
    let mut out = vec![0; MAX_DATAGRAM];
    let (len, ()) = sender.poll_transmit(&mut memory, &mut out).unwrap();
    out.truncate(len);
    out
}

/// Returns how many of `stored` bytes each piece gets.
fn shares(pieces: &[Piece], stored: usize) -> Vec<usize> {
    let mut left = stored;
    let shares = pieces.iter().map(|piece| {
        let here = left.min(piece.len as usize);
        left -= here;
        here
    });
    shares.collect()
}

/// Returns the contents of the regions, as far as segments cover them, one after the other.
fn contents(memory: &HeapMemory, pieces: &[Piece], shares: &[usize]) -> Vec<u8> {
    let segments = target(pieces).segments;
    let mut all = Vec::new();
    for ((piece, share), segment) in pieces.iter().zip(shares).zip(segments) {
        if let Some(bytes) = memory.bytes(segment.lkey) {
            let (stored, rest) = bytes.split_at((*share).min(bytes.len()));
            assert!(rest.iter().all(|byte| *byte == UNTOUCHED), "{piece:?}");
            all.extend_from_slice(stored);
        }
    }
    all
}

fn pieces() -> impl Strategy<Value = Vec<Piece>> {
    let registration = prop_oneof![
        6 => Just(Registration::Writable),
        1 => Just(Registration::ReadOnly),
        1 => Just(Registration::None),
    ];
    let piece = (0..400_u32, 0..500_usize, registration);
    let piece = piece.prop_map(|(len, region, registration)| Piece {
        len,
        region,
        registration,
    });
    prop::collection::vec(piece, 0..5)
}

proptest! {
    #[test]
    fn a_receive_succeeds_if_and_only_if_the_bytes_of_its_message_can_be_written(
        pieces in pieces(),
        service in prop::sample::select(SERVICES.to_vec()),
        share in 0..=1000_usize,
    ) {
        let capacity: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        prop_assume!(capacity >= service.header());
        let most = capacity - service.header();
        let len = most * share / 1000;
        prop_assume!(service.accepts(len));
        let message: Vec<u8> = (0..len).map(|n| (n % 199) as u8).collect();
        let shares = shares(&pieces, service.header() + len);
        let fits = pieces.iter().zip(&shares).all(|(piece, share)| *share <= piece.usable());
        let (done, memory) = transfer(service, &pieces, &message);
        prop_assert_eq!(done.id, WrId(9));
        if fits {
            prop_assert_eq!(done.status, WcStatus::Success);
            prop_assert_eq!(done.byte_len as usize, service.header() + len);
            let stored = contents(&memory, &pieces, &shares);
            prop_assert_eq!(&stored[service.header()..], &message[..]);
        } else {
            prop_assert_eq!(done.status, WcStatus::LocalProtection);
        }
        // Memory after the end of the message makes no difference.
        let mut other = pieces.clone();
        for (piece, share) in other.iter_mut().zip(&shares) {
            if *share == 0 {
                piece.registration = Registration::None;
            } else if *share <= piece.usable() {
                piece.region = *share;
            }
        }
        let (again, memory) = transfer(service, &other, &message);
        prop_assert_eq!((again.status, again.byte_len), (done.status, done.byte_len));
        contents(&memory, &other, &shares);
    }
}

#[test]
fn a_message_that_fits_the_region_is_right_though_its_receive_ends_behind_it() {
    let piece = Piece {
        len: 4096,
        region: 1024,
        registration: Registration::Writable,
    };
    for service in SERVICES {
        let room = match service {
            Service::Datagram | Service::DatagramShared => MTU.bytes() - Grh::LEN,
            _ => piece.region,
        };
        let message = vec![3; room];
        let (done, _) = transfer(service, &[piece], &message);
        assert_eq!(done.status, WcStatus::Success, "{service:?}");
        let small = Piece {
            region: service.header() + room - 1,
            ..piece
        };
        let (done, _) = transfer(service, &[small], &message);
        assert_eq!(done.status, WcStatus::LocalProtection, "{service:?}");
    }
}
