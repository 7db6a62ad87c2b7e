//! Invalid responses to a conforming requester.

use gdr_rdma::{Remote, Rkey, SendRequest, State, WcStatus, WrId};

use crate::attacker::{Connection, MTU, Target, everywhere, soon};
use crate::packet::{ACK, Bytes, NAK_ACCESS, NAK_INVALID, NAK_OPERATION, NAK_SEQUENCE, opcode};

const REMOTE: Remote = Remote {
    rkey: Rkey(1),
    addr: 0x1000,
};

/// Posts a READ of this many packets from the attacker; returns the connection and the first PSN.
fn reading(target: &Target, packets: usize) -> (Connection, u32) {
    let connection = target.connect();
    let segment = target.region.segment(0, (packets * MTU) as u64).unwrap();
    let read = SendRequest::read(WrId(1), REMOTE).segment(segment);
    connection.pair.post_send(read).unwrap();
    let request = target.receive();
    assert_eq!(request.opcode, opcode::READ_REQUEST);
    (connection, request.psn)
}

fn answer(connection: &Connection, code: u8, psn: u32, syndrome: Option<u8>, len: usize) -> Bytes {
    let mut packet = Bytes::new(code, connection.qpn, psn);
    if let Some(syndrome) = syndrome {
        packet = packet.aeth(syndrome, 1);
    }
    packet.payload(&vec![0xbb; len])
}

fn acknowledge(target: &Target, connection: &Connection, psn: u32, syndrome: u8) {
    target.send(&answer(
        connection,
        opcode::ACKNOWLEDGE,
        psn,
        Some(syndrome),
        0,
    ));
}

fn status(target: &Target) -> WcStatus {
    target.queue.wait(soon()).unwrap().status
}

#[test]
fn a_read_is_completed_by_its_own_responses_only() {
    use opcode::{READ_RESPONSE_FIRST as FIRST, READ_RESPONSE_LAST as LAST};
    use opcode::{READ_RESPONSE_MIDDLE as MIDDLE, READ_RESPONSE_ONLY as ONLY};
    everywhere(|target| {
        for lies in [
            &[(ONLY, Some(ACK), MTU)][..],
            &[(MIDDLE, None, MTU)],
            &[(LAST, Some(ACK), MTU)],
            &[(FIRST, Some(NAK_ACCESS), MTU)],
            &[(FIRST, Some(NAK_SEQUENCE), MTU)],
            &[(FIRST, Some(ACK), MTU - 4)],
            &[(FIRST, Some(ACK), 0)],
            &[(opcode::ATOMIC_ACKNOWLEDGE, Some(ACK), 8)],
        ] {
            let (connection, psn) = reading(target, 3);
            for (index, (code, syndrome, len)) in lies.iter().enumerate() {
                target.send(&answer(
                    &connection,
                    *code,
                    psn + index as u32,
                    *syndrome,
                    *len,
                ));
            }
            assert_eq!(status(target), WcStatus::BadResponse, "{lies:x?}");
            assert_eq!(connection.pair.state(), State::Error);
            target.assert_untouched(&lies);
        }
    });
}

#[test]
fn responses_without_a_request_are_dropped() {
    everywhere(|target| {
        let connection = target.connect();
        let first = connection.pair.endpoint().psn.get();
        for psn in [first.wrapping_sub(1), first, first + 1, first + (1 << 22)] {
            for syndrome in [
                ACK,
                NAK_SEQUENCE,
                NAK_INVALID,
                NAK_ACCESS,
                NAK_OPERATION,
                0x21,
            ] {
                acknowledge(target, &connection, psn, syndrome);
            }
            target.send(&answer(
                &connection,
                opcode::READ_RESPONSE_ONLY,
                psn,
                Some(ACK),
                64,
            ));
            target.send(&answer(
                &connection,
                opcode::ATOMIC_ACKNOWLEDGE,
                psn,
                Some(ACK),
                8,
            ));
        }
        assert_eq!(target.answers(), []);
        assert_eq!(connection.pair.state(), State::ReadyToSend);
        target.assert_untouched(&"answers to nothing");
    });
}

#[test]
fn acknowledgements_of_packets_never_sent_complete_nothing() {
    everywhere(|target| {
        let connection = target.connect();
        let segment = target.region.segment(0, 16).unwrap();
        let write = SendRequest::write(WrId(1), REMOTE).segment(segment);
        connection.pair.post_send(write).unwrap();
        let request = target.receive();
        for beyond in [1, 2, 1 << 10, 1 << 22] {
            let psn = request.psn + beyond;
            acknowledge(target, &connection, psn, ACK);
            acknowledge(target, &connection, psn, NAK_ACCESS);
        }
        target.answers();
        assert!(target.queue.poll().unwrap().is_none());
        acknowledge(target, &connection, request.psn, ACK);
        assert_eq!(status(target), WcStatus::Success);
    });
}

#[test]
fn each_refusal_ends_the_request_with_its_own_status() {
    everywhere(|target| {
        for (syndrome, expected) in [
            (NAK_INVALID, WcStatus::RemoteInvalidRequest),
            (NAK_ACCESS, WcStatus::RemoteAccess),
            (NAK_OPERATION, WcStatus::RemoteOperation),
        ] {
            let connection = target.connect();
            let write = SendRequest::write(WrId(1), REMOTE).inline(&[1; 8]);
            connection.pair.post_send(write).unwrap();
            let psn = target.receive().psn;
            acknowledge(target, &connection, psn, syndrome);
            assert_eq!(status(target), expected);
        }
    });
}

#[test]
fn sequence_naks_without_end_are_counted_and_end_the_request() {
    everywhere(|target| {
        let connection = target.connect();
        let write = SendRequest::write(WrId(1), REMOTE).inline(&[1; 8]);
        connection.pair.post_send(write).unwrap();
        let psn = target.receive().psn;
        target
            .attacker
            .set_read_timeout(Some(std::time::Duration::from_millis(20)))
            .unwrap();
        let deadline = soon();
        let done = loop {
            if let Some(done) = target.queue.poll().unwrap() {
                break done;
            }
            assert!(
                !deadline.has_passed(),
                "sequence NAKs keep the request for ever"
            );
            acknowledge(target, &connection, psn, NAK_SEQUENCE);
            let _ = target.attacker.recv(&mut [0; 9000]);
        };
        assert_eq!(done.status, WcStatus::RetryExceeded);
    });
}
