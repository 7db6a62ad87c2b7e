//! How two ends of this crate go beyond the specification: packets of equal length, and fewer acknowledgements.
use std::time::Duration;

use crate::fixture::{BASE, Pair, Settings, pair, path};
use gdr_roce::wire::{Packet, icrc};
use gdr_roce::{
    Access, AckTimeout, AtomicOp, Data, Immediate, Mtu, Operation, RecvRequest, Remote, Segment,
    SendFlags, SendRequest, WcStatus, WrId,
};

const MTU: u32 = Mtu::B1024.bytes() as u32;
/// The byte and bit by which an acknowledgement identifies its sender's implementation.
const FLAGS: usize = 8;
const FILLED: u8 = 0x40;

/// Returns a connection without a retransmission timer.
fn connected() -> Pair {
    let settings = Settings {
        mtu: Mtu::B1024,
        timeout: AckTimeout::NEVER,
        ..Settings::default()
    };
    pair(&settings, 1 << 16, Access::all())
}

fn write(pair: &mut Pair, len: u32, immediate: Option<Immediate>, flags: SendFlags) {
    let segments = [Segment {
        lkey: pair.lkeys[0],
        addr: BASE,
        len,
    }];
    let remote = Remote {
        rkey: pair.rkeys[1],
        addr: BASE,
    };
    let request = SendRequest {
        id: WrId(0),
        operation: Operation::Write { remote, immediate },
        data: Data::Segments(&segments),
        flags,
    };
    pair.net.sides[0].qp.post_send(&request).unwrap();
}

/// Delivers the packets that side 0 has ready, and returns them.
fn send(pair: &mut Pair) -> Vec<Vec<u8>> {
    let packets: Vec<_> = std::iter::from_fn(|| pair.net.poll(0)).collect();
    for packet in &packets {
        pair.net.deliver(1, packet);
    }
    packets
}

/// Delivers the packets that side 1 has ready, with the identifying bit as given. Returns whether there were any.
fn answer(pair: &mut Pair, bit: u8) -> bool {
    let mut any = false;
    while let Some(mut packet) = pair.net.poll(1) {
        packet[FLAGS] = packet[FLAGS] & !FILLED | bit;
        icrc::seal(&path(), &mut packet);
        pair.net.deliver(0, &packet);
        any = true;
    }
    any
}

fn lengths(packets: &[Vec<u8>]) -> Vec<usize> {
    packets.iter().map(Vec::len).collect()
}

fn requests_ack(packets: &[Vec<u8>]) -> bool {
    let packet = Packet::new(packets.last().unwrap()).unwrap();
    packet.bth().ack_request
}

/// The lengths of a packet with a RETH and of one without.
const WITH_RETH: usize = 12 + 16 + MTU as usize + 4;
const WITHOUT: usize = WITH_RETH - 16;

#[test]
fn all_packets_of_a_write_have_one_length_once_the_peer_is_known() {
    let mut pair = connected();
    let lkeys = pair.lkeys;
    write(&mut pair, 3 * MTU, None, SendFlags::SIGNALLED);
    assert_eq!(lengths(&send(&mut pair)), [WITH_RETH, WITHOUT, WITHOUT]);
    assert!(answer(&mut pair, FILLED));

    let bytes = pair.net.sides[0].memory.bytes_mut(lkeys[0]).unwrap();
    for (n, byte) in bytes.iter_mut().enumerate() {
        *byte = (n * 7) as u8;
    }
    write(&mut pair, 3 * MTU, None, SendFlags::SIGNALLED);
    assert_eq!(lengths(&send(&mut pair)), [WITH_RETH; 3]);
    let sides = &pair.net.sides;
    let regions = [0, 1].map(|side| sides[side].memory.bytes(lkeys[side]).unwrap());
    let (written, rest) = regions[1].split_at(3 * MTU as usize);
    assert_eq!(written, &regions[0][..written.len()]);
    assert!(rest.iter().all(|byte| *byte == 1), "bytes beyond the WRITE");
    assert!(answer(&mut pair, FILLED));

    write(&mut pair, 2 * MTU + 8, None, SendFlags::SIGNALLED);
    let short = WITHOUT - MTU as usize + 8;
    assert_eq!(lengths(&send(&mut pair)), [WITH_RETH, WITH_RETH, short]);
    assert!(answer(&mut pair, FILLED));

    let receive = RecvRequest {
        id: WrId(1),
        segments: &[],
    };
    pair.net.sides[1].qp.post_recv(&receive).unwrap();
    write(&mut pair, 2 * MTU, Some(Immediate(7)), SendFlags::SIGNALLED);
    assert_eq!(lengths(&send(&mut pair)), [WITH_RETH, WITHOUT + 4]);
    assert_eq!(pair.net.completions(1)[0].immediate, Some(Immediate(7)));
}

#[test]
fn a_peer_of_another_kind_gets_the_packets_of_the_specification() {
    let mut pair = connected();
    for _ in 0..3 {
        write(&mut pair, 2 * MTU, None, SendFlags::empty());
        let packets = send(&mut pair);
        assert_eq!(lengths(&packets), [WITH_RETH, WITHOUT]);
        assert!(requests_ack(&packets));
        assert!(answer(&mut pair, 0));
    }
}

/// Returns a connection whose ends have identified each other, after an unsignalled message was delivered.
fn after_an_unsignalled_message() -> Pair {
    let mut pair = connected();
    write(&mut pair, 8, None, SendFlags::empty());
    assert!(requests_ack(&send(&mut pair)), "the peer is unknown");
    assert!(answer(&mut pair, FILLED));
    write(&mut pair, 8, None, SendFlags::empty());
    assert!(!requests_ack(&send(&mut pair)));
    assert!(!answer(&mut pair, FILLED));
    assert!(pair.net.sides[0].qp.has_outstanding());
    pair
}

#[test]
fn a_message_that_requests_no_acknowledgement_gets_one_soon() {
    let mut pair = after_an_unsignalled_message();
    let due = pair.net.sides[1].qp.next_deadline().unwrap();
    assert!(due <= pair.net.now + Duration::from_millis(1));
    pair.net.settle();
    assert!(!pair.net.sides[0].qp.has_outstanding());
    assert_eq!(pair.net.sides[0].qp.statistics().timeouts, 0);
    assert_eq!(pair.net.sides[1].qp.next_deadline(), None);
}

#[test]
fn a_signalled_message_has_the_earlier_ones_acknowledged_with_it() {
    let mut pair = after_an_unsignalled_message();
    write(&mut pair, 8, None, SendFlags::SIGNALLED);
    assert!(requests_ack(&send(&mut pair)));
    assert!(answer(&mut pair, FILLED));
    assert!(!pair.net.sides[0].qp.has_outstanding());
    assert_eq!(pair.net.completions(0).len(), 1);
    assert_eq!(pair.net.sides[1].qp.next_deadline(), None);
}

#[test]
fn a_connection_that_ends_acknowledges_what_it_has_executed() {
    let mut pair = after_an_unsignalled_message();
    assert!(pair.net.sides[1].qp.acknowledge());
    assert!(answer(&mut pair, FILLED));
    assert!(!pair.net.sides[0].qp.has_outstanding());
    assert!(!pair.net.sides[1].qp.acknowledge());
}

/// Connects with one READ or atomic outstanding, as NCCL does.
fn connected_for_one_atomic() -> Pair {
    let settings = Settings {
        max_rd_atomic: 1,
        ..Settings::default()
    };
    pair(&settings, 4096, Access::all())
}

fn add_one(pair: &mut Pair) {
    let segments = [Segment {
        lkey: pair.lkeys[0],
        addr: BASE + 8,
        len: 8,
    }];
    let request = SendRequest {
        id: WrId(0),
        operation: Operation::Atomic {
            remote: Remote {
                rkey: pair.rkeys[1],
                addr: BASE,
            },
            op: AtomicOp::FetchAdd { add: 1 },
        },
        data: Data::Segments(&segments),
        flags: SendFlags::SIGNALLED,
    };
    pair.net.sides[0].qp.post_send(&request).unwrap();
}

#[test]
fn atomics_are_pipelined_once_the_peer_is_known() {
    let mut pair = connected_for_one_atomic();
    (0..3).for_each(|_| add_one(&mut pair));
    assert_eq!(send(&mut pair).len(), 1, "the peer may keep one result");
    assert!(answer(&mut pair, FILLED));
    assert_eq!(send(&mut pair).len(), 2);
    assert!(answer(&mut pair, FILLED));

    (0..20).for_each(|_| add_one(&mut pair));
    assert_eq!(send(&mut pair).len(), 16);
    assert!(answer(&mut pair, FILLED));
    assert_eq!(send(&mut pair).len(), 4);
    assert!(answer(&mut pair, FILLED));
    let completions = pair.net.completions(0);
    assert_eq!(completions.len(), 23);
    assert!(
        completions
            .iter()
            .all(|one| one.status == WcStatus::Success)
    );
    let word = &pair.net.sides[1].memory.bytes(pair.lkeys[1]).unwrap()[..8];
    let was = u64::from_ne_bytes([1; 8]);
    assert_eq!(word, (was + 23).to_ne_bytes());
}

#[test]
fn atomics_wait_for_each_other_where_the_peer_is_of_another_kind() {
    let mut pair = connected_for_one_atomic();
    (0..3).for_each(|_| add_one(&mut pair));
    for _ in 0..3 {
        assert_eq!(send(&mut pair).len(), 1);
        assert!(answer(&mut pair, 0));
    }
}

#[test]
fn lost_results_of_pipelined_atomics_are_repeated() {
    let mut pair = connected_for_one_atomic();
    add_one(&mut pair);
    send(&mut pair);
    assert!(answer(&mut pair, FILLED));
    (0..16).for_each(|_| add_one(&mut pair));
    let requests = send(&mut pair);
    assert_eq!(requests.len(), 16);
    while pair.net.poll(1).is_some() {}
    for packet in &requests {
        pair.net.deliver(1, packet);
    }
    assert!(answer(&mut pair, FILLED));
    assert_eq!(pair.net.completions(0).len(), 17);
    let word = &pair.net.sides[1].memory.bytes(pair.lkeys[1]).unwrap()[..8];
    let was = u64::from_ne_bytes([1; 8]);
    assert_eq!(word, (was + 17).to_ne_bytes(), "each is done once");
}

#[test]
fn a_pipelined_atomic_beyond_the_results_that_are_kept_is_refused() {
    for (filled, granted) in [(FILLED, 16), (0, 1)] {
        let mut pair = connected_for_one_atomic();
        add_one(&mut pair);
        let mut packet = send(&mut pair).remove(0);
        // The answer to the packet that was sent is already queued.
        let mut psn = Packet::new(&packet).unwrap().bth().psn;
        let mut refused_after = 1;
        loop {
            psn = psn.wrapping_add(1);
            packet[FLAGS] = packet[FLAGS] & !FILLED | filled;
            packet[9..12].copy_from_slice(&psn.get().to_be_bytes()[1..]);
            icrc::seal(&path(), &mut packet);
            pair.net.deliver(1, &packet);
            let word = &pair.net.sides[1].memory.bytes(pair.lkeys[1]).unwrap()[..8];
            let was = u64::from_ne_bytes([1; 8]);
            if word != (was + refused_after + 1).to_ne_bytes() {
                break;
            }
            refused_after += 1;
        }
        assert_eq!(refused_after, granted);
    }
}
