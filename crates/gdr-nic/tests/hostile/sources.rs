//! Valid packets from the wrong address.

use std::net::{IpAddr, Ipv4Addr};

use gdr_rdma::{Remote, Rkey, SendRequest, State, WcStatus, WrId};

use crate::attacker::{FIRST_PSN, Target, V4, send, socket, soon};
use crate::packet::{ACK, Bytes, NAK_ACCESS, opcode};

const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 81, 0, 3));

#[test]
fn a_request_from_another_address_is_not_served() {
    let Some(target) = Target::new(V4) else {
        return;
    };
    let stranger = socket(STRANGER);
    let connection = target.connect();
    send(
        &stranger,
        &target.write(&connection, FIRST_PSN, 0, 16),
        target.address(),
    );
    send(
        &stranger,
        &target.read(&connection, FIRST_PSN, 0, 16),
        target.address(),
    );
    assert_eq!(target.answers(), []);
    target.assert_untouched(&"a stranger's WRITE");
    assert_eq!(connection.pair.state(), State::ReadyToSend);
}

#[test]
fn a_response_from_another_address_is_ignored() {
    let Some(target) = Target::new(V4) else {
        return;
    };
    let stranger = socket(STRANGER);
    let connection = target.connect();
    let remote = Remote {
        rkey: Rkey(1),
        addr: 0x1000,
    };
    let write = SendRequest::write(WrId(1), remote).inline(&[1; 8]);
    connection.pair.post_send(write).unwrap();
    let psn = target.receive().psn;
    for syndrome in [ACK, NAK_ACCESS] {
        let lie = Bytes::new(opcode::ACKNOWLEDGE, connection.qpn, psn).aeth(syndrome, 1);
        send(&stranger, &lie, target.address());
    }
    target.answers();
    assert!(target.queue.poll().unwrap().is_none());
    assert_eq!(connection.pair.state(), State::ReadyToSend);
    let truth = Bytes::new(opcode::ACKNOWLEDGE, connection.qpn, psn).aeth(ACK, 1);
    target.send(&truth);
    assert_eq!(target.queue.wait(soon()).unwrap().status, WcStatus::Success);
}

#[test]
fn an_icrc_over_another_source_address_is_a_mismatch() {
    let Some(target) = Target::new(V4) else {
        return;
    };
    let connection = target.connect();
    let mut elsewhere = target.attacker.local_addr().unwrap();
    elsewhere.set_ip(STRANGER);
    let datagram = target
        .write(&connection, FIRST_PSN, 0, 16)
        .sealed(elsewhere, target.address());
    let before = target.device.counters().icrc_mismatches;
    target
        .attacker
        .send_to(&datagram, target.address())
        .unwrap();
    assert_eq!(target.answers(), []);
    target.assert_untouched(&"an ICRC over another source");
    assert_eq!(target.device.counters().icrc_mismatches, before + 1);
}
