//! Invalid requests.

use std::iter;

use gdr_roce::wire::{Bth, Headers, Ieth, NakCode, Opcode, Reth, Syndrome, icrc};
use gdr_roce::{Access, PartitionKey, Qpn, RecvRequest, Rkey, Segment, State, WcStatus, WrId};

use super::target::{LEN, MTU, SECRET, Sent, Target, atomic, headers, nak, plain, reth, seal};
use crate::fixture::{BASE, QPNS, Settings, path};

/// Ranges with at least one byte outside the open region.
const OUTSIDE: [(u64, u32); 6] = [
    (BASE - 1, 16),
    (BASE + LEN as u64 - 15, 16),
    (BASE + LEN as u64, 16),
    (u64::MAX - 7, 16),
    (0, 16),
    (BASE, LEN as u32 + 1),
];

#[test]
fn a_wrong_key_range_or_permission_is_a_remote_access_error() {
    for opcode in [Opcode::WriteOnly, Opcode::ReadRequest] {
        let payload = if opcode == Opcode::ReadRequest { 0 } else { 16 };
        let (open, readable) = (Target::new().open, Target::new().readable);
        for rkey in [Rkey(0), Rkey(!0), Rkey(open.0.0), Rkey(readable.1.0 + 1)] {
            let request = reth(opcode, 0, rkey, BASE, 16, payload);
            Target::new().assert_nak(&request, NakCode::RemoteAccess);
        }
        for (addr, len) in OUTSIDE {
            let opcode = if opcode.is_write() && len > 16 {
                Opcode::WriteFirst
            } else {
                opcode
            };
            let payload = if opcode == Opcode::WriteFirst {
                MTU
            } else {
                payload
            };
            let request = reth(opcode, 0, open.1, addr, len, payload);
            Target::new().assert_nak(&request, NakCode::RemoteAccess);
        }
    }
    let target = Target::new();
    let request = reth(
        Opcode::WriteOnly,
        0,
        target.readable.1,
        BASE + (1 << 20),
        16,
        16,
    );
    target.assert_nak(&request, NakCode::RemoteAccess);
    let target = Target::new();
    let request = atomic(0, target.readable.1, BASE + (1 << 20));
    target.assert_nak(&request, NakCode::RemoteAccess);
    let request = atomic(0, Target::new().open.1, BASE + LEN as u64);
    Target::new().assert_nak(&request, NakCode::RemoteAccess);
}

#[test]
fn an_operation_that_the_queue_pair_does_not_allow_is_an_invalid_request() {
    let settings = Settings {
        access: Access::LOCAL_WRITE,
        ..Settings::default()
    };
    let rkey = Target::new().open.1;
    for request in [
        reth(Opcode::WriteOnly, 0, rkey, BASE, 16, 16),
        reth(Opcode::ReadRequest, 0, rkey, BASE, 16, 0),
        atomic(0, rkey, BASE),
    ] {
        Target::with(&settings).assert_nak(&request, NakCode::InvalidRequest);
    }
}

#[test]
fn a_gap_gets_one_sequence_error_nak_and_a_duplicate_only_an_ack() {
    let mut target = Target::new();
    let rkey = target.open.1;
    let expected = target.first;
    let write = |psn| reth(Opcode::WriteOnly, psn, rkey, BASE, 4, 4);
    for (psn, expected_sent) in [
        (1, nak(NakCode::SequenceError, expected)),
        (2, Sent::Nothing),
        ((1 << 23) - 1, Sent::Nothing),
        (
            1 << 23,
            Sent::Ack(Syndrome::ACK, (expected - 1) & 0xff_ffff),
        ),
        (
            0xff_ffff,
            Sent::Ack(Syndrome::ACK, (expected - 1) & 0xff_ffff),
        ),
    ] {
        target.receive(&write(psn));
        assert_eq!(target.poll(), expected_sent, "psn + {psn:#x}");
        assert!(target.is_untouched());
    }
    assert_eq!(target.qp.state(), State::ReadyToSend);
    target.receive(&write(0));
    assert_eq!(target.poll(), Sent::Ack(Syndrome::ACK, expected));
    assert!(!target.is_untouched(), "the expected packet is executed");
    target.receive(&write(2));
    assert_eq!(
        target.poll(),
        nak(NakCode::SequenceError, (expected + 1) & 0xff_ffff)
    );
}

#[test]
fn a_gap_that_is_noticed_while_the_response_queue_is_full_is_reported_later() {
    let mut target = Target::new();
    let rkey = target.open.1;
    for _ in 0..200 {
        // No receive is posted, so each SEND triggers an RNR NAK, with a duplicate WRITE in between.
        target.receive(&plain(Opcode::SendOnly, 0, 4));
        target.receive(&reth(Opcode::WriteOnly, 0xff_ffff, rkey, BASE, 4, 4));
    }
    let gap = reth(Opcode::WriteOnly, 3, rkey, BASE, 4, 4);
    let reported = nak(NakCode::SequenceError, target.first);
    target.receive(&gap);
    let sent: Vec<_> =
        iter::from_fn(|| Some(target.poll()).filter(|a| *a != Sent::Nothing)).collect();
    assert!(
        !sent.contains(&reported),
        "the queue has room: {}",
        sent.len()
    );
    target.receive(&gap);
    assert_eq!(target.poll(), reported);
}

#[test]
fn a_message_without_a_first_packet_is_an_invalid_request() {
    use Opcode::*;
    for opcode in [
        SendMiddle,
        SendLast,
        SendLastImmediate,
        WriteMiddle,
        WriteLast,
        WriteLastImmediate,
    ] {
        Target::new().assert_nak(&plain(opcode, 0, MTU), NakCode::InvalidRequest);
    }
}

#[test]
fn a_packet_of_another_message_within_a_message_is_an_invalid_request() {
    use Opcode::*;
    let rkey = Target::new().open.1;
    for opcode in [
        WriteFirst,
        WriteOnly,
        SendFirst,
        SendMiddle,
        SendOnly,
        ReadRequest,
        FetchAdd,
    ] {
        let mut target = Target::new();
        target.receive(&reth(WriteFirst, 0, rkey, BASE, 3 * MTU as u32, MTU));
        assert_eq!(target.poll(), Sent::Ack(Syndrome::ACK, target.first));
        let payload = if opcode.has_payload() { MTU } else { 0 };
        target.receive(&plain(opcode, 1, payload));
        assert_eq!(
            target.poll(),
            nak(NakCode::InvalidRequest, target.first + 1),
            "{opcode:?}"
        );
        let bytes = target.memory.bytes(target.open.0).expect("registered");
        assert!(bytes[MTU..].iter().all(|byte| *byte == SECRET));
    }
    for opcode in [
        SendFirst,
        SendOnly,
        WriteMiddle,
        WriteLast,
        WriteOnly,
        ReadRequest,
    ] {
        let mut target = Target::new();
        let segments = [Segment {
            lkey: target.open.0,
            addr: BASE,
            len: LEN as u32,
        }];
        target
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &segments,
            })
            .expect("room");
        target.receive(&plain(SendFirst, 0, MTU));
        target.poll();
        let payload = if opcode.has_payload() { MTU } else { 0 };
        target.receive(&plain(opcode, 1, payload));
        assert_eq!(
            target.poll(),
            nak(NakCode::InvalidRequest, target.first + 1),
            "{opcode:?}"
        );
        let done = target
            .qp
            .poll_completion()
            .map(|done| (done.id, done.status));
        assert_eq!(done, Some((WrId(7), WcStatus::RemoteInvalidRequest)));
    }
}

#[test]
fn a_wrong_length_is_an_invalid_request() {
    let rkey = Target::new().open.1;
    let mtu = MTU as u32;
    for (opcode, dma_len, payload) in [
        // DMA length and payload length differ.
        (Opcode::WriteOnly, 16, 15),
        (Opcode::WriteOnly, 16, 17),
        (Opcode::WriteOnly, 0, 4),
        (Opcode::WriteOnly, 4, 0),
        (Opcode::WriteOnlyImmediate, 3, 4),
        // The payload is longer than the MTU.
        (Opcode::WriteOnly, mtu + 4, MTU + 4),
        (Opcode::WriteFirst, 4 * mtu, MTU + 4),
        // A first packet that is short, or that is the whole message.
        (Opcode::WriteFirst, 4 * mtu, MTU - 4),
        (Opcode::WriteFirst, 4 * mtu, 0),
        (Opcode::WriteFirst, mtu, MTU),
        (Opcode::WriteFirst, 0, MTU),
        // Longer than the maximum message.
        (Opcode::WriteFirst, u32::MAX, MTU),
        (Opcode::WriteFirst, (1 << 31) + 1, MTU),
        (Opcode::ReadRequest, u32::MAX, 0),
    ] {
        let mut target = Target::new();
        target
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &[],
            })
            .expect("room");
        let request = reth(opcode, 0, rkey, BASE, dma_len, payload);
        target.assert_nak(&request, NakCode::InvalidRequest);
    }
    for (opcode, payload) in [
        (Opcode::WriteMiddle, MTU - 4),
        (Opcode::WriteMiddle, 0),
        (Opcode::WriteLast, 0),
        (Opcode::WriteLast, 499),
        (Opcode::WriteLast, 501),
        (Opcode::WriteLast, MTU),
        // Completes the message, so it would have to be a last packet.
        (Opcode::WriteMiddle, MTU),
    ] {
        let mut target = Target::new();
        target.receive(&reth(Opcode::WriteFirst, 0, rkey, BASE, mtu + 500, MTU));
        target.poll();
        target.receive(&plain(opcode, 1, payload));
        assert_eq!(
            target.poll(),
            nak(NakCode::InvalidRequest, target.first + 1)
        );
        let bytes = target.memory.bytes(target.open.0).expect("registered");
        assert!(bytes[MTU..].iter().all(|byte| *byte == SECRET));
    }
    for (opcode, payload) in [
        (Opcode::SendFirst, MTU - 4),
        (Opcode::SendFirst, 0),
        (Opcode::SendOnly, MTU + 4),
    ] {
        let mut target = Target::new();
        let segments = [Segment {
            lkey: target.open.0,
            addr: BASE,
            len: LEN as u32,
        }];
        target
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &segments,
            })
            .expect("room");
        target.assert_nak(&plain(opcode, 0, payload), NakCode::InvalidRequest);
    }
}

#[test]
fn an_empty_range_needs_no_valid_key() {
    let mut target = Target::new();
    target.receive(&reth(Opcode::WriteOnly, 0, Rkey(0), 0, 0, 0));
    assert_eq!(
        target.poll(),
        Sent::Ack(Syndrome::ACK, target.first),
        "an empty WRITE"
    );
    target.receive(&reth(Opcode::ReadRequest, 1, Rkey(0), 0, 0, 0));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseOnly));
    assert!(target.is_untouched());
}

#[test]
fn an_atomic_at_an_unaligned_address_is_an_invalid_request() {
    let rkey = Target::new().open.1;
    for offset in 1..8 {
        Target::new().assert_nak(&atomic(0, rkey, BASE + offset), NakCode::InvalidRequest);
    }
}

#[test]
fn a_duplicate_atomic_gets_a_response_and_is_not_executed_again() {
    let mut target = Target::new();
    let rkey = target.open.1;
    let add = atomic(0, rkey, BASE);
    let value = |target: &Target| {
        let bytes = target.memory.bytes(target.open.0).expect("registered");
        u64::from_ne_bytes(*bytes.first_chunk().expect("eight"))
    };
    let before = value(&target);
    for _ in 0..3 {
        target.receive(&add);
        assert_eq!(target.poll(), Sent::Packet(Opcode::AtomicAcknowledge));
        assert_eq!(value(&target), before + 1);
    }
    // A PSN that does not belong to an atomic.
    target.receive(&atomic(0xff_ffff, rkey, BASE));
    assert_eq!(target.poll(), Sent::Nothing);
    assert_eq!(value(&target), before + 1);
}

#[test]
fn more_outstanding_reads_than_allowed_are_an_invalid_request() {
    let mut target = Target::new();
    let rkey = target.open.1;
    for psn in 0..5 {
        target.receive(&reth(Opcode::ReadRequest, psn, rkey, BASE, 4, 0));
    }
    for _ in 0..4 {
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseOnly));
    }
    assert_eq!(
        target.poll(),
        nak(NakCode::InvalidRequest, target.first + 4)
    );
}

#[test]
fn a_repeated_read_beyond_the_end_of_the_first_one_is_dropped() {
    let mut target = Target::new();
    let rkey = target.open.1;
    target.receive(&reth(Opcode::ReadRequest, 0, rkey, BASE, 4, 0));
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadResponseOnly));
    target.receive(&reth(Opcode::ReadRequest, 0, rkey, BASE, 2 * MTU as u32, 0));
    assert_eq!(target.poll(), Sent::Nothing);
    target.receive(&reth(Opcode::ReadRequest, 0, Rkey(1), BASE, 4, 0));
    assert_eq!(target.poll(), Sent::Nothing);
    for _ in 0..10_000 {
        target.receive(&reth(Opcode::ReadRequest, 0, rkey, BASE, 4, 0));
        target.receive(&reth(Opcode::WriteOnly, 0xff_ffff, rkey, BASE, 4, 4));
    }
    let packets = std::iter::from_fn(|| Some(target.poll()).filter(|a| *a != Sent::Nothing));
    assert!(packets.count() < 200, "the response queue is bounded");
    assert!(target.is_untouched());
}

#[test]
fn a_peer_that_sends_without_receiving_cannot_grow_the_response_queue() {
    let mut target = Target::new();
    let rkey = target.open.1;
    for _ in 0..10_000 {
        // No receive is posted, so each SEND triggers an RNR NAK, with a duplicate WRITE in between.
        target.receive(&plain(Opcode::SendOnly, 0, 4));
        target.receive(&reth(Opcode::WriteOnly, 0xff_ffff, rkey, BASE, 4, 4));
    }
    let packets = std::iter::from_fn(|| Some(target.poll()).filter(|a| *a != Sent::Nothing));
    assert!(packets.count() < 200);
    assert!(target.is_untouched());
    target.receive(&reth(Opcode::WriteOnly, 0, rkey, BASE, 4, 4));
    assert_eq!(
        target.poll(),
        Sent::Ack(Syndrome::ACK, target.first),
        "the connection is still usable"
    );
}

#[test]
fn a_send_with_invalidate_is_an_invalid_request() {
    let mut target = Target::new();
    target
        .qp
        .post_recv(&RecvRequest {
            id: WrId(7),
            segments: &[],
        })
        .expect("room");
    let invalidate = Some(Ieth(target.open.1));
    let request = Headers {
        invalidate,
        ..headers(Opcode::SendOnlyInvalidate, 0)
    };
    target.assert_nak(&seal(&request, &[]), NakCode::InvalidRequest);
}

#[test]
fn a_truncated_corrupt_or_misdirected_packet_is_dropped() {
    let rkey = Target::new().open.1;
    let valid = reth(Opcode::WriteOnly, 0, rkey, BASE, 37, 37);
    let mut invalid: Vec<Vec<u8>> = Vec::new();
    for len in 0..valid.len() {
        invalid.push(valid[..len].to_vec());
        let mut sealed = valid[..len].to_vec();
        icrc::seal(&path(), &mut sealed);
        if len < Bth::LEN + Reth::LEN + icrc::LEN {
            invalid.push(sealed);
        }
    }
    for bit in 0..valid.len() * 8 {
        let mut broken = valid.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        if bit / 8 != 4 {
            invalid.push(broken);
        }
    }
    let mut other = headers(Opcode::WriteOnly, 0);
    other.reth = Some(Reth {
        addr: BASE,
        rkey,
        dma_len: 4,
    });
    for bth in [
        Bth {
            dest_qpn: Qpn::new(QPNS[1].get() + 1),
            ..other.bth
        },
        Bth {
            dest_qpn: Qpn::new(0),
            ..other.bth
        },
        Bth {
            partition: PartitionKey(0xfffe),
            ..other.bth
        },
        Bth {
            version: 1,
            ..other.bth
        },
    ] {
        invalid.push(seal(&Headers { bth, ..other }, &[1, 2, 3, 4]));
    }
    let mut target = Target::new();
    for packet in &invalid {
        target.receive(packet);
        assert!(target.is_untouched());
        assert_eq!(target.poll(), Sent::Nothing);
    }
    assert_eq!(target.qp.state(), State::ReadyToSend);
    target.receive(&valid);
    assert!(!target.is_untouched(), "the valid packet is executed");
}

#[test]
fn a_congestion_notification_is_ignored_whatever_its_number() {
    let mut target = Target::new();
    for psn in [0, 1, 77, 0xff_ffff] {
        let notification = headers(Opcode::CongestionNotification, psn);
        for payload in [0, 16] {
            target.receive(&seal(&notification, &vec![0; payload]));
            assert_eq!(target.poll(), Sent::Nothing, "{psn}");
        }
    }
    assert_eq!(target.qp.state(), State::ReadyToSend);
    target.receive(&reth(Opcode::WriteOnly, 0, target.open.1, BASE, 4, 4));
    assert!(matches!(target.poll(), Sent::Ack(Syndrome::Ack { .. }, _)));
}
