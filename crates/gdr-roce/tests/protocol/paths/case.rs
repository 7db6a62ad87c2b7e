//! The paths over which goodput is measured.
#![allow(dead_code)] // The example `goodput` uses only a part of this module.

use std::time::Duration;

use gdr_roce::LossRecovery;

use super::flow::{Direct, Host, Load, Moved, Simulation};
use super::link::Link;

const GIGABIT: u64 = 1_000_000_000;
const MTU: usize = 4096;

/// A link, and how long a flow runs over it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) link: Link,
    pub(crate) duration: Duration,
}

const FAST: Link = Link::new(10 * GIGABIT, Duration::from_micros(10));
const METRO: Link = Link::new(GIGABIT, Duration::from_micros(100));
const FAR: Link = Link::new(GIGABIT, Duration::from_millis(50));

/// The cases in the goodput table.
pub(crate) const CASES: [Case; 12] = [
    Case::new("no fault", FAST, 200),
    Case::new("loss 0.1 %", FAST.losing(10), 200),
    Case::new("loss 1 %", FAST.losing(100), 200),
    Case::new("loss 5 %", FAST.losing(500), 200),
    Case::new(
        "reordering 1 %, up to 2 ms",
        FAST.reordering(100, Duration::from_millis(2)),
        200,
    ),
    Case::new("1 Gbit/s, queue 100", METRO.queueing(100), 1000),
    Case::new("1 Gbit/s, queue 30", METRO.queueing(30), 1000),
    Case::new("1 Gbit/s, queue 10", METRO.queueing(10), 1000),
    Case::new(
        "100 Mbit/s, queue 30",
        Link::new(GIGABIT / 10, Duration::from_micros(100)).queueing(30),
        4000,
    ),
    Case::new("delay 50 ms, 1 Gbit/s", FAR, 8000),
    Case::new("delay 50 ms, loss 0.1 %", FAR.losing(10), 8000),
    Case::new("delay 50 ms, queue 1000", FAR.queueing(1000), 8000),
];

impl Case {
    const fn new(name: &'static str, link: Link, millis: u64) -> Self {
        Self {
            name,
            link,
            duration: Duration::from_millis(millis),
        }
    }

    /// Runs one flow over this path.
    pub(crate) fn run(&self, operation: Direct, recovery: LossRecovery) -> Moved {
        let mut load = Load::new(operation, self.duration);
        load.recovery = recovery;
        if self.link.delay >= FAR.delay {
            // Messages that are posted must fill the path.
            (load.message, load.depth) = (1 << 20, 40);
            load.warm_up = Duration::from_secs(2);
        }
        Simulation::new(self.link, load, 1, 7).run()[0]
    }

    /// Returns the share of the link's rate that one flow reaches.
    pub(crate) fn utilization(&self, operation: Direct, recovery: LossRecovery) -> f64 {
        self.run(operation, recovery).goodput / self.link.goodput(MTU)
    }
}

/// Two hosts that delay packets over an ideal link, as two processes on one machine do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostCase {
    pub(crate) name: &'static str,
    host: Host,
    duration: Duration,
}

const BUS: Link = Link::new(100 * GIGABIT, Duration::from_micros(5));
const LATE: Duration = Duration::from_millis(2);

/// The faults of the link between such hosts.
pub(crate) const FAULTS: [(&str, Link); 4] = [
    ("loss 0.1 %", BUS.losing(10)),
    ("loss 1 %", BUS.losing(100)),
    ("loss 5 %", BUS.losing(500)),
    ("reordering 1 %", BUS.reordering(100, LATE)),
];

/// Hosts that lose their CPU to other threads increasingly often.
pub(crate) const HOSTS: [HostCase; 3] = [
    HostCase::new("idle", Host::new(500, 20).preempted(50, 3000)),
    HostCase::new("busy", Host::new(1000, 50).preempted(200, 1000)),
    HostCase::new("overloaded", Host::new(3000, 100).preempted(500, 3000)),
];

/// Emulated hosts: 50 us of CPU per packet, frequent losses of the CPU for milliseconds, and timers up to 4 ms late.
pub(crate) const EMULATED: HostCase = HostCase::new(
    "emulated",
    Host::new(50_000, 1000).preempted(500, 8000).ticking(4),
)
.lasting(1500);

/// The faults between them, as netem applies them: a segmented send is lost as a whole.
pub(crate) const NETEM_FAULTS: [(&str, Link); 4] = [
    ("loss 0.1 %", BUS.losing(10).in_bursts(16)),
    ("loss 1 %", BUS.losing(100).in_bursts(16)),
    ("loss 5 %", BUS.losing(500).in_bursts(16)),
    ("reordering 1 %", BUS.reordering(100, LATE)),
];

impl HostCase {
    const RUNS: u64 = 2;

    const fn new(name: &'static str, host: Host) -> Self {
        Self {
            name,
            host,
            duration: Duration::from_millis(150),
        }
    }

    /// Sets the duration in milliseconds.
    const fn lasting(mut self, millis: u64) -> Self {
        self.duration = Duration::from_millis(millis);
        self
    }

    /// Returns the goodput with each fault, relative to that without.
    pub(crate) fn kept(&self, operation: Direct, faults: [(&str, Link); 4]) -> [f64; 4] {
        let whole = self.goodput(BUS, operation);
        faults.map(|(_, link)| self.goodput(link, operation) / whole)
    }

    fn goodput(&self, link: Link, operation: Direct) -> f64 {
        let load = Load {
            recovery: LossRecovery::Selective,
            depth: 32,
            host: Some(self.host),
            ..Load::new(operation, self.duration)
        };
        let run = |seed| Simulation::new(link, load, 1, seed).run()[0].goodput;
        (7..7 + Self::RUNS).map(run).sum()
    }
}

/// A bottleneck shared by two flows, and the period over which their rates are averaged. Host delays vary, as on real
/// hosts: otherwise the packets of equal flows would meet the same queue lengths forever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bottleneck {
    pub(crate) queue: usize,
    pub(crate) averaged: Duration,
}

/// With a longer queue, a window takes longer to shrink and grow, and so do averages.
pub(crate) const BOTTLENECKS: [Bottleneck; 3] = [
    Bottleneck::new(8, 20),
    Bottleneck::new(30, 20),
    Bottleneck::new(128, 32),
];

/// When the second flow starts: with the first, within its first round trip, or once the first has the link to itself.
pub(crate) const OFFSETS: [Duration; 3] = [
    Duration::ZERO,
    Duration::from_micros(137),
    Duration::from_millis(300),
];

impl Bottleneck {
    const JITTER: Duration = Duration::from_micros(10);
    const WARM_UP: Duration = Duration::from_secs(2);

    const fn new(queue: usize, seconds: u64) -> Self {
        Self {
            queue,
            averaged: Duration::from_secs(seconds),
        }
    }

    /// Runs two flows, the second starting at `offset`. Returns the difference of their rates relative to the mean, and
    /// the link utilization.
    pub(crate) fn share(
        &self,
        operation: Direct,
        recovery: LossRecovery,
        offset: Duration,
        seed: u64,
    ) -> (f64, f64) {
        let link = METRO.queueing(self.queue).jittering(Self::JITTER);
        let load = Load {
            recovery,
            warm_up: Self::WARM_UP,
            stagger: offset,
            ..Load::new(operation, self.averaged)
        };
        let moved = Simulation::new(link, load, 2, seed).run();
        let [first, second] = [0, 1].map(|flow: usize| moved[flow].goodput);
        let sum = first + second;
        (2.0 * (first - second).abs() / sum, sum / link.goodput(MTU))
    }
}
