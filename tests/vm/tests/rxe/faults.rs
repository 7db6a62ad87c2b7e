//! A network that loses, reorders, duplicates and corrupts packets: no byte may be wrong.

use std::time::Duration;

use gdr_rdma::{AtomicOp, Deadline, Mtu};
use gdr_vm_tests::netem::Netem;
use gdr_vm_tests::trace::Trace;
use gdr_vm_tests::{Endpoint, Settings, Status, Work};

use crate::fixture::*;

/// Each kind of fault in both roles and both address families.
macro_rules! fault_tests {
    ($($module:ident: $roles:ident, $family:ident;)*) => {$(
        mod $module {
            use super::*;

            fault_tests! { each: $roles, $family,
                loss_of_one_in_a_hundred: "loss 1%";
                reordering: "delay 1ms reorder 75% 50%";
                duplication: "duplicate 10%";
                corruption_of_one_in_a_hundred: "corrupt 1%";
                all_together: "delay 1ms loss 1% duplicate 2% corrupt 1% reorder 75% 50%";
            }
        }
    )*};
    (each: $roles:ident, $family:ident, $($name:ident: $words:literal;)*) => {$(
        #[test]
        #[ignore = "runs in the VM"]
        fn $name() {
            survive(Roles::$roles, Family::$family, $words);
        }
    )*};
}

fault_tests! {
    soft_to_rxe_ipv4: SoftToRxe, V4;
    soft_to_rxe_ipv6: SoftToRxe, V6;
    rxe_to_soft_ipv4: RxeToSoft, V4;
    rxe_to_soft_ipv6: RxeToSoft, V6;
}

/// The maximum time of a round. A lost last packet costs a timeout of at least 33 ms; a connection
/// that does not recover fails earlier.
const ROUND: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 12;
const LEN: u32 = 50_000;

/// Runs rounds of WRITEs, READs, SENDs and atomics, and compares all bytes.
fn survive(roles: Roles, family: Family, words: &str) {
    let mut settings = Settings::new(Mtu::B1024);
    settings.timeout = 13;
    let hosts = Hosts::new(family);
    let all = hosts.endpoints(roles, &settings);
    // rxe (since 5.19) fails its READ if an acknowledgement of an earlier request arrives after the
    // first READ response, which its completer handles as the end of the READ. A connection with
    // READs only has no such acknowledgements.
    let separate_reads = roles == Roles::RxeToSoft && words.contains("reorder");
    let reads_only = separate_reads.then(|| hosts.endpoints(roles, &settings));
    let others = (&*all.0, &*all.1);
    let reads = reads_only
        .as_ref()
        .map_or(others, |sides| (&*sides.0, &*sides.1));

    let _trace = Trace::start();
    let netem = Netem::enable(words).unwrap();
    others.1.fill(0, &[0; 8]);
    let mut sum = 0;
    for round in 0..ROUNDS {
        let round = Round {
            number: round,
            others,
            reads,
        };
        round.fill();
        round.post();
        round.await_completions();
        round.check(sum);
        sum += ADDED.iter().sum::<u64>();
    }
    assert_eq!(word(others.1, 0), sum, "every atomic exactly once");
    // Without a fault the test would prove nothing.
    let counters = hosts.counters();
    if words.contains("loss") {
        assert!(netem.lost().unwrap() > 0, "nothing was lost");
    }
    if words.contains("corrupt") {
        let corrupt = counters.icrc_mismatches + counters.malformed;
        assert!(corrupt > 0, "nothing was corrupted: {counters:?}");
    }
}

fn word(end: &dyn Endpoint, at: u64) -> u64 {
    u64::from_ne_bytes(end.bytes(at, 8).try_into().unwrap())
}

const QUARTER: u64 = MEMORY as u64 / 4;
/// The bytes of four requests.
const ALL: usize = 4 * LEN as usize;
/// The operands of the atomics of a round.
const ADDED: [u64; 4] = [1, 2, 3, 4];

/// The requester and the responder.
type Sides<'a> = (&'a dyn Endpoint, &'a dyn Endpoint);

/// One SEND, four WRITEs, four READs and four atomics, which are outstanding at the same time.
struct Round<'a> {
    number: u64,
    others: Sides<'a>,
    reads: Sides<'a>,
}

impl Round<'_> {
    fn near(&self) -> Vec<u8> {
        pattern(MEMORY / 4, self.number as u8)
    }

    fn far(&self) -> Vec<u8> {
        pattern(MEMORY / 4, !(self.number as u8))
    }

    fn immediate(&self) -> Option<u32> {
        Some(self.number as u32)
    }

    /// WRITEs and READs copy from the second quarter of memory to the third. The SEND goes to the
    /// fourth.
    fn fill(&self) {
        self.others.0.fill(QUARTER, &self.near());
        self.reads.1.fill(QUARTER, &self.far());
        self.others.1.receive(100, 3 * QUARTER, LEN);
        self.others.1.receive(101, 0, 0);
    }

    fn post(&self) {
        let part = |n: u64| n * u64::from(LEN);
        let message = Work::Send {
            local: QUARTER,
            len: LEN,
            immediate: self.immediate(),
        };
        self.others.0.post(0, message);
        for n in 0..4 {
            let write = Work::Write {
                local: QUARTER + part(n),
                len: LEN,
                remote: 2 * QUARTER + part(n),
                immediate: self.immediate().filter(|_| n == 3),
            };
            self.others.0.post(1 + n, write);
        }
        for n in 0..4 {
            let read = Work::Read {
                local: 2 * QUARTER + part(n),
                len: LEN,
                remote: QUARTER + part(n),
            };
            self.reads.0.post(5 + n, read);
        }
        for (n, add) in (0..).zip(ADDED) {
            let atomic = Work::Atomic {
                local: 8 + 8 * n,
                remote: 0,
                op: AtomicOp::FetchAdd { add },
            };
            self.others.0.post(9 + n, atomic);
        }
    }

    /// Asserts that each request and receive completes once and in order.
    fn await_completions(&self) {
        let deadline = Deadline::after(ROUND);
        let finished = |end: &dyn Endpoint| {
            let place = || format!("round {}: {}", self.number, end.name());
            let done = end
                .wait(deadline)
                .unwrap_or_else(|| panic!("{}: no completion", place()));
            assert_eq!(done.status, Status::Success, "{}", place());
            done
        };
        for id in 0..13 {
            let end = if (5..9).contains(&id) {
                self.reads.0
            } else {
                self.others.0
            };
            assert_eq!(finished(end).id, id);
        }
        let received = [finished(self.others.1), finished(self.others.1)];
        assert_eq!(received.map(|done| done.id), [100, 101]);
        assert_eq!(received.map(|done| done.immediate), [self.immediate(); 2]);
    }

    fn check(&self, counter: u64) {
        let what = |name: &str| format!("round {}, {name}", self.number);
        let (near, far) = (self.near(), self.far());
        let written = self.others.1.bytes(2 * QUARTER, ALL);
        assert_same(&written, &near[..ALL], &what("written"));
        let read = self.reads.0.bytes(2 * QUARTER, ALL);
        assert_same(&read, &far[..ALL], &what("read"));
        let message = self.others.1.bytes(3 * QUARTER, LEN as usize);
        assert_same(&message, &near[..LEN as usize], &what("the message"));
        let fetched = [0, 1, 2, 3].map(|n| word(self.others.0, 8 + 8 * n));
        let expected = [0, 1, 3, 6].map(|sum| counter + sum);
        assert_eq!(fetched, expected, "{}", what("the original values"));
    }
}
