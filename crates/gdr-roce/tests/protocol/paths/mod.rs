//! Goodput over models of links, in virtual time: no figure depends on the machine.

mod case;
mod flow;
mod link;

use std::time::Duration;

use case::{BOTTLENECKS, CASES, EMULATED, FAULTS, HOSTS, NETEM_FAULTS, OFFSETS};
use flow::{Direct, Load, Simulation};
use gdr_roce::LossRecovery::{self, GoBackN, Selective};
use gdr_roce::Time;
use link::{Direction, Link};

const GIGABIT: u64 = 1_000_000_000;
const LOAD: Load = Load::new(Direct::Write, Duration::from_millis(20));

#[test]
fn the_link_carries_its_rate_and_delays_each_packet() {
    let link = Link::new(GIGABIT, Duration::from_micros(50));
    let mut direction = Direction::new(link, 1);
    // 934 bytes plus 66 of Ethernet, IP and UDP take 8 us.
    for packet in 1..=100 {
        let arrives = direction.carry(Time::EPOCH, 934).map(Time::elapsed);
        assert_eq!(arrives, Some(Duration::from_micros(8 * packet + 50)));
    }
}

#[test]
fn the_link_drops_what_its_queue_does_not_hold_and_what_it_loses() {
    let link = Link::new(GIGABIT, Duration::ZERO);
    let arrived = |link| {
        let mut direction = Direction::new(link, 1);
        (0..10_000)
            .filter(|_| direction.carry(Time::EPOCH, 100).is_some())
            .count()
    };
    // One packet is being transmitted, and ten are queued.
    assert_eq!(arrived(link.queueing(10)), 11);
    assert!((9_800..9_990).contains(&arrived(link.losing(100))));
}

#[test]
fn a_path_without_faults_is_filled() {
    for operation in [Direct::Write, Direct::Read] {
        let part = CASES[0].utilization(operation, GoBackN);
        assert!(part > 0.98, "{operation:?}: {part}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let link = Link::new(GIGABIT, Duration::from_micros(10)).losing(50);
    let run = |seed| Simulation::new(link, LOAD, 2, seed).run();
    let goodput = |seed| {
        run(seed)
            .iter()
            .map(|flow| flow.goodput)
            .collect::<Vec<_>>()
    };
    assert_eq!(goodput(3), goodput(3));
}

/// Lower bounds on the link utilization of WRITE and READ with selective retransmission.
const LEAST_SELECTIVE: [(&str, f64, f64); 8] = [
    ("loss 0.1 %", 0.95, 0.95),
    ("loss 1 %", 0.9, 0.85),
    ("loss 5 %", 0.7, 0.5),
    ("reordering 1 %, up to 2 ms", 0.9, 0.85),
    ("1 Gbit/s, queue 100", 0.9, 0.9),
    ("1 Gbit/s, queue 30", 0.85, 0.9),
    ("1 Gbit/s, queue 10", 0.8, 0.8),
    ("100 Mbit/s, queue 30", 0.9, 0.9),
];

#[test]
fn selective_retransmission_keeps_nearly_all_of_a_lossy_link() {
    for (name, write, read) in LEAST_SELECTIVE {
        let case = CASES.iter().find(|case| case.name == name);
        let case = case.expect("a case of this name");
        for (operation, least) in [(Direct::Write, write), (Direct::Read, read)] {
            let part = case.utilization(operation, Selective);
            assert!(part > least, "{operation:?}, {name}: {part:.3}");
        }
    }
}

/// Lower bounds on the rate that WRITE and READ keep relative to the fault-free rate, by host and fault.
const LEAST_BETWEEN_HOSTS: [[[f64; FAULTS.len()]; 2]; HOSTS.len()] = [
    [[0.9, 0.7, 0.5, 0.8], [0.9, 0.7, 0.35, 0.8]],
    [[0.9, 0.7, 0.5, 0.7], [0.9, 0.7, 0.4, 0.8]],
    [[0.8, 0.5, 0.35, 0.6], [0.8, 0.6, 0.4, 0.6]],
];

#[test]
fn the_delays_of_hosts_do_not_count_as_congestion() {
    for (host, least) in HOSTS.iter().zip(LEAST_BETWEEN_HOSTS) {
        for (operation, least) in [Direct::Write, Direct::Read].into_iter().zip(least) {
            let kept = host.kept(operation, FAULTS);
            for (((fault, _), kept), least) in FAULTS.iter().zip(kept).zip(least) {
                let what = format!("{} hosts, {operation:?}, {fault}", host.name);
                assert!(kept > least, "{what}: {kept:.3}");
            }
        }
    }
}

/// Lower bounds on the share of its goodput that WRITE keeps between emulated hosts.
const LEAST_BETWEEN_EMULATED: [f64; NETEM_FAULTS.len()] = [0.9, 0.25, 0.08, 0.45];

#[test]
fn the_pacing_makes_up_for_coarse_timers() {
    let kept = EMULATED.kept(Direct::Write, NETEM_FAULTS);
    for (((fault, _), kept), least) in NETEM_FAULTS.iter().zip(kept).zip(LEAST_BETWEEN_EMULATED) {
        assert!(kept > least, "{fault}: {kept:.3}");
    }
}

/// Runs two flows over the bottleneck with this queue, for each operation and starting time of the second.
fn assert_fair(queue: usize, recovery: LossRecovery, least: f64) {
    let bottleneck = BOTTLENECKS.iter().find(|case| case.queue == queue);
    let bottleneck = bottleneck.expect("a bottleneck with this queue");
    for operation in [Direct::Write, Direct::Read] {
        for (offset, seed) in OFFSETS.into_iter().zip(1..) {
            let (apart, used) = bottleneck.share(operation, recovery, offset, seed);
            let what =
                format!("{operation:?}, {recovery:?}, queue {queue}, {offset:?}, seed {seed}");
            assert!(apart < 0.1, "{what}: {apart:.3} apart");
            assert!(used > least, "{what}: {used:.3} used");
        }
    }
}

#[test]
fn two_flows_share_a_bottleneck_with_a_short_queue_equally() {
    assert_fair(8, Selective, 0.9);
    assert_fair(8, GoBackN, 0.75);
}

#[test]
fn two_flows_share_a_bottleneck_with_a_queue_of_30_packets_equally() {
    assert_fair(30, Selective, 0.95);
    assert_fair(30, GoBackN, 0.9);
}

#[test]
fn two_flows_share_a_bottleneck_with_a_long_queue_equally() {
    assert_fair(128, Selective, 0.95);
    assert_fair(128, GoBackN, 0.95);
}

#[test]
fn the_window_follows_a_path_with_a_long_round_trip() {
    let case = CASES
        .iter()
        .find(|case| case.name == "delay 50 ms, 1 Gbit/s");
    let case = case.expect("a case of this name");
    for operation in [Direct::Write, Direct::Read] {
        for recovery in [GoBackN, Selective] {
            let part = case.utilization(operation, recovery);
            assert!(part > 0.9, "{operation:?}, {recovery:?}: {part:.3}");
        }
    }
}
