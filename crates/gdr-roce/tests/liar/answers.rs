//! Answers that must not be believed.

use gdr_roce::wire::{Aeth, AtomicAckEth, NakCode, Opcode, Syndrome};
use gdr_roce::{AtomicOp, Msn, Operation, Remote, Rkey, State, WcStatus};

use crate::fixture::Settings;
use crate::victim::{Answer, Victim, headers, seal};

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
