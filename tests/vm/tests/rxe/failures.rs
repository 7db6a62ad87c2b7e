//! Invalid requests, and peers that do not respond.

use std::time::{Duration, Instant};

use gdr_rdma::Mtu;
use gdr_vm_tests::{Settings, Status, Work};

use crate::fixture::*;

/// Each test in each role.
macro_rules! every_role {
    ($($name:ident)*) => {
        mod soft_to_rxe {
            use super::*;
            $(every_role! { one: $name SoftToRxe })*
        }
        mod rxe_to_soft {
            use super::*;
            $(every_role! { one: $name RxeToSoft })*
        }
        mod soft_to_verbs {
            use super::*;
            $(every_role! { one: $name SoftToVerbs })*
        }
        mod verbs_to_soft {
            use super::*;
            $(every_role! { one: $name VerbsToSoft })*
        }
    };
    (one: $name:ident $roles:ident) => {
        #[test]
        #[ignore = "runs in the VM"]
        fn $name() {
            for family in [Family::V4, Family::V6] {
                super::$name(Roles::$roles, family);
            }
        }
    };
}

every_role! {
    a_write_outside_the_region_is_refused_and_places_nothing
    a_read_outside_the_region_is_refused
    a_wrong_key_is_refused
    requests_after_a_failed_one_are_flushed
    a_message_longer_than_its_receive_is_refused
    a_message_without_a_receive_fails_after_its_retries
    a_message_waits_for_a_late_receive
    a_dead_peer_is_detected_in_time
}

const MTU: Mtu = Mtu::B1024;

fn write(len: u32, remote: u64) -> Work {
    Work::Write {
        local: 0,
        len,
        remote,
        immediate: None,
    }
}

const fn send(len: u32) -> Work {
    Work::Send {
        local: 0,
        len,
        immediate: None,
    }
}

fn a_write_outside_the_region_is_refused_and_places_nothing(roles: Roles, family: Family) {
    for (remote, len) in [
        (MEMORY as u64, 1),
        (MEMORY as u64 - 8, 9),
        (MEMORY as u64 - 5000, 5001),
        (u64::MAX / 2, 8),
    ] {
        let (requester, responder) = endpoints_at(roles, family, MTU);
        fill(&*requester, 1);
        let before = fill(&*responder, 2);
        requester.post(1, write(len, remote));
        let status = completion(&*requester).status;
        assert_eq!(status, Status::RemoteAccess, "{len} at {remote}");
        assert_same(&responder.bytes(0, MEMORY), &before, "the region");
    }
}

fn a_read_outside_the_region_is_refused(roles: Roles, family: Family) {
    let (requester, _responder) = endpoints_at(roles, family, MTU);
    let before = fill(&*requester, 3);
    let (local, len, remote) = (0, 4096, MEMORY as u64 - 4095);
    requester.post(1, Work::Read { local, len, remote });
    assert_eq!(completion(&*requester).status, Status::RemoteAccess);
    assert_same(&requester.bytes(0, MEMORY), &before, "the reader's memory");
}

fn a_wrong_key_is_refused(roles: Roles, family: Family) {
    let settings = Settings::new(MTU);
    let hosts = Hosts::new(family);
    for read in [false, true] {
        let (mut requester, mut responder) = hosts.sides(roles);
        let mut peer = responder.peer();
        peer.rkey ^= 0x0001_0100;
        requester.connect(&peer, &settings);
        responder.connect(&requester.peer(), &settings);
        let before = fill(&*responder, 3);
        let (local, len, remote) = (0, 64, 0);
        requester.post(
            1,
            if read {
                Work::Read { local, len, remote }
            } else {
                write(len, remote)
            },
        );
        assert_eq!(completion(&*requester).status, Status::RemoteAccess);
        assert_same(&responder.bytes(0, MEMORY), &before, "the region");
    }
}

fn requests_after_a_failed_one_are_flushed(roles: Roles, family: Family) {
    let (requester, responder) = endpoints_at(roles, family, MTU);
    fill(&*requester, 4);
    fill(&*responder, 5);
    requester.post(1, write(100, 0));
    requester.post(2, write(100, MEMORY as u64));
    requester.post(3, write(100, 200));
    requester.post(4, write(100, 300));
    let outcomes = [(); 4].map(|()| completion(&*requester).status);
    let (success, flushed) = (Status::Success, Status::Flushed);
    assert_eq!(outcomes, [success, Status::RemoteAccess, flushed, flushed]);
    assert_same(
        &responder.bytes(200, 200),
        &pattern(400, 5)[200..],
        "after it",
    );
}

fn a_message_longer_than_its_receive_is_refused(roles: Roles, family: Family) {
    let (requester, responder) = endpoints_at(roles, family, MTU);
    fill(&*requester, 6);
    let before = fill(&*responder, 7);
    responder.receive(1, 0, 3000);
    requester.post(1, send(3001));
    let expected = match roles {
        Roles::SoftToRxe | Roles::SoftToVerbs => {
            // rxe returns "operation error" instead of the specified "invalid request": its
            // `copy_data` fails with EINVAL, which rxe handles as a malformed receive.
            Status::RemoteOperation
        }
        _ => Status::RemoteInvalidRequest,
    };
    assert_eq!(completion(&*requester).status, expected);
    let behind = MEMORY - 3000;
    assert_same(
        &responder.bytes(3000, behind),
        &before[3000..],
        "the bytes after it",
    );
}

fn a_message_without_a_receive_fails_after_its_retries(roles: Roles, family: Family) {
    let mut settings = Settings::new(MTU);
    settings.rnr_retries = 2;
    let (requester, _responder) = endpoints(roles, family, &settings);
    requester.post(1, send(100));
    assert_eq!(completion(&*requester).status, Status::RnrRetryExceeded);
}

fn a_message_waits_for_a_late_receive(roles: Roles, family: Family) {
    let (requester, responder) = endpoints_at(roles, family, MTU);
    let sent = fill(&*requester, 8);
    requester.post(1, send(5000));
    // Long enough for some RNR NAKs; their number does not matter.
    assert_eq!(
        requester.wait(gdr_rdma::Deadline::after(Duration::from_millis(50))),
        None
    );
    responder.receive(2, 0, 5000);
    assert_eq!((done(&*responder).id, done(&*requester).id), (2, 1));
    assert_same(&responder.bytes(0, 5000), &sent[..5000], "the message");
}

fn a_dead_peer_is_detected_in_time(roles: Roles, family: Family) {
    let mut settings = Settings::new(MTU);
    // Four transmissions at 67 ms: a quarter of a second. The specification allows four times as
    // much, and rxe uses that.
    settings.timeout = 14;
    settings.retries = 3;
    let (requester, responder) = endpoints(roles, family, &settings);
    drop(responder);
    let start = Instant::now();
    requester.post(1, write(5000, 0));
    assert_eq!(completion(&*requester).status, Status::RetryExceeded);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}
