//! Flows: a sender that always has messages to send, its peer, and the link that flows share.
#![allow(dead_code)] // The example `goodput` uses only a part of this module.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use gdr_roce::wire::{MAX_DATAGRAM, Packet};
use gdr_roce::{
    Access, AckTimeout, Capabilities, Data, HeapMemory, Lkey, LossRecovery, Mtu, Operation, Psn,
    Qpn, QueuePair, Remote, RetryLimit, Rkey, RnrRetry, RnrTimer, RtrAttributes, RtsAttributes,
    Segment, SendFlags, SendRequest, Statistics, Time, TransportConfig, WcStatus, WrId,
};

use super::link::{Direction, Link};
use crate::fixture::Random;

const MTU: Mtu = Mtu::B4096;
const ADDRESS: u64 = 0x10_0000;
const QPNS: [Qpn; 2] = [Qpn::new(17), Qpn::new(18)];

/// The direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direct {
    Write,
    Read,
}

/// A host that drives one side of a flow. Packets wait in its receive buffer while its thread is busy or has no CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host {
    /// CPU time per packet sent or received.
    packet: Duration,
    /// The longest wake-up latency of its thread.
    wakeup: Duration,
    /// The number of polls in 10,000 that end with the thread preempted, and the longest time until it runs again.
    preempted: u32,
    time_slice: Duration,
    /// The granularity of its timers.
    tick: Duration,
}

impl Host {
    /// The maximum number of packets that one poll receives or sends.
    const BATCH: usize = 64;

    /// Returns a host that takes `packet` nanoseconds per packet and up to `wakeup` microseconds to wake up.
    pub(crate) const fn new(packet: u64, wakeup: u64) -> Self {
        Self {
            packet: Duration::from_nanos(packet),
            wakeup: Duration::from_micros(wakeup),
            preempted: 0,
            time_slice: Duration::ZERO,
            tick: Duration::from_nanos(1),
        }
    }

    /// Sets the granularity of timers in milliseconds.
    pub(crate) const fn ticking(mut self, millis: u64) -> Self {
        self.tick = Duration::from_millis(millis);
        self
    }

    /// Returns when a timer set for `due` expires.
    fn expires(&self, due: Time) -> Time {
        let tick = self.tick.as_nanos() as u64;
        let ticks = (due.elapsed().as_nanos() as u64).div_ceil(tick);
        Time::since_epoch(Duration::from_nanos(ticks * tick))
    }

    /// Preempts the thread after `polls` of 10,000 polls, for up to `slice` microseconds.
    pub(crate) const fn preempted(mut self, polls: u32, slice: u64) -> Self {
        self.preempted = polls;
        self.time_slice = Duration::from_micros(slice);
        self
    }
}

/// How flows are driven.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) operation: Direct,
    pub(crate) config: TransportConfig,
    pub(crate) recovery: LossRecovery,
    /// Message length in bytes.
    pub(crate) message: u32,
    /// Messages posted at a time.
    pub(crate) depth: usize,
    /// When measurement starts after the first flow, and how long it lasts.
    pub(crate) warm_up: Duration,
    pub(crate) duration: Duration,
    /// The delay between the starts of consecutive flows.
    pub(crate) stagger: Duration,
    /// The host on each side; with `None`, processing takes no time.
    pub(crate) host: Option<Host>,
}

impl Load {
    pub(crate) const fn new(operation: Direct, duration: Duration) -> Self {
        Self {
            operation,
            config: TransportConfig::DEFAULT,
            recovery: LossRecovery::GoBackN,
            message: 256 << 10,
            depth: 16,
            warm_up: Duration::ZERO,
            duration,
            stagger: Duration::ZERO,
            host: None,
        }
    }
}

/// The result of a flow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moved {
    /// Payload of completed messages, in bytes per second.
    pub(crate) goodput: f64,
    /// Counters of the requester.
    pub(crate) statistics: Statistics,
}

struct Side {
    qp: QueuePair,
    memory: HeapMemory,
    /// Only used with a [`Host`]: packets not yet received, when its thread becomes free, and whether there was more to
    /// send.
    buffer: VecDeque<Vec<u8>>,
    busy_until: Time,
    has_more: bool,
}

impl Side {
    /// Returns when the host polls next.
    fn poll_time(&self, host: &Host) -> Option<Time> {
        let due = match self.has_more || !self.buffer.is_empty() {
            true => Some(self.busy_until),
            false => self.qp.next_deadline().map(|due| host.expires(due)),
        };
        due.map(|at| at.max(self.busy_until))
    }
}

struct Flow {
    sides: [Side; 2],
    source: Lkey,
    target: Rkey,
    begins: Time,
    posted: u64,
    completed: u64,
    counted: u64,
}

/// A packet in flight: arrival, tie-breaker, flow, receiving side, datagram.
type Flight = Reverse<(Time, u64, usize, usize, Vec<u8>)>;

/// Flows that share a link.
pub(crate) struct Simulation {
    load: Load,
    now: Time,
    flows: Vec<Flow>,
    directions: [Direction; 2],
    flights: BinaryHeap<Flight>,
    serial: u64,
    out: Vec<u8>,
    random: Random,
}

impl Simulation {
    /// Creates `flows` flows over `link`. The same seed gives the same run.
    pub(crate) fn new(link: Link, load: Load, flows: usize, seed: u64) -> Self {
        let begins = |index| Time::EPOCH + load.stagger * index as u32;
        Self {
            load,
            now: Time::EPOCH,
            flows: (0..flows)
                .map(|index| Flow::new(&load, begins(index)))
                .collect(),
            directions: [0, 1].map(|way| Direction::new(link, seed * 2 + way)),
            flights: BinaryHeap::new(),
            serial: 0,
            out: vec![0; MAX_DATAGRAM],
            random: Random(seed),
        }
    }

    /// Runs for the duration of the load.
    pub(crate) fn run(mut self) -> Vec<Moved> {
        let counts_from = Time::EPOCH + self.load.warm_up;
        let end = counts_from + self.load.duration;
        let mut warm = false;
        for index in 0..self.flows.len() {
            match self.load.host {
                None => self.touch(index, 0),
                Some(_) => self.flows[index].sides[0].has_more = true,
            }
        }
        while self.now < end && self.step() {
            if !warm && self.now >= counts_from {
                warm = true;
                for flow in &mut self.flows {
                    flow.counted = flow.completed;
                }
            }
        }
        let moved = |flow: &Flow| {
            let bytes = (flow.completed - flow.counted) * u64::from(self.load.message);
            Moved {
                goodput: bytes as f64 / self.load.duration.as_secs_f64(),
                statistics: flow.sides[0].qp.statistics(),
            }
        };
        self.flows.iter().map(moved).collect()
    }

    /// Posts the due messages of a flow, and sends the packets that one side has ready.
    fn touch(&mut self, index: usize, side: usize) {
        let flow = &mut self.flows[index];
        if side == 0 && flow.begins <= self.now {
            flow.post(&self.load);
        }
        let from = &mut flow.sides[side];
        while let Some(len) = from
            .qp
            .poll_transmit(self.now, &mut from.memory, &mut self.out)
        {
            // Requests are sent by side 0, whose packets use direction 0.
            if let Some(arrives) = self.directions[side].carry(self.now, len) {
                self.serial += 1;
                let bytes = self.out[..len].to_vec();
                let flight = (arrives, self.serial, index, 1 - side, bytes);
                self.flights.push(Reverse(flight));
            }
        }
    }

    /// Advances to the next arrival, deadline or start of a flow. Returns false if there is none.
    fn step(&mut self) -> bool {
        if let Some(host) = self.load.host {
            return self.step_hosts(&host);
        }
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let deadlines = self.flows.iter().flat_map(|flow| {
            let begins = (flow.begins > self.now).then_some(flow.begins);
            let sides = flow.sides.iter().map(|side| side.qp.next_deadline());
            sides.chain([begins]).flatten()
        });
        let Some(at) = deadlines.chain(arrival).min() else {
            return false;
        };
        self.now = self.now.max(at);
        if arrival.is_some_and(|arrival| arrival <= self.now)
            && let Some(Reverse((_, _, index, side, bytes))) = self.flights.pop()
        {
            let packet = Packet::new(&bytes).expect("a queue pair made it");
            let to = &mut self.flows[index].sides[side];
            to.qp.receive(self.now, &packet, &mut to.memory);
            self.touch(index, side);
            return true;
        }
        for index in 0..self.flows.len() {
            for side in 0..2 {
                let qp = &mut self.flows[index].sides[side].qp;
                if qp.next_deadline().is_some_and(|at| at <= self.now) {
                    qp.handle_deadline(self.now);
                    self.touch(index, side);
                }
            }
            if self.flows[index].begins == self.now {
                self.touch(index, 0);
            }
        }
        true
    }

    /// Advances to the next arrival at a receive buffer, or the next poll of a host.
    fn step_hosts(&mut self, host: &Host) -> bool {
        let arrival = self.flights.peek().map(|Reverse((at, ..))| *at);
        let polls = (0..self.flows.len()).flat_map(|index| [(index, 0), (index, 1)]);
        let poll = polls
            .filter_map(|(index, side)| {
                let at = self.flows[index].sides[side].poll_time(host)?;
                Some((at.max(self.flows[index].begins), index, side))
            })
            .min();
        if let Some(at) = arrival
            && poll.is_none_or(|(poll, ..)| at <= poll)
            && let Some(Reverse((_, _, index, side, bytes))) = self.flights.pop()
        {
            self.now = self.now.max(at);
            let to = &mut self.flows[index].sides[side];
            if to.buffer.is_empty() && !to.has_more && to.busy_until <= self.now {
                let wakeup = self.random.below(host.wakeup.as_nanos() as u64);
                to.busy_until = self.now + Duration::from_nanos(wakeup);
            }
            to.buffer.push_back(bytes);
            return true;
        }
        let Some((at, index, side)) = poll else {
            return false;
        };
        self.now = self.now.max(at);
        self.poll_host(host, index, side);
        true
    }

    /// Receives the packets in one side's buffer, and sends the packets that it has ready.
    fn poll_host(&mut self, host: &Host, index: usize, side: usize) {
        let flow = &mut self.flows[index];
        let begins = flow.begins;
        let to = &mut flow.sides[side];
        let mut time = self.now;
        for _ in 0..Host::BATCH {
            let Some(bytes) = to.buffer.pop_front() else {
                break;
            };
            let packet = Packet::new(&bytes).expect("a queue pair made it");
            to.qp.receive(time, &packet, &mut to.memory);
            time = time + host.packet;
        }
        if to.qp.next_deadline().is_some_and(|at| at <= time) {
            to.qp.handle_deadline(time);
        }
        if side == 0 && begins <= self.now {
            flow.post(&self.load);
        }
        let now = time;
        let from = &mut self.flows[index].sides[side];
        from.has_more = true;
        for _ in 0..Host::BATCH {
            let Some(len) = from.qp.poll_transmit(now, &mut from.memory, &mut self.out) else {
                from.has_more = false;
                break;
            };
            time = time + host.packet;
            if let Some(arrives) = self.directions[side].carry(time, len) {
                self.serial += 1;
                let bytes = self.out[..len].to_vec();
                let flight = (arrives, self.serial, index, 1 - side, bytes);
                self.flights.push(Reverse(flight));
            }
        }
        if self.random.happens(host.preempted) {
            let slice = self.random.below(host.time_slice.as_nanos() as u64);
            time = time + Duration::from_nanos(slice);
        }
        from.busy_until = time;
    }
}

impl Flow {
    fn new(load: &Load, begins: Time) -> Self {
        let size = load.message as usize;
        let mut near = HeapMemory::new();
        let mut far = HeapMemory::new();
        let (source, _) = near.register(ADDRESS, vec![7; size], Access::all());
        let (_, target) = far.register(ADDRESS, vec![9; size], Access::all());
        let sides = [(near, 0), (far, 1)].map(|(memory, side)| Side {
            qp: connected(load, side),
            memory,
            buffer: VecDeque::new(),
            busy_until: Time::EPOCH,
            has_more: false,
        });
        Self {
            sides,
            source,
            target,
            begins,
            posted: 0,
            completed: 0,
            counted: 0,
        }
    }

    /// Takes completions, and posts as many new messages.
    fn post(&mut self, load: &Load) {
        while let Some(done) = self.sides[0].qp.poll_completion() {
            assert_eq!(done.status, WcStatus::Success, "message {}", self.completed);
            self.completed += 1;
        }
        let remote = Remote {
            rkey: self.target,
            addr: ADDRESS,
        };
        while self.posted < self.completed + load.depth as u64 {
            let operation = match load.operation {
                Direct::Write => Operation::Write {
                    remote,
                    immediate: None,
                },
                Direct::Read => Operation::Read { remote },
            };
            let segments = [Segment {
                lkey: self.source,
                addr: ADDRESS,
                len: load.message,
            }];
            let request = SendRequest {
                id: WrId(self.posted),
                operation,
                data: Data::Segments(&segments),
                flags: SendFlags::SIGNALLED,
            };
            self.sides[0].qp.post_send(&request).expect("room");
            self.posted += 1;
        }
    }
}

/// Returns a connected queue pair with the timeout and limit of `gdr loopback`.
fn connected(load: &Load, side: usize) -> QueuePair {
    let caps = Capabilities {
        max_send_wr: load.depth as u32,
        max_recv_wr: 1,
        max_inline: 0,
    };
    let mut qp = QueuePair::with_config(QPNS[side], caps, load.config);
    qp.set_loss_recovery(load.recovery).expect("in RESET");
    qp.to_init(Access::all()).expect("from RESET");
    qp.to_rtr(&RtrAttributes {
        dest_qpn: QPNS[1 - side],
        rq_psn: Psn::new(0xff_ff00),
        path_mtu: MTU,
        max_dest_rd_atomic: 16,
        min_rnr_timer: RnrTimer::new(1),
    })
    .expect("from INIT");
    qp.to_rts(&RtsAttributes {
        sq_psn: Psn::new(0xff_ff00),
        timeout: AckTimeout::new(16),
        retry_limit: RetryLimit::NoProgressFor(Duration::from_secs(10)),
        rnr_retry: RnrRetry::FOREVER,
        max_rd_atomic: 16,
    })
    .expect("from RTR");
    qp
}
