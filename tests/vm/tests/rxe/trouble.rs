//! A wire that loses, reorders, repeats and damages packets: slower, and never a wrong byte.

use std::time::Duration;

use gdr_rdma::{AtomicOp, Deadline, Mtu};
use gdr_vm_tests::link::Trouble;
use gdr_vm_tests::trace::Trace;
use gdr_vm_tests::{End, Outcome, Settings, Work};

use crate::fixture::*;

/// Each kind of trouble in both roles and over both families.
macro_rules! troubles {
    ($($module:ident: $roles:ident, $family:ident;)*) => {$(
        mod $module {
            use super::*;

            troubles! { each: $roles, $family,
                loss_of_one_in_a_hundred: "loss 1%";
                reordering: "delay 1ms reorder 75% 50%";
                repetition: "duplicate 10%";
                damage_of_one_in_a_hundred: "corrupt 1%";
                all_of_it: "delay 1ms loss 1% duplicate 2% corrupt 1% reorder 75% 50%";
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

troubles! {
    soft_asks_rxe_ipv4: SoftAsksRxe, V4;
    soft_asks_rxe_ipv6: SoftAsksRxe, V6;
    rxe_asks_soft_ipv4: RxeAsksSoft, V4;
    rxe_asks_soft_ipv6: RxeAsksSoft, V6;
}

/// How long one round may take. A lost last packet costs a timeout, 33 ms and up; a round that is
/// never through ends in an error before this.
const ROUND: Duration = Duration::from_secs(60);
const ROUNDS: u64 = 12;
const LEN: u32 = 50_000;

/// Rounds of writes, reads, messages and atomics; what they did is compared byte by byte.
fn survive(roles: Roles, family: Family, words: &str) {
    let mut settings = Settings::new(Mtu::B1024);
    settings.timeout = 13;
    let hosts = Hosts::new(family);
    let all = hosts.ends(roles, &settings);
    // rxe fails a READ of its own when an acknowledgement of something earlier arrives behind the
    // READ's first response (its completer takes it for the end of the READ, since 5.19). Nothing
    // acknowledges but READs on a connection that has nothing else.
    let overtaking = roles == Roles::RxeAsksSoft && words.contains("reorder");
    let own = overtaking.then(|| hosts.ends(roles, &settings));
    let others = (&*all.0, &*all.1);
    let reads = own.as_ref().map_or(others, |own| (&*own.0, &*own.1));

    let _trace = Trace::start();
    let trouble = Trouble::make(words).unwrap();
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
        round.finish();
        round.check(sum);
        sum += ADDED.iter().sum::<u64>();
    }
    assert_eq!(word(others.1, 0), sum, "every atomic exactly once");
    // A wire that does nothing proves nothing.
    let counters = hosts.counters();
    if words.contains("loss") {
        assert!(trouble.lost().unwrap() > 0, "nothing was lost");
    }
    if words.contains("corrupt") {
        let damaged = counters.icrc_mismatches + counters.malformed;
        assert!(damaged > 0, "nothing was damaged: {counters:?}");
    }
}

fn word(end: &dyn End, at: u64) -> u64 {
    u64::from_ne_bytes(end.bytes(at, 8).try_into().unwrap())
}

const QUARTER: u64 = MEMORY as u64 / 4;
/// Bytes that four requests write or read.
const ALL: usize = 4 * LEN as usize;
/// What the atomics of a round add.
const ADDED: [u64; 4] = [1, 2, 3, 4];

/// The side that asks, and the one that answers.
type Sides<'a> = (&'a dyn End, &'a dyn End);

/// One message, four writes, four reads and four atomics, all posted before any is complete.
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

    /// What is written comes from the second quarter of memory and goes to the third; so does
    /// what is read. The message goes to the fourth.
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

    /// Each request and each receive completes, once and in order.
    fn finish(&self) {
        let deadline = Deadline::after(ROUND);
        let finished = |end: &dyn End| {
            let place = || format!("round {}: {}", self.number, end.name());
            let done = end
                .wait(deadline)
                .unwrap_or_else(|| panic!("{}: no completion", place()));
            assert_eq!(done.outcome, Outcome::Success, "{}", place());
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
        let told = [finished(self.others.1), finished(self.others.1)];
        assert_eq!(told.map(|done| done.id), [100, 101]);
        assert_eq!(told.map(|done| done.immediate), [self.immediate(); 2]);
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
        assert_eq!(fetched, expected, "{}", what("the words before"));
    }
}
