//! Every operation, in every role, over both families, with packets of two sizes.

use gdr_rdma::{AtomicOp, Mtu};
use gdr_vm_tests::kernel::Backing;
use gdr_vm_tests::{End, Settings, Work};

use crate::fixture::*;

/// Around packets of both sizes, and longer than the kernel's window of packets.
const LENGTHS: [u32; 11] = [
    1, 3, 255, 1023, 1024, 1025, 4095, 4096, 4097, 65_537, 1_048_577,
];

/// The operations, for each pair of sides a test of its own.
macro_rules! operations {
    ($($module:ident: $roles:expr, $family:ident, $mtu:ident;)*) => {$(
        mod $module {
            use super::*;

            fn ends() -> Ends {
                ends_at($roles, Family::$family, Mtu::$mtu)
            }

            operations! { each:
                written_bytes_arrive_and_no_others_change
                an_immediate_write_takes_a_receive
                read_bytes_arrive
                messages_fill_receives_in_order
                messages_carry_immediates
                fetched_and_added_values_are_right
                swaps_happen_only_on_equal_values
                sixty_requests_are_outstanding_at_once
                both_sides_ask_at_once
            }
        }
    )*};
    (each: $($name:ident)*) => {$(
        #[test]
        #[ignore = "runs in the VM"]
        fn $name() {
            let (asks, answers) = ends();
            super::$name(&*asks, &*answers);
        }
    )*};
}

operations! {
    soft_asks_rxe_ipv4_mtu_1024: Roles::SoftAsksRxe, V4, B1024;
    soft_asks_rxe_ipv4_mtu_4096: Roles::SoftAsksRxe, V4, B4096;
    soft_asks_rxe_ipv6_mtu_1024: Roles::SoftAsksRxe, V6, B1024;
    soft_asks_rxe_ipv6_mtu_4096: Roles::SoftAsksRxe, V6, B4096;
    rxe_asks_soft_ipv4_mtu_1024: Roles::RxeAsksSoft, V4, B1024;
    rxe_asks_soft_ipv4_mtu_4096: Roles::RxeAsksSoft, V4, B4096;
    rxe_asks_soft_ipv6_mtu_1024: Roles::RxeAsksSoft, V6, B1024;
    rxe_asks_soft_ipv6_mtu_4096: Roles::RxeAsksSoft, V6, B4096;
    rxe_asks_itself_host_memory: Roles::RxeAsksItself(Backing::Anonymous), V4, B4096;
    rxe_asks_itself_memfd: Roles::RxeAsksItself(Backing::Memfd), V6, B1024;
    verbs_asks_itself_ipv4_mtu_4096: Roles::VerbsAsksItself, V4, B4096;
    verbs_asks_itself_ipv6_mtu_1024: Roles::VerbsAsksItself, V6, B1024;
    soft_asks_verbs_ipv4_mtu_4096: Roles::SoftAsksVerbs, V4, B4096;
    verbs_asks_soft_ipv6_mtu_1024: Roles::VerbsAsksSoft, V6, B1024;
}

fn written_bytes_arrive_and_no_others_change(asks: &dyn End, answers: &dyn End) {
    let sent = fill(asks, 1);
    for (n, len) in LENGTHS.into_iter().enumerate() {
        let (local, remote) = (5, 32);
        let before = fill(answers, 9);
        let immediate = None;
        asks.post(
            n as u64,
            Work::Write {
                local,
                len,
                remote,
                immediate,
            },
        );
        assert_eq!(done(asks).id, n as u64);
        let mut expected = before;
        expected[32..][..len as usize].copy_from_slice(&sent[5..][..len as usize]);
        assert_same(
            &answers.bytes(0, MEMORY),
            &expected,
            &format!("{len} bytes written"),
        );
    }
}

fn an_immediate_write_takes_a_receive(asks: &dyn End, answers: &dyn End) {
    let sent = fill(asks, 2);
    for (n, len) in [0, 1, 5000, 100_000].into_iter().enumerate() {
        answers.receive(70 + n as u64, 0, 0);
        let immediate = Some(0xfeed_0000 + n as u32);
        asks.post(
            1,
            Work::Write {
                local: 0,
                len,
                remote: 4096,
                immediate,
            },
        );
        let told = done(answers);
        assert_eq!((told.id, told.immediate), (70 + n as u64, immediate));
        assert_eq!(told.bytes, len);
        let found = answers.bytes(4096, len as usize);
        assert_same(&found, &sent[..len as usize], "what the receive told of");
        done(asks);
    }
}

fn read_bytes_arrive(asks: &dyn End, answers: &dyn End) {
    let kept = fill(answers, 3);
    for len in LENGTHS {
        let before = fill(asks, 8);
        let (local, remote) = (16, 7);
        asks.post(2, Work::Read { local, len, remote });
        assert_eq!(done(asks).id, 2);
        let mut expected = before;
        expected[16..][..len as usize].copy_from_slice(&kept[7..][..len as usize]);
        assert_same(
            &asks.bytes(0, MEMORY),
            &expected,
            &format!("{len} bytes read"),
        );
    }
}

fn messages_fill_receives_in_order(asks: &dyn End, answers: &dyn End) {
    let sent = fill(asks, 4);
    let slot = 2 << 18;
    let lengths = [1, 4096, 262_145, 0, 77];
    for n in 0..lengths.len() as u64 {
        answers.receive(n, n * slot, slot as u32);
    }
    for (n, len) in lengths.into_iter().enumerate() {
        let (local, immediate) = (n as u64, None);
        asks.post(
            n as u64,
            Work::Send {
                local,
                len,
                immediate,
            },
        );
    }
    for (n, len) in lengths.into_iter().enumerate() {
        let told = done(answers);
        assert_eq!((told.id, told.bytes), (n as u64, len));
        assert_eq!(told.immediate, None);
        let found = answers.bytes(n as u64 * slot, len as usize);
        assert_same(&found, &sent[n..][..len as usize], "a message");
        assert_eq!(done(asks).id, n as u64);
    }
}

fn messages_carry_immediates(asks: &dyn End, answers: &dyn End) {
    let sent = fill(asks, 5);
    for len in [0, 8, 20_000] {
        answers.receive(3, 100, 20_000);
        let immediate = Some(0x0102_0304 + len);
        asks.post(
            4,
            Work::Send {
                local: 0,
                len,
                immediate,
            },
        );
        let told = done(answers);
        assert_eq!((told.bytes, told.immediate), (len, immediate));
        let found = answers.bytes(100, len as usize);
        assert_same(&found, &sent[..len as usize], "a message");
        done(asks);
    }
}

/// Runs the operation on the word at 64; the word before as the requester got it, and the word as
/// the responder has it now.
fn atomic(asks: &dyn End, answers: &dyn End, op: AtomicOp) -> (u64, u64) {
    let (local, remote) = (8, 64);
    asks.post(6, Work::Atomic { local, remote, op });
    done(asks);
    let word = |end: &dyn End, at| {
        let bytes = end.bytes(at, 8).try_into();
        u64::from_ne_bytes(bytes.unwrap())
    };
    (word(asks, local), word(answers, remote))
}

fn fetched_and_added_values_are_right(asks: &dyn End, answers: &dyn End) {
    answers.fill(64, &40_u64.to_ne_bytes());
    let add = |add| atomic(asks, answers, AtomicOp::FetchAdd { add });
    assert_eq!(add(2), (40, 42));
    assert_eq!(add(u64::MAX), (42, 41));
    let large = 0x1122_3344_5566_7788;
    assert_eq!(add(large), (41, large + 41));
    for n in 0..100 {
        assert_eq!(add(1), (large + 41 + n, large + 42 + n));
    }
}

fn swaps_happen_only_on_equal_values(asks: &dyn End, answers: &dyn End) {
    let first = 0x8877_6655_4433_2211;
    answers.fill(64, &u64::to_ne_bytes(first));
    let swap = |compare, swap| atomic(asks, answers, AtomicOp::CompareSwap { compare, swap });
    assert_eq!(swap(first, 7), (first, 7));
    assert_eq!(swap(first, 8), (7, 7));
    assert_eq!(swap(7, u64::MAX), (7, u64::MAX));
}

fn sixty_requests_are_outstanding_at_once(asks: &dyn End, answers: &dyn End) {
    let (near, far) = (fill(asks, 6), fill(answers, 7));
    // Twenty of each, so that more READs are posted than may be under way.
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
        asks.post(3 * n, write);
        asks.post(3 * n + 1, read);
        asks.post(3 * n + 2, Work::Atomic { local, remote, op });
    }
    for id in 0..60 {
        assert_eq!(done(asks).id, id);
    }
    let all = 20 * len as usize;
    let written = answers.bytes(half, all);
    assert_same(&written, &near[..all], "twenty writes");
    let read = asks.bytes(half, all);
    assert_same(&read, &far[..all], "twenty reads");
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    let before = word(&far[MEMORY - 8..]);
    let after = word(&answers.bytes(MEMORY as u64 - 8, 8));
    assert_eq!(after, before.wrapping_add((0..20).sum()));
}

fn both_sides_ask_at_once(asks: &dyn End, answers: &dyn End) {
    let (near, far) = (fill(asks, 10), fill(answers, 11));
    let (len, half) = (200_000, MEMORY as u64 / 2);
    let immediate = None;
    let write = |n: u64| Work::Write {
        local: n * u64::from(len),
        len,
        remote: half + n * u64::from(len),
        immediate,
    };
    for n in 0..8 {
        asks.post(n, write(n));
        answers.post(n, write(n));
    }
    for n in 0..8 {
        assert_eq!(done(asks).id, n);
        assert_eq!(done(answers).id, n);
    }
    let all = 8 * len as usize;
    assert_same(&answers.bytes(half, all), &near[..all], "one way");
    assert_same(&asks.bytes(half, all), &far[..all], "the other way");
}

#[test]
#[ignore = "runs in the VM"]
fn eight_connections_share_the_devices() {
    let hosts = Hosts::new(Family::V4);
    let settings = Settings::new(Mtu::B4096);
    let roles = [Roles::SoftAsksRxe, Roles::RxeAsksSoft];
    let pairs: Vec<_> = (0..8)
        .map(|n| hosts.ends(roles[n % 2], &settings))
        .collect();
    let (len, half) = (100_000, MEMORY as u64 / 2);
    for (n, (asks, _)) in pairs.iter().enumerate() {
        asks.fill(0, &pattern(MEMORY / 2, n as u8));
    }
    for id in 0..10 {
        let at = id * u64::from(len);
        let write = Work::Write {
            local: at,
            len,
            remote: half + at,
            immediate: None,
        };
        for (asks, _) in &pairs {
            asks.post(id, write);
        }
    }
    for (n, (asks, answers)) in pairs.iter().enumerate() {
        for id in 0..10 {
            assert_eq!(done(&**asks).id, id);
        }
        let expected = pattern(MEMORY / 2, n as u8);
        let found = answers.bytes(half, 10 * len as usize);
        assert_same(&found, &expected[..found.len()], &format!("connection {n}"));
    }
}
