//! Packets beyond a gap that the peer never closes: how many are buffered, what they trigger, and for how long.

use std::time::Duration;

use gdr_roce::wire::{NakCode, Opcode};
use gdr_roce::{LossRecovery, PacketBudget, Time};

use super::target::{MTU, Sent, Target, headers, plain, reth, seal};
use crate::fixture::{BASE, Settings};

/// The maximum number of missing packets reported per arriving packet.
const MOST_REPORTED: usize = 32;

/// Returns a target that buffers packets beyond a gap within `bytes`.
fn target(bytes: usize) -> (Target, PacketBudget) {
    let budget = PacketBudget::new(bytes);
    (sharing(&budget), budget)
}

/// Returns such a target with a budget that others may share.
fn sharing(budget: &PacketBudget) -> Target {
    let settings = Settings {
        recovery: LossRecovery::Selective,
        ..Settings::default()
    };
    Target::with_budget(&settings, budget)
}

/// Returns a packet that requests no acknowledgement.
fn quiet(psn: u32, payload: usize) -> Vec<u8> {
    let mut headers = headers(Opcode::SendMiddle, psn);
    headers.bth.ack_request = false;
    seal(&headers, &vec![0xbb; payload])
}

/// Returns the PSNs that the target reports as missing, relative to its first one.
fn reports(target: &mut Target) -> Vec<u32> {
    let mut reported = Vec::new();
    loop {
        match target.poll() {
            Sent::Nothing => return reported,
            Sent::Ack(syndrome, psn) => {
                assert_eq!(
                    Sent::Ack(syndrome, psn),
                    super::target::nak(NakCode::SequenceError, psn)
                );
                reported.push(psn.wrapping_sub(target.first) & 0xff_ffff);
            }
            sent => panic!("{sent:?} is not a report"),
        }
    }
}

#[test]
fn one_packet_brings_few_reports_and_the_next_ones_bring_the_others() {
    let (mut target, _) = target(1 << 20);
    target.receive(&quiet(100, 0));
    let mut reported = reports(&mut target);
    assert_eq!(reported, (0..MOST_REPORTED as u32).collect::<Vec<_>>());
    for psn in 101..104 {
        target.receive(&quiet(psn, 0));
        let more = reports(&mut target);
        assert!(more.len() <= MOST_REPORTED, "{more:?}");
        reported.extend(more);
    }
    assert_eq!(reported, (0..100).collect::<Vec<_>>(), "each once");
    target.receive(&quiet(104, 0));
    assert_eq!(reports(&mut target), []);
}

#[test]
fn a_packet_that_requests_an_acknowledgement_brings_no_more_reports() {
    for first in [100, 4095, 5000, 1 << 20] {
        let (mut target, _) = target(1 << 20);
        target.receive(&plain(Opcode::SendMiddle, first, 0));
        assert!((1..=MOST_REPORTED).contains(&reports(&mut target).len()));
    }
}

#[test]
fn what_is_reported_and_not_sent_for_want_of_room_is_reported_later() {
    let (mut target, _) = target(1 << 20);
    // Nothing is polled meanwhile: the response queue fills up while packets keep arriving.
    for psn in 0..300 {
        target.receive(&quiet(2 * psn + 1, 0));
    }
    let mut reported = reports(&mut target);
    for psn in 601..620 {
        target.receive(&quiet(psn, 0));
        reported.extend(reports(&mut target));
    }
    reported.sort_unstable();
    reported.dedup();
    let missing = (0..300).map(|psn| 2 * psn).chain([600]).collect::<Vec<_>>();
    assert_eq!(reported, missing);
}

#[test]
fn kept_packets_of_all_queue_pairs_stay_within_one_budget() {
    let bytes = 1 << 20;
    let budget = PacketBudget::new(bytes);
    let mut targets = [(); 8].map(|()| sharing(&budget));
    for psn in 1..4095 {
        for target in &mut targets {
            target.receive(&quiet(psn, MTU));
        }
    }
    assert!(budget.left() < bytes / 4, "{} left", budget.left());
    // Another queue pair still gets a share of the remaining budget.
    let before = budget.left();
    let mut late = sharing(&budget);
    late.receive(&quiet(1, MTU));
    assert!(budget.left() < before);
    drop((targets, late));
    assert_eq!(budget.left(), bytes);
}

#[test]
fn a_queue_pair_alone_holds_at_most_half_of_the_budget() {
    let bytes = 1 << 20;
    let (mut target, budget) = target(bytes);
    for psn in 1..4095 {
        target.receive(&quiet(psn, MTU));
    }
    assert!(budget.left() >= bytes / 2);
    assert!(budget.left() < bytes / 2 + 2 * MTU);
}

#[test]
fn a_packet_beyond_the_budget_is_dropped_and_the_expected_one_is_reported() {
    let (mut target, budget) = target(0);
    for psn in [1, 2, 40] {
        target.receive(&quiet(psn, MTU));
    }
    assert_eq!(budget.left(), 0);
    assert_eq!(reports(&mut target), [0]);
}

#[test]
fn kept_packets_are_let_go_in_err_in_reset_and_with_the_queue_pair() {
    let bytes = 1 << 20;
    let ends: [fn(Target) -> Option<Target>; 3] = [
        |mut target| {
            target.qp.to_error();
            Some(target)
        },
        |mut target| {
            target.qp.to_reset();
            Some(target)
        },
        |_| None,
    ];
    for end in ends {
        let (mut target, budget) = target(bytes);
        for psn in 1..100 {
            target.receive(&quiet(psn, MTU));
        }
        assert!(budget.left() < bytes);
        let held = bytes - budget.left();
        assert_eq!(budget.dropped(1), None);
        let rest = end(target);
        assert_eq!(budget.left(), bytes);
        assert_eq!(budget.dropped(held + 1), None);
        assert_eq!(budget.dropped(held), Some(held));
        assert_eq!(budget.dropped(1), None);
        if let Some(target) = rest {
            assert_eq!(target.qp.next_deadline(), None);
        }
    }
}

#[test]
fn a_queue_pair_keeps_its_budget_in_reset() {
    let bytes = 1 << 20;
    let (mut target, budget) = target(bytes);
    target.qp.to_reset();
    let settings = Settings {
        recovery: LossRecovery::Selective,
        ..Settings::default()
    };
    target.connect_again(&settings);
    target.receive(&quiet(1, MTU));
    assert!(budget.left() < bytes);
}

#[test]
fn kept_packets_are_let_go_after_a_time_without_progress_and_reported_again() {
    let bytes = 1 << 20;
    let (mut target, budget) = target(bytes);
    target.receive(&quiet(2, MTU));
    assert_eq!(reports(&mut target), [0, 1]);
    let until = target.qp.next_deadline().expect("a limit");
    assert!(
        until > Time::EPOCH + Duration::from_millis(500),
        "a repetition may take as long"
    );
    // Packets beyond the gap do not count as progress.
    target.receive(&quiet(3, MTU));
    assert_eq!(target.qp.next_deadline(), Some(until));
    target.qp.handle_deadline(until);
    assert_eq!(budget.left(), bytes);
    assert_eq!(target.qp.next_deadline(), None);
    target.receive(&quiet(2, MTU));
    assert_eq!(reports(&mut target), [0, 1]);
    assert!(budget.left() < bytes);
}

#[test]
fn progress_puts_off_the_time_at_which_kept_packets_are_let_go() {
    let (mut target, budget) = target(1 << 20);
    let rkey = target.open.1;
    let write = |psn| reth(Opcode::WriteOnly, psn, rkey, BASE, 4, 4);
    for psn in [1, 3] {
        target.receive(&write(psn));
    }
    let until = target.qp.next_deadline().expect("a limit");
    let later = Time::EPOCH + Duration::from_secs(1);
    target.receive_at(later, &write(0));
    let put_off = target.qp.next_deadline().expect("a limit");
    assert_eq!(put_off.elapsed(), until.elapsed() + later.elapsed());
    target.receive_at(later, &write(2));
    assert_eq!(target.qp.next_deadline(), None);
    assert_eq!(budget.left(), 1 << 20);
}

#[test]
fn a_gap_is_reported_again_as_long_as_packets_come_without_it() {
    let (mut target, _) = target(1 << 20);
    target.receive(&quiet(2, 0));
    assert_eq!(reports(&mut target), [0, 1]);
    let interval = Settings::default().config.ack_interval();
    for psn in 3..3 + interval - 1 {
        target.receive(&quiet(psn, 0));
        assert_eq!(reports(&mut target), []);
    }
    target.receive(&quiet(3 + interval, 0));
    assert_eq!(reports(&mut target)[..2], [0, 1]);
}
