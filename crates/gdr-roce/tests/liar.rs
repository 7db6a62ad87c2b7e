//! A peer that breaks every rule: no byte is placed, nothing panics, and it is told why.

mod fixture;

use fixture::{BASE, QPNS, Settings, connected, path};
use gdr_roce::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Headers, Ieth, ImmDt, MAX_DATAGRAM, NakCode, Opcode,
    Packet, Reth, Syndrome, icrc,
};
use gdr_roce::{
    Access, AtomicOp, Data, Event, HeapMemory, Immediate, Lkey, Msn, Operation, PartitionKey, Qpn,
    QueuePair, RecvRequest, Remote, Rkey, Segment, SendFlags, SendRequest, State, Time, WcStatus,
    WrId,
};
use proptest::prelude::*;

const LEN: usize = 16 << 10;
const MTU: usize = 1024;
const SECRET: u8 = 0x5e;

/// What the liar's packets get back.
#[derive(Debug, PartialEq)]
enum Answer {
    Nothing,
    Said(Syndrome, u32),
    Content(Opcode),
}

const fn nak(code: NakCode, psn: u32) -> Answer {
    Answer::Said(Syndrome::Nak(code), psn)
}

/// An honest queue pair, side 1, that a liar talks to as side 0.
struct Victim {
    qp: QueuePair,
    memory: HeapMemory,
    /// Everything is allowed.
    open: (Lkey, Rkey),
    /// The peer may read only.
    readable: (Lkey, Rkey),
    first: u32,
}

impl Victim {
    fn new() -> Self {
        Self::with(&Settings::default())
    }

    fn with(settings: &Settings) -> Self {
        let mut memory = HeapMemory::new();
        let open = memory.register(BASE, vec![SECRET; LEN], Access::all());
        let readable = Access::REMOTE_READ;
        let readable = memory.register(BASE + (1 << 20), vec![SECRET; LEN], readable);
        let qp = connected(1, settings);
        Self {
            qp,
            memory,
            open,
            readable,
            first: settings.psns[0].get(),
        }
    }

    /// Takes bytes as they come from a socket.
    fn hear(&mut self, datagram: &[u8]) {
        if !icrc::matches(&path(), datagram) {
            return;
        }
        if let Ok(packet) = Packet::new(datagram) {
            self.qp.receive(Time::EPOCH, &packet, &mut self.memory);
        }
    }

    fn answer(&mut self) -> Answer {
        let mut out = [0; MAX_DATAGRAM];
        let Some(len) = self
            .qp
            .poll_transmit(Time::EPOCH, &mut self.memory, &mut out)
        else {
            return Answer::Nothing;
        };
        let packet = Packet::new(&out[..len]).expect("honest");
        match (packet.opcode(), packet.aeth()) {
            (Opcode::Acknowledge, Some(aeth)) => {
                Answer::Said(aeth.syndrome, packet.bth().psn.get())
            }
            (opcode, _) => Answer::Content(opcode),
        }
    }

    fn is_untouched(&self) -> bool {
        [self.open.0, self.readable.0].iter().all(|lkey| {
            self.memory
                .bytes(*lkey)
                .is_some_and(|bytes| bytes.iter().all(|b| *b == SECRET))
        })
    }

    /// The packet is refused for good.
    fn refuses(mut self, datagram: &[u8], code: NakCode) {
        self.hear(datagram);
        assert!(self.is_untouched());
        assert_eq!(self.answer(), nak(code, self.first & 0xff_ffff));
        assert_eq!(self.answer(), Answer::Nothing);
        assert_eq!(self.qp.state(), State::Error);
        let event = if code == NakCode::RemoteAccess {
            Event::AccessViolation
        } else {
            Event::InvalidRequest
        };
        assert_eq!(self.qp.poll_event(), Some(event));
        self.hear(datagram);
        assert_eq!(self.answer(), Answer::Nothing, "it is over");
    }

    fn post(&mut self, operation: Operation, len: u32) {
        let segments = [Segment {
            lkey: self.open.0,
            addr: BASE,
            len,
        }];
        let request = SendRequest {
            id: WrId(1),
            operation,
            data: Data::Segments(&segments),
            flags: SendFlags::SIGNALLED,
        };
        self.qp.post_send(&request).expect("room");
    }
}

/// A packet that side 1 may take as its peer's; `psn` is counted from the first expected one.
fn headers(opcode: Opcode, psn: u32) -> Headers {
    let bth = Bth {
        opcode: opcode.byte(),
        solicited: false,
        migrated: true,
        pad: 0,
        version: 0,
        partition: PartitionKey::DEFAULT,
        fecn: false,
        becn: false,
        dest_qpn: QPNS[1],
        ack_request: true,
        psn: Settings::default().psns[0].wrapping_add(psn),
    };
    Headers::new(opcode, bth)
}

fn seal(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; headers.datagram_len(payload.len())];
    let at = headers.emit(payload.len(), &mut bytes);
    bytes[at..at + payload.len()].copy_from_slice(payload);
    icrc::seal(&path(), &mut bytes);
    bytes
}

fn reth(opcode: Opcode, psn: u32, rkey: Rkey, addr: u64, dma_len: u32, payload: usize) -> Vec<u8> {
    let reth = Some(Reth {
        addr,
        rkey,
        dma_len,
    });
    seal(
        &Headers {
            reth,
            ..headers(opcode, psn)
        },
        &vec![0xbb; payload],
    )
}

fn plain(opcode: Opcode, psn: u32, payload: usize) -> Vec<u8> {
    let immediate = Some(ImmDt(Immediate(1)));
    seal(
        &Headers {
            immediate,
            ..headers(opcode, psn)
        },
        &vec![0xbb; payload],
    )
}

fn atomic(psn: u32, rkey: Rkey, addr: u64) -> Vec<u8> {
    let atomic = Some(AtomicEth {
        addr,
        rkey,
        swap_or_add: 1,
        compare: 0,
    });
    seal(
        &Headers {
            atomic,
            ..headers(Opcode::FetchAdd, psn)
        },
        &[],
    )
}

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

/// An answer to side 1's own requests, whose PSNs begin at its own first.
fn reply(opcode: Opcode, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Vec<u8> {
    let mut headers = headers(opcode, 0);
    headers.bth.psn = Settings::default().psns[1].wrapping_add(psn);
    headers.aeth = Some(Aeth {
        syndrome,
        msn: Msn::new(1),
    });
    headers.atomic_ack = Some(AtomicAckEth { original: 0xbbbb });
    seal(&headers, payload)
}

#[test]
fn an_answer_to_nothing_is_dropped() {
    let mut victim = Victim::new();
    let codes = [
        NakCode::RemoteAccess,
        NakCode::SequenceError,
        NakCode::RemoteOperation,
    ];
    for psn in [0, 1, 1 << 23, 0xff_ffff] {
        victim.hear(&reply(
            Opcode::ReadResponseOnly,
            psn,
            Syndrome::ACK,
            &[0xbb; 64],
        ));
        victim.hear(&reply(Opcode::AtomicAcknowledge, psn, Syndrome::ACK, &[]));
        victim.hear(&reply(Opcode::Acknowledge, psn, Syndrome::ACK, &[]));
        for code in codes {
            victim.hear(&reply(Opcode::Acknowledge, psn, Syndrome::Nak(code), &[]));
        }
    }
    assert_eq!(victim.qp.state(), State::ReadyToSend);
    assert!(victim.is_untouched());
    assert_eq!(victim.answer(), Answer::Nothing);
}

#[test]
fn a_read_is_not_completed_by_an_acknowledgement_or_an_answer_of_another_kind() {
    let mut victim = Victim::new();
    victim.post(
        Operation::Read {
            remote: Remote {
                rkey: Rkey(1),
                addr: 0,
            },
        },
        64,
    );
    assert_eq!(victim.answer(), Answer::Content(Opcode::ReadRequest));
    victim.hear(&reply(Opcode::Acknowledge, 0, Syndrome::ACK, &[]));
    assert_eq!(victim.qp.poll_completion(), None);
    assert_eq!(
        victim.answer(),
        Answer::Content(Opcode::ReadRequest),
        "it asks again"
    );
    victim.hear(&reply(
        Opcode::Acknowledge,
        0,
        Syndrome::Reserved(0xff),
        &[],
    ));
    assert_eq!(victim.qp.poll_completion(), None);
    assert!(victim.is_untouched());
}

#[test]
fn an_answer_of_the_wrong_length_is_a_bad_response() {
    for len in [0, 60, 68, 1024] {
        let mut victim = Victim::new();
        victim.post(
            Operation::Read {
                remote: Remote {
                    rkey: Rkey(1),
                    addr: 0,
                },
            },
            64,
        );
        victim.answer();
        let lie = vec![0xbb; len];
        victim.hear(&reply(Opcode::ReadResponseOnly, 0, Syndrome::ACK, &lie));
        let done = victim.qp.poll_completion();
        assert_eq!(done.map(|done| done.status), Some(WcStatus::BadResponse));
        assert!(victim.is_untouched());
    }
}

#[test]
fn content_for_a_write_changes_nothing() {
    let mut victim = Victim::new();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    victim.post(
        Operation::Write {
            remote,
            immediate: None,
        },
        64,
    );
    victim.post(
        Operation::Atomic {
            remote,
            op: AtomicOp::FetchAdd { add: 1 },
        },
        8,
    );
    assert_eq!(victim.answer(), Answer::Content(Opcode::WriteOnly));
    victim.hear(&reply(
        Opcode::ReadResponseOnly,
        0,
        Syndrome::ACK,
        &[0xbb; 64],
    ));
    victim.hear(&reply(Opcode::AtomicAcknowledge, 0, Syndrome::ACK, &[]));
    assert_eq!(victim.qp.poll_completion(), None);
    assert!(victim.is_untouched());
}

#[test]
fn every_refusal_has_its_status() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperation, WcStatus::RemoteOperation),
    ] {
        let mut victim = Victim::new();
        let remote = Remote {
            rkey: Rkey(1),
            addr: 0,
        };
        for _ in 0..3 {
            victim.post(
                Operation::Write {
                    remote,
                    immediate: None,
                },
                64,
            );
            victim.answer();
        }
        victim.hear(&reply(Opcode::Acknowledge, 1, Syndrome::Nak(code), &[]));
        let done = std::iter::from_fn(|| victim.qp.poll_completion().map(|done| done.status));
        let done = done.collect::<Vec<_>>();
        assert_eq!(done, [WcStatus::Success, status, WcStatus::WrFlushed]);
    }
}

/// Half-true packets: every field is right often enough that lies of all kinds get far.
fn lie() -> impl Strategy<Value = Vec<u8>> {
    let open = Victim::new().open.1;
    let readable = Victim::new().readable.1;
    let rkey = prop_oneof![4 => Just(open), 1 => Just(readable), 1 => any::<u32>().prop_map(Rkey)];
    let addr = prop_oneof![
        4 => (0..LEN as u64).prop_map(|at| BASE + at),
        1 => any::<u64>(),
        1 => (0..64u64).prop_map(|at| BASE + LEN as u64 - 32 + at),
    ];
    let len = prop_oneof![3 => 0..64usize, 2 => Just(MTU), 1 => Just(MTU + 4)];
    let dma = prop_oneof![3 => Just(None), 1 => (0..LEN as u32).prop_map(Some), 1 => any::<u32>().prop_map(Some)];
    let psn = prop_oneof![6 => 0..6u32, 1 => any::<u32>()];
    (
        0..Opcode::ALL.len(),
        any::<bool>(),
        psn,
        rkey,
        addr,
        len,
        dma,
        any::<u8>(),
    )
        .prop_map(|(opcode, mine, psn, rkey, addr, len, dma, byte)| {
            let opcode = Opcode::ALL[opcode];
            let mut headers = headers(opcode, psn);
            if mine {
                headers.bth.psn = Settings::default().psns[1].wrapping_add(psn);
            }
            let dma_len = dma.unwrap_or(len as u32);
            headers.reth = Some(Reth {
                addr,
                rkey,
                dma_len,
            });
            headers.atomic = Some(AtomicEth {
                addr,
                rkey,
                swap_or_add: 1,
                compare: 2,
            });
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::from_byte(byte),
                msn: Msn::new(1),
            });
            seal(
                &headers,
                &vec![byte; if opcode.has_payload() { len } else { 0 }],
            )
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_run_of_lies_reaches_memory_that_is_not_open(
        lies in proptest::collection::vec(lie(), 1..60),
    ) {
        let mut victim = Victim::new();
        let remote = Remote { rkey: Rkey(1), addr: 0 };
        victim.post(Operation::Write { remote, immediate: None }, 5000);
        victim.post(Operation::Read { remote }, 5000);
        let op = AtomicOp::FetchAdd { add: 1 };
        victim.post(Operation::Atomic { remote, op }, 8);
        let lkey = victim.open.0;
        let segments = [Segment { lkey, addr: BASE, len: 3000 }];
        for id in 0..3 {
            victim.qp.post_recv(&RecvRequest { id: WrId(id), segments: &segments }).expect("room");
        }
        let mut completions = 0;
        for lie in &lies {
            victim.hear(lie);
            for _ in 0..8 {
                victim.answer();
            }
            completions += std::iter::from_fn(|| victim.qp.poll_completion()).count();
        }
        victim.qp.to_error();
        completions += std::iter::from_fn(|| victim.qp.poll_completion()).count();
        prop_assert_eq!(completions, 6, "each request ends once");
        let readable = victim.memory.bytes(victim.readable.0).expect("registered");
        prop_assert!(readable.iter().all(|byte| *byte == SECRET));
    }
}
