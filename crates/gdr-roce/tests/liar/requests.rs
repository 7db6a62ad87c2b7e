//! Requests that must not be served.

use gdr_roce::wire::{Bth, Headers, Ieth, NakCode, Opcode, Reth, Syndrome, icrc};
use gdr_roce::{Access, PartitionKey, Qpn, RecvRequest, Rkey, Segment, State, WcStatus, WrId};

use crate::fixture::{BASE, QPNS, Settings, path};
use crate::victim::{Answer, LEN, MTU, SECRET, Victim, atomic, headers, nak, plain, reth, seal};

/// Ranges of which at least one byte is outside of the open region.
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
        let (open, readable) = (Victim::new().open, Victim::new().readable);
        for rkey in [Rkey(0), Rkey(!0), Rkey(open.0.0), Rkey(readable.1.0 + 1)] {
            let lie = reth(opcode, 0, rkey, BASE, 16, payload);
            Victim::new().refuses(&lie, NakCode::RemoteAccess);
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
            let lie = reth(opcode, 0, open.1, addr, len, payload);
            Victim::new().refuses(&lie, NakCode::RemoteAccess);
        }
    }
    let victim = Victim::new();
    let lie = reth(
        Opcode::WriteOnly,
        0,
        victim.readable.1,
        BASE + (1 << 20),
        16,
        16,
    );
    victim.refuses(&lie, NakCode::RemoteAccess);
    let victim = Victim::new();
    let lie = atomic(0, victim.readable.1, BASE + (1 << 20));
    victim.refuses(&lie, NakCode::RemoteAccess);
    let lie = atomic(0, Victim::new().open.1, BASE + LEN as u64);
    Victim::new().refuses(&lie, NakCode::RemoteAccess);
}

#[test]
fn an_operation_that_the_queue_pair_does_not_allow_is_an_invalid_request() {
    let settings = Settings {
        access: Access::LOCAL_WRITE,
        ..Settings::default()
    };
    let rkey = Victim::new().open.1;
    for lie in [
        reth(Opcode::WriteOnly, 0, rkey, BASE, 16, 16),
        reth(Opcode::ReadRequest, 0, rkey, BASE, 16, 0),
        atomic(0, rkey, BASE),
    ] {
        Victim::with(&settings).refuses(&lie, NakCode::InvalidRequest);
    }
}

#[test]
fn a_packet_ahead_is_refused_once_and_one_behind_is_only_acknowledged() {
    let mut victim = Victim::new();
    let rkey = victim.open.1;
    let expected = victim.first;
    let write = |psn| reth(Opcode::WriteOnly, psn, rkey, BASE, 4, 4);
    for (psn, answer) in [
        (1, nak(NakCode::SequenceError, expected)),
        (2, Answer::Nothing),
        ((1 << 23) - 1, Answer::Nothing),
        (
            1 << 23,
            Answer::Said(Syndrome::ACK, (expected - 1) & 0xff_ffff),
        ),
        (
            0xff_ffff,
            Answer::Said(Syndrome::ACK, (expected - 1) & 0xff_ffff),
        ),
    ] {
        victim.hear(&write(psn));
        assert_eq!(victim.answer(), answer, "psn + {psn:#x}");
        assert!(victim.is_untouched());
    }
    assert_eq!(victim.qp.state(), State::ReadyToSend);
    victim.hear(&write(0));
    assert_eq!(victim.answer(), Answer::Said(Syndrome::ACK, expected));
    assert!(!victim.is_untouched(), "what comes in turn is served");
    victim.hear(&write(2));
    assert_eq!(
        victim.answer(),
        nak(NakCode::SequenceError, (expected + 1) & 0xff_ffff)
    );
}

#[test]
fn a_message_without_its_beginning_is_an_invalid_request() {
    use Opcode::*;
    for opcode in [
        SendMiddle,
        SendLast,
        SendLastImmediate,
        WriteMiddle,
        WriteLast,
        WriteLastImmediate,
    ] {
        Victim::new().refuses(&plain(opcode, 0, MTU), NakCode::InvalidRequest);
    }
}

#[test]
fn a_message_that_is_broken_off_is_an_invalid_request() {
    use Opcode::*;
    let rkey = Victim::new().open.1;
    for opcode in [
        WriteFirst,
        WriteOnly,
        SendFirst,
        SendMiddle,
        SendOnly,
        ReadRequest,
        FetchAdd,
    ] {
        let mut victim = Victim::new();
        victim.hear(&reth(WriteFirst, 0, rkey, BASE, 3 * MTU as u32, MTU));
        assert_eq!(victim.answer(), Answer::Said(Syndrome::ACK, victim.first));
        let payload = if opcode.has_payload() { MTU } else { 0 };
        victim.hear(&plain(opcode, 1, payload));
        assert_eq!(
            victim.answer(),
            nak(NakCode::InvalidRequest, victim.first + 1),
            "{opcode:?}"
        );
        let bytes = victim.memory.bytes(victim.open.0).expect("registered");
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
        let mut victim = Victim::new();
        let segments = [Segment {
            lkey: victim.open.0,
            addr: BASE,
            len: LEN as u32,
        }];
        victim
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &segments,
            })
            .expect("room");
        victim.hear(&plain(SendFirst, 0, MTU));
        victim.answer();
        let payload = if opcode.has_payload() { MTU } else { 0 };
        victim.hear(&plain(opcode, 1, payload));
        assert_eq!(
            victim.answer(),
            nak(NakCode::InvalidRequest, victim.first + 1),
            "{opcode:?}"
        );
        let done = victim
            .qp
            .poll_completion()
            .map(|done| (done.id, done.status));
        assert_eq!(done, Some((WrId(7), WcStatus::RemoteInvalidRequest)));
    }
}

#[test]
fn a_length_that_is_a_lie_is_an_invalid_request() {
    let rkey = Victim::new().open.1;
    let mtu = MTU as u32;
    for (opcode, dma_len, payload) in [
        // Announces one thing, carries another.
        (Opcode::WriteOnly, 16, 15),
        (Opcode::WriteOnly, 16, 17),
        (Opcode::WriteOnly, 0, 4),
        (Opcode::WriteOnly, 4, 0),
        (Opcode::WriteOnlyImmediate, 3, 4),
        // More than a packet holds.
        (Opcode::WriteOnly, mtu + 4, MTU + 4),
        (Opcode::WriteFirst, 4 * mtu, MTU + 4),
        // A first packet that is not full, or that is all.
        (Opcode::WriteFirst, 4 * mtu, MTU - 4),
        (Opcode::WriteFirst, 4 * mtu, 0),
        (Opcode::WriteFirst, mtu, MTU),
        (Opcode::WriteFirst, 0, MTU),
        // Longer than a message can be.
        (Opcode::WriteFirst, u32::MAX, MTU),
        (Opcode::WriteFirst, (1 << 31) + 1, MTU),
        (Opcode::ReadRequest, u32::MAX, 0),
    ] {
        let mut victim = Victim::new();
        victim
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &[],
            })
            .expect("room");
        let lie = reth(opcode, 0, rkey, BASE, dma_len, payload);
        victim.refuses(&lie, NakCode::InvalidRequest);
    }
    for (opcode, payload) in [
        (Opcode::WriteMiddle, MTU - 4),
        (Opcode::WriteMiddle, 0),
        (Opcode::WriteLast, 0),
        (Opcode::WriteLast, 499),
        (Opcode::WriteLast, 501),
        (Opcode::WriteLast, MTU),
        // Would fill all that is left, so it is no middle.
        (Opcode::WriteMiddle, MTU),
    ] {
        let mut victim = Victim::new();
        victim.hear(&reth(Opcode::WriteFirst, 0, rkey, BASE, mtu + 500, MTU));
        victim.answer();
        victim.hear(&plain(opcode, 1, payload));
        assert_eq!(
            victim.answer(),
            nak(NakCode::InvalidRequest, victim.first + 1)
        );
        let bytes = victim.memory.bytes(victim.open.0).expect("registered");
        assert!(bytes[MTU..].iter().all(|byte| *byte == SECRET));
    }
    for (opcode, payload) in [
        (Opcode::SendFirst, MTU - 4),
        (Opcode::SendFirst, 0),
        (Opcode::SendOnly, MTU + 4),
    ] {
        let mut victim = Victim::new();
        let segments = [Segment {
            lkey: victim.open.0,
            addr: BASE,
            len: LEN as u32,
        }];
        victim
            .qp
            .post_recv(&RecvRequest {
                id: WrId(7),
                segments: &segments,
            })
            .expect("room");
        victim.refuses(&plain(opcode, 0, payload), NakCode::InvalidRequest);
    }
}

#[test]
fn nothing_may_be_written_anywhere() {
    let mut victim = Victim::new();
    victim.hear(&reth(Opcode::WriteOnly, 0, Rkey(0), 0, 0, 0));
    assert_eq!(
        victim.answer(),
        Answer::Said(Syndrome::ACK, victim.first),
        "no key for no bytes"
    );
    victim.hear(&reth(Opcode::ReadRequest, 1, Rkey(0), 0, 0, 0));
    assert_eq!(victim.answer(), Answer::Content(Opcode::ReadResponseOnly));
    assert!(victim.is_untouched());
}

#[test]
fn an_atomic_on_an_odd_address_is_an_invalid_request() {
    let rkey = Victim::new().open.1;
    for odd in 1..8 {
        Victim::new().refuses(&atomic(0, rkey, BASE + odd), NakCode::InvalidRequest);
    }
}

#[test]
fn an_atomic_that_is_repeated_is_answered_and_not_done_again() {
    let mut victim = Victim::new();
    let rkey = victim.open.1;
    let add = atomic(0, rkey, BASE);
    let value = |victim: &Victim| {
        let bytes = victim.memory.bytes(victim.open.0).expect("registered");
        u64::from_ne_bytes(*bytes.first_chunk().expect("eight"))
    };
    let before = value(&victim);
    for _ in 0..3 {
        victim.hear(&add);
        assert_eq!(victim.answer(), Answer::Content(Opcode::AtomicAcknowledge));
        assert_eq!(value(&victim), before + 1);
    }
    // A packet number that was no atomic.
    victim.hear(&atomic(0xff_ffff, rkey, BASE));
    assert_eq!(victim.answer(), Answer::Nothing);
    assert_eq!(value(&victim), before + 1);
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut victim = Victim::new();
    let rkey = victim.open.1;
    for psn in 0..5 {
        victim.hear(&reth(Opcode::ReadRequest, psn, rkey, BASE, 4, 0));
    }
    for _ in 0..4 {
        assert_eq!(victim.answer(), Answer::Content(Opcode::ReadResponseOnly));
    }
    assert_eq!(
        victim.answer(),
        nak(NakCode::InvalidRequest, victim.first + 4)
    );
}

#[test]
fn a_repeated_read_that_reaches_into_the_future_is_dropped() {
    let mut victim = Victim::new();
    let rkey = victim.open.1;
    victim.hear(&reth(Opcode::ReadRequest, 0, rkey, BASE, 4, 0));
    assert_eq!(victim.answer(), Answer::Content(Opcode::ReadResponseOnly));
    victim.hear(&reth(Opcode::ReadRequest, 0, rkey, BASE, 2 * MTU as u32, 0));
    assert_eq!(victim.answer(), Answer::Nothing);
    victim.hear(&reth(Opcode::ReadRequest, 0, Rkey(1), BASE, 4, 0));
    assert_eq!(victim.answer(), Answer::Nothing);
    for _ in 0..10_000 {
        victim.hear(&reth(Opcode::ReadRequest, 0, rkey, BASE, 4, 0));
        victim.hear(&reth(Opcode::WriteOnly, 0xff_ffff, rkey, BASE, 4, 4));
    }
    let answers = std::iter::from_fn(|| Some(victim.answer()).filter(|a| *a != Answer::Nothing));
    assert!(answers.count() < 200, "what it repeats does not pile up");
    assert!(victim.is_untouched());
}

#[test]
fn a_peer_that_talks_without_listening_is_not_answered_for_ever() {
    let mut victim = Victim::new();
    let rkey = victim.open.1;
    for _ in 0..10_000 {
        // No receive is posted, so each is told to wait; between them, a repeated WRITE.
        victim.hear(&plain(Opcode::SendOnly, 0, 4));
        victim.hear(&reth(Opcode::WriteOnly, 0xff_ffff, rkey, BASE, 4, 4));
    }
    let answers = std::iter::from_fn(|| Some(victim.answer()).filter(|a| *a != Answer::Nothing));
    assert!(answers.count() < 200);
    assert!(victim.is_untouched());
    victim.hear(&reth(Opcode::WriteOnly, 0, rkey, BASE, 4, 4));
    assert_eq!(
        victim.answer(),
        Answer::Said(Syndrome::ACK, victim.first),
        "it goes on"
    );
}

#[test]
fn a_key_is_not_invalidated_for_the_peer() {
    let mut victim = Victim::new();
    victim
        .qp
        .post_recv(&RecvRequest {
            id: WrId(7),
            segments: &[],
        })
        .expect("room");
    let invalidate = Some(Ieth(victim.open.1));
    let lie = Headers {
        invalidate,
        ..headers(Opcode::SendOnlyInvalidate, 0)
    };
    victim.refuses(&seal(&lie, &[]), NakCode::InvalidRequest);
}

#[test]
fn a_packet_that_is_cut_broken_or_for_somebody_else_is_dropped() {
    let rkey = Victim::new().open.1;
    let good = reth(Opcode::WriteOnly, 0, rkey, BASE, 37, 37);
    let mut lies: Vec<Vec<u8>> = Vec::new();
    for len in 0..good.len() {
        lies.push(good[..len].to_vec());
        let mut sealed = good[..len].to_vec();
        icrc::seal(&path(), &mut sealed);
        if len < Bth::LEN + Reth::LEN + icrc::LEN {
            lies.push(sealed);
        }
    }
    for bit in 0..good.len() * 8 {
        let mut broken = good.clone();
        broken[bit / 8] ^= 1 << (bit % 8);
        if bit / 8 != 4 {
            lies.push(broken);
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
        lies.push(seal(&Headers { bth, ..other }, &[1, 2, 3, 4]));
    }
    let mut victim = Victim::new();
    for lie in &lies {
        victim.hear(lie);
        assert!(victim.is_untouched());
        assert_eq!(victim.answer(), Answer::Nothing);
    }
    assert_eq!(victim.qp.state(), State::ReadyToSend);
    victim.hear(&good);
    assert!(!victim.is_untouched(), "the true one is served");
}
