//! Invalid responses.

use gdr_roce::wire::{Aeth, AtomicAckEth, NakCode, Opcode, Syndrome};
use gdr_roce::{AtomicOp, LossRecovery, Msn, Operation, Remote, Rkey, RnrTimer, State, WcStatus};

use super::target::{MTU, Sent, Target, headers, seal};
use crate::fixture::Settings;

/// Returns a response to the target's requests; `psn` counts from its first one.
fn packet(opcode: Opcode, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Vec<u8> {
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
fn a_response_without_a_request_is_dropped() {
    let mut target = Target::new();
    let codes = [
        NakCode::RemoteAccess,
        NakCode::SequenceError,
        NakCode::RemoteOperation,
    ];
    for psn in [0, 1, 1 << 23, 0xff_ffff] {
        target.receive(&packet(
            Opcode::ReadResponseOnly,
            psn,
            Syndrome::ACK,
            &[0xbb; 64],
        ));
        target.receive(&packet(Opcode::AtomicAcknowledge, psn, Syndrome::ACK, &[]));
        target.receive(&packet(Opcode::Acknowledge, psn, Syndrome::ACK, &[]));
        for code in codes {
            target.receive(&packet(Opcode::Acknowledge, psn, Syndrome::Nak(code), &[]));
        }
    }
    assert_eq!(target.qp.state(), State::ReadyToSend);
    assert!(target.is_untouched());
    assert_eq!(target.poll(), Sent::Nothing);
}

#[test]
fn a_read_is_not_completed_by_an_ack_or_a_reserved_syndrome() {
    let mut target = Target::new();
    target.post(
        Operation::Read {
            remote: Remote {
                rkey: Rkey(1),
                addr: 0,
            },
        },
        64,
    );
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadRequest));
    target.receive(&packet(Opcode::Acknowledge, 0, Syndrome::ACK, &[]));
    assert_eq!(target.qp.poll_completion(), None);
    assert_eq!(
        target.poll(),
        Sent::Packet(Opcode::ReadRequest),
        "the READ request is repeated"
    );
    target.receive(&packet(
        Opcode::Acknowledge,
        0,
        Syndrome::Reserved(0xff),
        &[],
    ));
    assert_eq!(target.qp.poll_completion(), None);
    assert!(target.is_untouched());
}

#[test]
fn a_read_response_of_the_wrong_length_is_a_bad_response() {
    for len in [0, 60, 68, 1024] {
        let mut target = Target::new();
        target.post(
            Operation::Read {
                remote: Remote {
                    rkey: Rkey(1),
                    addr: 0,
                },
            },
            64,
        );
        target.poll();
        let payload = vec![0xbb; len];
        target.receive(&packet(
            Opcode::ReadResponseOnly,
            0,
            Syndrome::ACK,
            &payload,
        ));
        let done = target.qp.poll_completion();
        assert_eq!(done.map(|done| done.status), Some(WcStatus::BadResponse));
        assert!(target.is_untouched());
    }
}

#[test]
fn a_read_response_to_a_write_changes_nothing() {
    let mut target = Target::new();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    target.post(
        Operation::Write {
            remote,
            immediate: None,
        },
        64,
    );
    target.post(
        Operation::Atomic {
            remote,
            op: AtomicOp::FetchAdd { add: 1 },
        },
        8,
    );
    assert_eq!(target.poll(), Sent::Packet(Opcode::WriteOnly));
    target.receive(&packet(
        Opcode::ReadResponseOnly,
        0,
        Syndrome::ACK,
        &[0xbb; 64],
    ));
    target.receive(&packet(Opcode::AtomicAcknowledge, 0, Syndrome::ACK, &[]));
    assert_eq!(target.qp.poll_completion(), None);
    assert!(target.is_untouched());
}

#[test]
fn every_nak_code_has_its_status() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemoteAccess),
        (NakCode::RemoteOperation, WcStatus::RemoteOperation),
    ] {
        let mut target = Target::new();
        let remote = Remote {
            rkey: Rkey(1),
            addr: 0,
        };
        for _ in 0..3 {
            target.post(
                Operation::Write {
                    remote,
                    immediate: None,
                },
                64,
            );
            target.poll();
        }
        target.receive(&packet(Opcode::Acknowledge, 1, Syndrome::Nak(code), &[]));
        let done = std::iter::from_fn(|| target.qp.poll_completion().map(|done| done.status));
        let done = done.collect::<Vec<_>>();
        assert_eq!(done, [WcStatus::Success, status, WcStatus::WrFlushed]);
    }
}

/// Returns a target with an outstanding READ of `packets` packets.
fn reading(packets: u32) -> Target {
    let mut target = Target::new();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    target.post(Operation::Read { remote }, packets * MTU as u32);
    assert_eq!(target.poll(), Sent::Packet(Opcode::ReadRequest));
    target
}

fn status(target: &mut Target) -> Option<WcStatus> {
    target.qp.poll_completion().map(|done| done.status)
}

#[test]
fn a_read_response_with_a_nak_syndrome_is_a_bad_response() {
    for syndrome in [
        Syndrome::Nak(NakCode::RemoteAccess),
        Syndrome::Nak(NakCode::SequenceError),
        Syndrome::ReceiverNotReady(RnrTimer::new(1)),
        Syndrome::Reserved(0xff),
    ] {
        let mut target = reading(1);
        let response = packet(Opcode::ReadResponseOnly, 0, syndrome, &[0xbb; MTU]);
        target.receive(&response);
        assert_eq!(status(&mut target), Some(WcStatus::BadResponse));
        assert!(target.is_untouched());
    }
}

#[test]
fn an_atomic_response_with_a_nak_syndrome_is_a_bad_response() {
    let mut target = Target::new();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    let op = AtomicOp::FetchAdd { add: 1 };
    target.post(Operation::Atomic { remote, op }, 8);
    target.poll();
    let syndrome = Syndrome::Nak(NakCode::RemoteAccess);
    target.receive(&packet(Opcode::AtomicAcknowledge, 0, syndrome, &[]));
    assert_eq!(status(&mut target), Some(WcStatus::BadResponse));
    assert!(target.is_untouched());
}

#[test]
fn an_atomic_response_to_a_read_and_a_read_response_to_an_atomic_are_bad_responses() {
    let mut target = Target::new();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    target.post(Operation::Read { remote }, 8);
    target.poll();
    target.receive(&packet(Opcode::AtomicAcknowledge, 0, Syndrome::ACK, &[]));
    assert_eq!(status(&mut target), Some(WcStatus::BadResponse));

    let mut target = Target::new();
    let op = AtomicOp::FetchAdd { add: 1 };
    target.post(Operation::Atomic { remote, op }, 8);
    target.poll();
    let response = packet(Opcode::ReadResponseOnly, 0, Syndrome::ACK, &[0xbb; 8]);
    target.receive(&response);
    assert_eq!(status(&mut target), Some(WcStatus::BadResponse));
    assert!(target.is_untouched());
}

#[test]
fn responses_out_of_opcode_order_are_bad_responses() {
    use Opcode::{ReadResponseFirst, ReadResponseLast, ReadResponseMiddle, ReadResponseOnly};
    for opcodes in [
        &[ReadResponseOnly][..],
        &[ReadResponseMiddle],
        &[ReadResponseLast],
        &[ReadResponseFirst, ReadResponseFirst],
        &[ReadResponseFirst, ReadResponseOnly],
        &[ReadResponseFirst, ReadResponseLast],
        &[ReadResponseFirst, ReadResponseMiddle, ReadResponseMiddle],
        &[ReadResponseFirst, ReadResponseMiddle, ReadResponseOnly],
    ] {
        let mut target = reading(3);
        for (psn, opcode) in opcodes.iter().enumerate() {
            assert_eq!(
                status(&mut target),
                None,
                "{opcodes:?}: only the last one is invalid"
            );
            target.receive(&packet(*opcode, psn as u32, Syndrome::ACK, &[0xbb; MTU]));
        }
        assert_eq!(
            status(&mut target),
            Some(WcStatus::BadResponse),
            "{opcodes:?}"
        );
    }
}

#[test]
fn after_a_repeated_read_request_responses_to_either_request_are_accepted() {
    use Opcode::{ReadResponseFirst, ReadResponseLast, ReadResponseMiddle};
    for second in [ReadResponseFirst, ReadResponseMiddle] {
        let mut target = reading(3);
        target.receive(&packet(ReadResponseFirst, 0, Syndrome::ACK, &[1; MTU]));
        // The second response is lost, so the READ is requested again from there.
        target.receive(&packet(ReadResponseLast, 2, Syndrome::ACK, &[3; MTU]));
        assert_eq!(target.poll(), Sent::Packet(Opcode::ReadRequest));
        target.receive(&packet(second, 1, Syndrome::ACK, &[2; MTU]));
        target.receive(&packet(ReadResponseLast, 2, Syndrome::ACK, &[3; MTU]));
        assert_eq!(status(&mut target), Some(WcStatus::Success));
        let bytes = target.memory.bytes(target.open.0).expect("registered");
        assert!(bytes[..MTU].iter().all(|byte| *byte == 1));
        assert!(bytes[MTU..2 * MTU].iter().all(|byte| *byte == 2));
    }
}

/// Returns a target with selective retransmission, with `posts` posted and everything sent.
fn selective(posts: impl FnOnce(&mut Target)) -> Target {
    let mut target = Target::with(&Settings {
        recovery: LossRecovery::Selective,
        ..Settings::default()
    });
    posts(&mut target);
    while target.poll() != Sent::Nothing {}
    target
}

#[test]
fn a_read_response_that_has_arrived_is_not_placed_again() {
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    let mut target = selective(|target| target.post(Operation::Read { remote }, 3 * MTU as u32));
    let response = |byte| packet(Opcode::ReadResponseMiddle, 1, Syndrome::ACK, &[byte; MTU]);
    target.receive(&response(0xa1));
    target.receive(&response(0xb2));
    let bytes = target.memory.bytes(target.open.0).expect("registered");
    assert_eq!(bytes[MTU..2 * MTU], [0xa1; MTU]);
    // A response with an impossible length does not fail the connection, either.
    target.receive(&packet(
        Opcode::ReadResponseMiddle,
        1,
        Syndrome::ACK,
        &[0xb2; 4],
    ));
    assert_eq!(target.qp.state(), State::ReadyToSend);
}

#[test]
fn a_report_of_a_packet_that_is_about_to_be_sent_again_changes_nothing() {
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0,
    };
    let write = Operation::Write {
        remote,
        immediate: None,
    };
    let mut target = selective(|target| (0..4).for_each(|_| target.post(write, 64)));
    let not_ready = Syndrome::ReceiverNotReady(RnrTimer::new(1));
    target.receive(&packet(Opcode::Acknowledge, 0, not_ready, &[]));
    // All packets are retransmitted after the delay, in order.
    for psn in 0..4 {
        let missing = Syndrome::Nak(NakCode::SequenceError);
        target.receive(&packet(Opcode::Acknowledge, psn, missing, &[]));
    }
    let until = target.qp.next_deadline().expect("the wait");
    target.qp.handle_deadline(until);
    let sent = std::iter::from_fn(|| target.poll_psn_at(until)).collect::<Vec<_>>();
    assert_eq!(
        sent,
        (0..4)
            .map(|psn| Settings::default().psns[1].wrapping_add(psn))
            .collect::<Vec<_>>()
    );
}
