//! Every operation, in every role, over both address families, with two path MTUs.

use gdr_rdma::{AtomicOp, Mtu};
use gdr_vm_tests::rxe_endpoint::Backing;
use gdr_vm_tests::{Endpoint, Settings, Work};

use crate::fixture::*;

/// Lengths around both path MTUs, and longer than the window of rxe.
const LENGTHS: [u32; 11] = [
    1, 3, 255, 1023, 1024, 1025, 4095, 4096, 4097, 65_537, 1_048_577,
];

/// One test for each operation and each pair of endpoints.
macro_rules! operations {
    ($($module:ident: $roles:expr, $family:ident, $mtu:ident;)*) => {$(
        mod $module {
            use super::*;

            fn endpoints() -> Endpoints {
                endpoints_at($roles, Family::$family, Mtu::$mtu)
            }

            operations! { each:
                written_bytes_arrive_and_no_others_change
                a_write_with_immediate_consumes_a_receive
                read_bytes_arrive
                messages_fill_receives_in_order
                messages_carry_immediates
                fetched_and_added_values_are_right
                swaps_happen_only_on_equal_values
                sixty_requests_are_outstanding_at_once
                both_sides_send_requests_at_once
            }
        }
    )*};
    (each: $($name:ident)*) => {$(
        #[test]
        #[ignore = "runs in the VM"]
        fn $name() {
            let (requester, responder) = endpoints();
            super::$name(&*requester, &*responder);
        }
    )*};
}

operations! {
    soft_to_rxe_ipv4_mtu_1024: Roles::SoftToRxe, V4, B1024;
    soft_to_rxe_ipv4_mtu_4096: Roles::SoftToRxe, V4, B4096;
    soft_to_rxe_ipv6_mtu_1024: Roles::SoftToRxe, V6, B1024;
    soft_to_rxe_ipv6_mtu_4096: Roles::SoftToRxe, V6, B4096;
    rxe_to_soft_ipv4_mtu_1024: Roles::RxeToSoft, V4, B1024;
    rxe_to_soft_ipv4_mtu_4096: Roles::RxeToSoft, V4, B4096;
    rxe_to_soft_ipv6_mtu_1024: Roles::RxeToSoft, V6, B1024;
    rxe_to_soft_ipv6_mtu_4096: Roles::RxeToSoft, V6, B4096;
    rxe_to_rxe_host_memory: Roles::RxeToRxe(Backing::Anonymous), V4, B4096;
    rxe_to_rxe_memfd: Roles::RxeToRxe(Backing::Memfd), V6, B1024;
    verbs_to_verbs_ipv4_mtu_4096: Roles::VerbsToVerbs, V4, B4096;
    verbs_to_verbs_ipv6_mtu_1024: Roles::VerbsToVerbs, V6, B1024;
    soft_to_verbs_ipv4_mtu_4096: Roles::SoftToVerbs, V4, B4096;
    verbs_to_soft_ipv6_mtu_1024: Roles::VerbsToSoft, V6, B1024;
}

fn written_bytes_arrive_and_no_others_change(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let sent = fill(requester, 1);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let (local, remote) = (5, 32);
        let before = fill(responder, 9);
        let immediate = None;
        requester.post(
            n as u64,
            Work::Write {
                local,
                len,
                remote,
                immediate,
            },
        );
        assert_eq!(done(requester).id, n as u64);
        let mut expected = before;
        expected[32..][..len as usize].copy_from_slice(&sent[5..][..len as usize]);
        assert_same(
            &responder.bytes(0, MEMORY),
            &expected,
            &format!("{len} bytes written"),
        );
    }
}

fn a_write_with_immediate_consumes_a_receive(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let sent = fill(requester, 2);
    for (n, len) in [0, 1, 5000, 100_000].into_iter().enumerate() {
        responder.receive(70 + n as u64, 0, 0);
        let immediate = Some(0xfeed_0000 + n as u32);
        requester.post(
            1,
            Work::Write {
                local: 0,
                len,
                remote: 4096,
                immediate,
            },
        );
        let received = done(responder);
        assert_eq!(
            (received.id, received.immediate),
            (70 + n as u64, immediate)
        );
        assert_eq!(received.bytes, len);
        let found = responder.bytes(4096, len as usize);
        assert_same(&found, &sent[..len as usize], "the bytes of the WRITE");
        done(requester);
    }
}

fn read_bytes_arrive(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let kept = fill(responder, 3);
    for len in LENGTHS {
        let before = fill(requester, 8);
        let (local, remote) = (16, 7);
        requester.post(2, Work::Read { local, len, remote });
        assert_eq!(done(requester).id, 2);
        let mut expected = before;
        expected[16..][..len as usize].copy_from_slice(&kept[7..][..len as usize]);
        assert_same(
            &requester.bytes(0, MEMORY),
            &expected,
            &format!("{len} bytes read"),
        );
    }
}

fn messages_fill_receives_in_order(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let sent = fill(requester, 4);
    let slot = 2 << 18;
    let lengths = [1, 4096, 262_145, 0, 77];
    for n in 0..lengths.len() as u64 {
        responder.receive(n, n * slot, slot as u32);
    }
    for (n, len) in lengths.into_iter().enumerate() {
        let (local, immediate) = (n as u64, None);
        requester.post(
            n as u64,
            Work::Send {
                local,
                len,
                immediate,
            },
        );
    }
    for (n, len) in lengths.into_iter().enumerate() {
        let received = done(responder);
        assert_eq!((received.id, received.bytes), (n as u64, len));
        assert_eq!(received.immediate, None);
        let found = responder.bytes(n as u64 * slot, len as usize);
        assert_same(&found, &sent[n..][..len as usize], "a message");
        assert_eq!(done(requester).id, n as u64);
    }
}

fn messages_carry_immediates(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let sent = fill(requester, 5);
    for len in [0, 8, 20_000] {
        responder.receive(3, 100, 20_000);
        let immediate = Some(0x0102_0304 + len);
        requester.post(
            4,
            Work::Send {
                local: 0,
                len,
                immediate,
            },
        );
        let received = done(responder);
        assert_eq!((received.bytes, received.immediate), (len, immediate));
        let found = responder.bytes(100, len as usize);
        assert_same(&found, &sent[..len as usize], "a message");
        done(requester);
    }
}

/// Executes the operation on the word at 64, and returns the original value at the requester and the
/// new value at the responder.
fn atomic(requester: &dyn Endpoint, responder: &dyn Endpoint, op: AtomicOp) -> (u64, u64) {
    let (local, remote) = (8, 64);
    requester.post(6, Work::Atomic { local, remote, op });
    done(requester);
    let word = |end: &dyn Endpoint, at| {
        let bytes = end.bytes(at, 8).try_into();
        u64::from_ne_bytes(bytes.unwrap())
    };
    (word(requester, local), word(responder, remote))
}

fn fetched_and_added_values_are_right(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    responder.fill(64, &40_u64.to_ne_bytes());
    let add = |add| atomic(requester, responder, AtomicOp::FetchAdd { add });
    assert_eq!(add(2), (40, 42));
    assert_eq!(add(u64::MAX), (42, 41));
    let large = 0x1122_3344_5566_7788;
    assert_eq!(add(large), (41, large + 41));
    for n in 0..100 {
        assert_eq!(add(1), (large + 41 + n, large + 42 + n));
    }
}

fn swaps_happen_only_on_equal_values(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let first = 0x8877_6655_4433_2211;
    responder.fill(64, &u64::to_ne_bytes(first));
    let swap = |compare, swap| {
        atomic(
            requester,
            responder,
            AtomicOp::CompareSwap { compare, swap },
        )
    };
    assert_eq!(swap(first, 7), (first, 7));
    assert_eq!(swap(first, 8), (7, 7));
    assert_eq!(swap(7, u64::MAX), (7, u64::MAX));
}

fn sixty_requests_are_outstanding_at_once(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let (near, far) = (fill(requester, 6), fill(responder, 7));
    // Twenty of each, so that more READs are posted than can be outstanding.
    let len = 9000;
    let half = MEMORY as u64 / 2;
    for n in 0..20 {
        let (at, immediate) = (n * u64::from(len), None);
        let write = Work::Write {
            local: at,
            len,
            remote: half + at,
            immediate,
        };
        let read = Work::Read {
            local: half + at,
            len,
            remote: at,
        };
        let op = AtomicOp::FetchAdd { add: n };
        let (local, remote) = (MEMORY as u64 - 8 * (n + 1), MEMORY as u64 - 8);
        requester.post(3 * n, write);
        requester.post(3 * n + 1, read);
        requester.post(3 * n + 2, Work::Atomic { local, remote, op });
    }
    for id in 0..60 {
        assert_eq!(done(requester).id, id);
    }
    let all = 20 * len as usize;
    let written = responder.bytes(half, all);
    assert_same(&written, &near[..all], "twenty writes");
    let read = requester.bytes(half, all);
    assert_same(&read, &far[..all], "twenty reads");
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let before = word(&far[MEMORY - 8..]);
    let after = word(&responder.bytes(MEMORY as u64 - 8, 8));
    assert_eq!(after, before.wrapping_add((0..20).sum()));
}

fn both_sides_send_requests_at_once(requester: &dyn Endpoint, responder: &dyn Endpoint) {
    let (near, far) = (fill(requester, 10), fill(responder, 11));
    let (len, half) = (200_000, MEMORY as u64 / 2);
    let immediate = None;
    let write = |n: u64| Work::Write {
        local: n * u64::from(len),
        len,
        remote: half + n * u64::from(len),
        immediate,
    };
    for n in 0..8 {
        requester.post(n, write(n));
        responder.post(n, write(n));
    }
    for n in 0..8 {
        assert_eq!(done(requester).id, n);
        assert_eq!(done(responder).id, n);
    }
    let all = 8 * len as usize;
    assert_same(
        &responder.bytes(half, all),
        &near[..all],
        "from requester to responder",
    );
    assert_same(
        &requester.bytes(half, all),
        &far[..all],
        "from responder to requester",
    );
}

#[test]
#[ignore = "runs in the VM"]
fn eight_connections_share_the_devices() {
    let hosts = Hosts::new(Family::V4);
    let settings = Settings::new(Mtu::B4096);
    let roles = [Roles::SoftToRxe, Roles::RxeToSoft];
    let pairs: Vec<_> = (0..8)
        .map(|n| hosts.endpoints(roles[n % 2], &settings))
        .collect();
    let (len, half) = (100_000, MEMORY as u64 / 2);
    for (n, (requester, _)) in pairs.iter().enumerate() {
        requester.fill(0, &pattern(MEMORY / 2, n as u8));
    }
    for id in 0..10 {
        let at = id * u64::from(len);
        let write = Work::Write {
            local: at,
            len,
            remote: half + at,
            immediate: None,
        };
        for (requester, _) in &pairs {
            requester.post(id, write);
        }
    }
    for (n, (requester, responder)) in pairs.iter().enumerate() {
        for id in 0..10 {
            assert_eq!(done(&**requester).id, id);
        }
        let expected = pattern(MEMORY / 2, n as u8);
        let found = responder.bytes(half, 10 * len as usize);
        assert_same(&found, &expected[..found.len()], &format!("connection {n}"));
    }
}
