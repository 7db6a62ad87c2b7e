//! The connecting end's choice of what to measure.

use std::time::Duration;

use gdr_cuda::pattern_word;
use gdr_rdma::{Device, Mtu, Provider};
use serde::{Deserialize, Serialize};

use super::threshold::Thresholds;
use super::verb::{Metric, Operation, Verb};
use crate::error::MOST_SECONDS;

/// Maximum length of a message, and roughly the maximum memory that each end registers twice.
pub const MOST_BYTES: u64 = 1 << 30;
/// Bytes of all slots of an end, unless a single message is longer.
const SLOT_BYTES: u64 = 64 << 20;
/// Maximum number of messages that a queue pair sends before they are compared, unless more are in flight.
const MOST_OF_ROUND: u64 = 1024;
/// Slots are aligned to this, a cache line.
const ALIGNMENT: u64 = 64;
/// Maximum number of queue pairs, and of sizes.
const MOST_ENTRIES: usize = 64;
/// Maximum number of requests in flight per queue pair.
const MOST_DEPTH: u32 = 8192;
/// Minimum duration of a warm-up before latencies. The first messages of a process are slower than all others, until
/// its threads have found their CPUs and the CPUs their clock rate.
const SETTLING: Duration = Duration::from_millis(100);
/// Maximum time for one size.
const A_DAY: f64 = MOST_SECONDS as f64;

/// How much to measure of each size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Amount {
    /// As many messages of each queue pair, or round trips.
    Iterations(u64),
    /// For as many seconds.
    Seconds(f64),
}

impl Amount {
    /// Returns the most messages, and the most time.
    pub(super) fn limits(self) -> (u64, Option<Duration>) {
        match self {
            Self::Iterations(iterations) => (iterations, None),
            Self::Seconds(seconds) => (u64::MAX, Some(Duration::from_secs_f64(seconds))),
        }
    }
}

/// Which ends send when bandwidth is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The connecting end.
    #[default]
    OneWay,
    /// Both ends at the same time. Figures are the sums of both.
    BothWays,
}

/// The atomic operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AtomicKind {
    /// Fetch and add.
    #[default]
    FetchAdd,
    /// Compare and swap.
    CompareSwap,
}

/// Whether to compare the bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verification {
    /// They are not.
    #[default]
    Off,
    /// After each size, the last message in each slot is compared where it arrived: in GPU memory by a kernel.
    Last,
    /// Every message is compared where it arrived, including the warm-up. Messages go in rounds, which are compared
    /// before their slots are used again.
    On,
}

/// How messages use several queue pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Striping {
    /// Each queue pair has its own messages.
    #[default]
    Off,
    /// One message at a time, in parts over all queue pairs.
    On,
}

/// How often to measure the sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Repetition {
    /// Once.
    #[default]
    Once,
    /// Repeat until an end stops. A report then contains the last round.
    Endless,
}

/// What to measure. The connecting end chooses it; the listening end may refuse.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation and the figure.
    pub verb: Verb,
    /// Message lengths, in the order of measurement.
    pub sizes: Vec<u64>,
    /// How much to measure of each size.
    pub amount: Amount,
    /// Messages of each queue pair, or round trips, before the measured ones. Before latencies, there are more if these
    /// take less than 0.1 s. With 0 there is no warm-up.
    pub warm_up: u64,
    /// The number of queue pairs.
    pub queue_pairs: u32,
    /// Whether a message is striped over them.
    #[serde(default)]
    pub striping: Striping,
    /// Requests in flight per queue pair, for bandwidth.
    pub tx_depth: u32,
    /// Receives to post for each queue pair.
    pub rx_depth: u32,
    /// One request in this many has a completion, for bandwidth.
    pub signal_every: u32,
    /// Up to this many requests are posted in one call, for bandwidth. They wait until the queue has room for as many,
    /// or for a quarter of [`tx_depth`](Self::tx_depth) if that is less.
    pub post_list: u32,
    /// Messages up to this length are sent inline from host memory.
    pub inline: u32,
    /// Which ends send, for bandwidth.
    pub direction: Direction,
    /// The atomic operation.
    pub atomic: AtomicKind,
    /// Path MTU in bytes; if `None`, the largest that the path carries.
    pub mtu: Option<u32>,
    /// Whether to compare the bytes.
    pub verify: Verification,
    /// The seed of the patterns.
    pub seed: u32,
    /// Time limit of one request, extended by a second for each 64 MiB.
    pub timeout_ms: u64,
    /// How often to measure the sizes.
    #[serde(default)]
    pub repetition: Repetition,
    /// ACK timeout exponent: 4.096 us times two to this power, with 7 retries. If `None`, derived from `timeout_ms`.
    #[serde(default)]
    pub ack_timeout: Option<u8>,
    /// Service level, for kernel devices.
    #[serde(default)]
    pub service_level: u8,
    /// Traffic class, for kernel devices.
    #[serde(default)]
    pub traffic_class: u8,
}

/// The connecting end's request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// What is measured.
    pub plan: Plan,
    /// Thresholds for every size.
    #[serde(default)]
    pub thresholds: Thresholds,
}

/// A plan that cannot be measured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields' names say what they hold")]
pub enum PlanError {
    /// No size at all, or too many.
    #[error("{0} sizes cannot be measured in one run: use 1 to {MOST_ENTRIES}")]
    Sizes(usize),
    /// A message of 0 bytes.
    #[error("a message of 0 bytes carries nothing to measure: use at least 1 byte")]
    EmptyMessage,
    /// A message longer than the registered memory.
    #[error(
        "a message of {size} bytes is larger than the registered memory: use at most {MOST_BYTES} (1G)"
    )]
    LongMessage { size: u64 },
    /// An atomic operation with a length other than 8 bytes.
    #[error("an atomic operation has 8 bytes, not {0}: leave out the size")]
    AtomicSize(u64),
    /// Nothing to measure.
    #[error("0 iterations measure nothing: use at least 1")]
    NoIterations,
    /// An invalid duration.
    #[error("a size cannot be measured for {0} seconds: use more than 0, and at most a day")]
    Seconds(String),
    /// Too few or too many queue pairs.
    #[error("{0} queue pairs are not possible: use 1 to {MOST_ENTRIES}")]
    QueuePairs(u32),
    /// Several queue pairs for a measurement with one request in flight.
    #[error("{verb} has one request in flight: use 1 queue pair instead of {queue_pairs}")]
    LatencyQueuePairs { verb: Verb, queue_pairs: u32 },
    /// Both directions for a measurement with one request in flight.
    #[error(
        "{0} has one request in flight, so it cannot run in both directions: measure a bandwidth instead"
    )]
    LatencyDirection(Verb),
    /// A message size that cannot be divided over the queue pairs.
    #[error("messages of {0} cannot be striped over queue pairs: use write-bw or read-bw")]
    StripedVerb(Verb),
    /// Striping over a single queue pair.
    #[error("a message cannot be striped over 1 queue pair: use at least 2")]
    StripedOverOne,
    /// Parts without a completion.
    #[error("every part of a striped message completes, not one in {0}: use 1")]
    StripedSignals(u32),
    /// Striped parts that are sent inline.
    #[error("striped messages cannot be sent inline up to {0} bytes: use 0")]
    StripedInline(u32),
    /// An unsupported queue depth.
    #[error("{0} requests in flight are not possible: use 1 to {MOST_DEPTH}")]
    Depth(u32),
    /// Fewer completions than the queue needs.
    #[error(
        "one completion in {every} requests needs at least {every} requests in flight: use 1 to {depth}, or \
         a larger depth"
    )]
    SignalEvery { every: u32, depth: u32 },
    /// No requests per call.
    #[error("0 requests per call post nothing: use at least 1")]
    PostList,
    /// An invalid path MTU.
    #[error("{0} bytes is not a valid path MTU: use 256, 512, 1024, 2048 or 4096")]
    Mtu(u32),
    /// A path MTU that the path cannot carry.
    #[error(
        "the path carries packets of {path} bytes, not {asked}: leave out the path MTU, or \
         raise the interfaces' MTU"
    )]
    LongMtu { asked: usize, path: usize },
    /// A minimum rate for a latency measurement.
    #[error("{0} measures a latency, not a rate: limit the latency instead")]
    RateOfLatency(Verb),
    /// An invalid service level.
    #[error("service level {0} does not exist: use 0 to 15")]
    ServiceLevel(u8),
    /// An invalid ACK timeout exponent.
    #[error(
        "an acknowledgement timeout of 4.096 us * 2^{0} is not possible: use an exponent of 0 to 31"
    )]
    AckTimeout(u8),
    /// A service level or traffic class for a soft device.
    #[error(
        "service level {service_level} and traffic class {traffic_class} apply to kernel devices, but \
         {device} is a soft device: leave them out, or use kernel devices at both ends"
    )]
    SoftClass {
        device: String,
        service_level: u8,
        traffic_class: u8,
    },
    /// No time for a request.
    #[error("a request cannot complete in 0 seconds: use at least 1")]
    NoTimeout,
    /// A deadline above the maximum.
    #[error("a request may not take {0} seconds: use at most {MOST_SECONDS} (a day)")]
    LongTimeout(u64),
}

impl Plan {
    /// Returns the usual plan of a verb: one size, as perftest has it.
    pub fn new(verb: Verb) -> Self {
        let (size, iterations) = match (verb.operation(), verb.metric()) {
            (Operation::Atomic, _) => (8, 1000),
            (_, Metric::Latency) => (2, 1000),
            (_, Metric::Bandwidth) => (65536, 5000),
        };
        Self {
            verb,
            sizes: vec![size],
            amount: Amount::Iterations(iterations),
            warm_up: 100,
            queue_pairs: 1,
            striping: Striping::Off,
            tx_depth: match verb.operation() {
                Operation::Read | Operation::Atomic => 16,
                Operation::Write | Operation::Send => 128,
            },
            rx_depth: 512,
            signal_every: 1,
            post_list: 64,
            inline: 0,
            direction: Direction::OneWay,
            atomic: AtomicKind::FetchAdd,
            mtu: None,
            verify: Verification::Off,
            seed: 1,
            timeout_ms: 10_000,
            repetition: Repetition::Once,
            ack_timeout: None,
            service_level: 0,
            traffic_class: 0,
        }
    }

    /// Returns every power of two from 2 bytes to 8 MiB, like perftest's `-a`; 8 bytes for atomic operations.
    pub fn all_sizes(verb: Verb) -> Vec<u64> {
        match verb.operation() {
            Operation::Atomic => vec![8],
            _ => crate::sizes::powers_of_two(2, 8 << 20),
        }
    }

    /// Refuses a plan that cannot be measured.
    ///
    /// # Errors
    /// The first reason.
    pub fn check(&self) -> Result<(), PlanError> {
        if self.sizes.is_empty() || self.sizes.len() > MOST_ENTRIES {
            return Err(PlanError::Sizes(self.sizes.len()));
        }
        for &size in &self.sizes {
            match size {
                0 => return Err(PlanError::EmptyMessage),
                size if size > MOST_BYTES => return Err(PlanError::LongMessage { size }),
                size if size != 8 && self.verb.operation() == Operation::Atomic => {
                    return Err(PlanError::AtomicSize(size));
                }
                _ => {}
            }
        }
        match self.amount {
            Amount::Iterations(0) => return Err(PlanError::NoIterations),
            Amount::Seconds(seconds) if !(seconds > 0.0 && seconds <= A_DAY) => {
                return Err(PlanError::Seconds(seconds.to_string()));
            }
            _ => {}
        }
        let queue_pairs = self.queue_pairs;
        if queue_pairs == 0 || queue_pairs as usize > MOST_ENTRIES {
            return Err(PlanError::QueuePairs(queue_pairs));
        }
        if self.verb.metric() == Metric::Latency {
            if queue_pairs > 1 {
                let verb = self.verb;
                return Err(PlanError::LatencyQueuePairs { verb, queue_pairs });
            }
            if self.direction == Direction::BothWays {
                return Err(PlanError::LatencyDirection(self.verb));
            }
        }
        if self.striping == Striping::On {
            self.check_striping()?;
        }
        for depth in [self.tx_depth, self.rx_depth] {
            if depth == 0 || depth > MOST_DEPTH {
                return Err(PlanError::Depth(depth));
            }
        }
        let (every, depth) = (self.signal_every, self.tx_depth);
        if every == 0 || every > depth {
            return Err(PlanError::SignalEvery { every, depth });
        }
        if self.post_list == 0 {
            return Err(PlanError::PostList);
        }
        self.path_mtu()?;
        if self.service_level > 15 {
            return Err(PlanError::ServiceLevel(self.service_level));
        }
        if let Some(exponent) = self.ack_timeout.filter(|exponent| *exponent > 31) {
            return Err(PlanError::AckTimeout(exponent));
        }
        if self.timeout_ms == 0 {
            return Err(PlanError::NoTimeout);
        }
        let seconds = self.timeout_ms / 1000;
        if seconds > MOST_SECONDS {
            return Err(PlanError::LongTimeout(seconds));
        }
        Ok(())
    }

    /// Refuses parts of the plan that `device` does not support.
    pub(super) fn check_device(&self, device: &Device) -> Result<(), PlanError> {
        let (service_level, traffic_class) = (self.service_level, self.traffic_class);
        if device.provider() == Provider::Soft && (service_level, traffic_class) != (0, 0) {
            return Err(PlanError::SoftClass {
                device: device.name().to_owned(),
                service_level,
                traffic_class,
            });
        }
        Ok(())
    }

    fn check_striping(&self) -> Result<(), PlanError> {
        if !matches!(self.verb, Verb::WriteBw | Verb::ReadBw) {
            return Err(PlanError::StripedVerb(self.verb));
        }
        if self.queue_pairs == 1 {
            return Err(PlanError::StripedOverOne);
        }
        if self.signal_every > 1 {
            return Err(PlanError::StripedSignals(self.signal_every));
        }
        match self.inline {
            0 => Ok(()),
            inline => Err(PlanError::StripedInline(inline)),
        }
    }

    /// Returns the number of each size to measure, in their order.
    pub(super) fn rows(&self) -> Box<dyn Iterator<Item = usize>> {
        let once = 0..self.sizes.len();
        match self.repetition {
            Repetition::Once => Box::new(once),
            Repetition::Endless => Box::new(once.cycle()),
        }
    }

    /// Returns how many sequences of messages there are: one of each queue pair, or one for all.
    pub(super) const fn sequences(&self) -> u32 {
        match self.striping {
            Striping::Off => self.queue_pairs,
            Striping::On => 1,
        }
    }

    /// Returns the requested path MTU.
    pub(super) fn path_mtu(&self) -> Result<Option<Mtu>, PlanError> {
        self.mtu
            .map(|bytes| {
                let exact = |mtu: &Mtu| mtu.bytes() == bytes as usize;
                Mtu::at_most(bytes as usize)
                    .filter(exact)
                    .ok_or(PlanError::Mtu(bytes))
            })
            .transpose()
    }

    /// Returns how long one request, or one step of the other end, may take.
    pub(super) fn limit(&self, size: u64) -> Duration {
        Duration::from_millis(self.timeout_ms) + Duration::from_secs(size / (64 << 20))
    }

    /// Returns how long the measurement of one size may take. A number of iterations is converted as if the path
    /// carried 1 MB/s and a message took 10 ms.
    pub(super) fn phase_limit(&self, size: u64) -> Duration {
        let measured = match self.amount {
            Amount::Seconds(seconds) => Duration::from_secs_f64(seconds.clamp(0.0, A_DAY)),
            Amount::Iterations(_) => Duration::ZERO,
        };
        let iterations = match self.amount {
            Amount::Iterations(iterations) => iterations,
            Amount::Seconds(_) => 0,
        };
        let messages = iterations
            .saturating_add(self.warm_up)
            .saturating_mul(self.sequences().into());
        let ms = messages.saturating_mul(10 + size / 1000);
        let most = Duration::from_secs(MOST_SECONDS);
        (self.limit(size) * 4 + self.settling() + measured)
            .saturating_add(Duration::from_millis(ms).min(most))
    }

    /// Returns how long a warm-up lasts at least.
    pub(super) fn settling(&self) -> Duration {
        match self.verb.metric() {
            Metric::Latency if self.warm_up > 0 => SETTLING,
            _ => Duration::ZERO,
        }
    }

    /// Returns whether messages go in rounds. Results of atomic operations, and messages that go back and forth, are
    /// instead compared one by one.
    pub(super) fn has_rounds(&self) -> bool {
        self.verify == Verification::On
            && self.verb.operation() != Operation::Atomic
            && !self.verb.is_ping_pong()
    }

    /// Returns the slots of one size.
    pub(super) fn layout(&self, size: u64) -> Layout {
        let stride = size.next_multiple_of(ALIGNMENT);
        let sequences = u64::from(self.sequences());
        let depth = match self.verb.operation() {
            // Each result of an atomic operation is read before its slot is used again.
            Operation::Atomic => {
                return Layout {
                    stride,
                    slots: self.tx_depth.into(),
                    sequences,
                };
            }
            _ => u64::from(self.tx_depth),
        };
        let fitting = SLOT_BYTES / (stride * sequences);
        let slots = match self.verb.metric() {
            Metric::Latency if self.has_rounds() => fitting.clamp(1, MOST_OF_ROUND),
            Metric::Latency => 1,
            Metric::Bandwidth if self.has_rounds() => fitting.clamp(1, depth.max(MOST_OF_ROUND)),
            Metric::Bandwidth => fitting.clamp(1, depth),
        };
        Layout {
            stride,
            slots,
            sequences,
        }
    }

    /// Returns the bytes of memory that each end registers for each of its two buffers.
    pub(super) fn registered_bytes(&self) -> u64 {
        let sizes = self.sizes.iter();
        sizes
            .map(|size| self.layout(*size).bytes())
            .max()
            .unwrap_or_default()
    }

    /// Returns whether bytes of this end arrive at the other: bytes that it sends, or offers for READ.
    pub(super) fn has_data_from(&self, role: Role) -> bool {
        let source = match self.verb.operation() {
            Operation::Read => Role::Server,
            Operation::Write | Operation::Send | Operation::Atomic => Role::Client,
        };
        self.direction == Direction::BothWays || self.verb.is_ping_pong() || role == source
    }

    /// Returns the seed of the pattern in a slot.
    pub(super) fn pattern(&self, of: Pattern) -> u32 {
        // Under one seed, words at different indices differ. Queue pairs and slots take 6 and 13 bits.
        let end = match of.sender {
            Role::Client => 0,
            Role::Server => 1,
        };
        let index = ((of.row as u64 * 2 + end) << 6 | of.queue_pair as u64) << 13 | of.slot;
        pattern_word(self.seed, index)
    }
}

/// Returns the seed of a different pattern. Every byte of its first word differs, so that even a message of 4 bytes or
/// fewer cannot be mistaken for the other.
pub(super) fn other_seed(seed: u32) -> u32 {
    let first = pattern_word(seed, 0).to_le_bytes();
    let is_other = |candidate: &u32| {
        let other = pattern_word(*candidate, 0).to_le_bytes();
        first.iter().zip(other).all(|(one, other)| *one != other)
    };
    let mut candidates = (1..).map(|step| seed.wrapping_add(step));
    candidates.find(is_other).unwrap_or(!seed)
}

/// Which end of a run a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It connects, and chooses the plan.
    Client,
    /// It listens.
    Server,
}

impl Role {
    /// Returns the other end.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Client => Self::Server,
            Self::Server => Self::Client,
        }
    }
}

/// Identifies a pattern: the bytes that `sender` sends, or offers for READ, from a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pattern {
    pub(super) row: usize,
    pub(super) sender: Role,
    pub(super) queue_pair: usize,
    pub(super) slot: u64,
}

/// Places of messages in a buffer. Each sequence of messages has its own slots, and message number `n` uses slot `n`
/// modulo the number of slots. A sequence has the number of its queue pair; with striping there is a single sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    stride: u64,
    pub(super) slots: u64,
    sequences: u64,
}

impl Layout {
    /// Returns the offset of a slot.
    pub(super) fn offset(&self, queue_pair: usize, slot: u64) -> u64 {
        (queue_pair as u64 * self.slots + slot) * self.stride
    }

    pub(super) fn bytes(&self) -> u64 {
        self.stride * self.slots * self.sequences
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn another_pattern_has_no_byte_of_the_first_word() {
        for seed in (0..1000).chain([u32::MAX - 1, u32::MAX]) {
            let (one, other) = (pattern_word(seed, 0), pattern_word(other_seed(seed), 0));
            let differs = |(one, other): (u8, u8)| one != other;
            let mut bytes = one.to_le_bytes().into_iter().zip(other.to_le_bytes());
            assert!(bytes.all(differs), "{seed}");
        }
    }

    fn stripe(plan: &mut Plan) {
        plan.queue_pairs = 4;
        plan.striping = Striping::On;
    }

    #[test]
    fn plans_that_cannot_be_measured_are_refused_by_name() {
        let with = |verb, change: fn(&mut Plan)| {
            let mut plan = Plan::new(verb);
            change(&mut plan);
            plan.check()
        };
        for verb in Verb::ALL {
            with(verb, |_| ()).unwrap();
            with(verb, |plan| plan.sizes = Plan::all_sizes(plan.verb)).unwrap();
        }
        for verb in [Verb::WriteBw, Verb::ReadBw] {
            with(verb, stripe).unwrap();
        }
        type Case = (Verb, fn(&mut Plan), PlanError);
        let cases: [Case; 21] = [
            (Verb::WriteBw, |p| p.sizes = vec![], PlanError::Sizes(0)),
            (
                Verb::WriteBw,
                |p| p.sizes = vec![0],
                PlanError::EmptyMessage,
            ),
            (
                Verb::WriteBw,
                |p| p.sizes = vec![MOST_BYTES + 1],
                PlanError::LongMessage {
                    size: MOST_BYTES + 1,
                },
            ),
            (
                Verb::AtomicBw,
                |p| p.sizes = vec![16],
                PlanError::AtomicSize(16),
            ),
            (
                Verb::ReadBw,
                |p| p.amount = Amount::Iterations(0),
                PlanError::NoIterations,
            ),
            (
                Verb::ReadBw,
                |p| p.amount = Amount::Seconds(f64::NAN),
                PlanError::Seconds("NaN".into()),
            ),
            (
                Verb::ReadBw,
                |p| p.queue_pairs = 65,
                PlanError::QueuePairs(65),
            ),
            (
                Verb::SendLat,
                |p| p.queue_pairs = 2,
                PlanError::LatencyQueuePairs {
                    verb: Verb::SendLat,
                    queue_pairs: 2,
                },
            ),
            (
                Verb::SendLat,
                |p| p.direction = Direction::BothWays,
                PlanError::LatencyDirection(Verb::SendLat),
            ),
            (Verb::SendBw, stripe, PlanError::StripedVerb(Verb::SendBw)),
            (
                Verb::AtomicBw,
                stripe,
                PlanError::StripedVerb(Verb::AtomicBw),
            ),
            (
                Verb::ReadLat,
                |p| p.striping = Striping::On,
                PlanError::StripedVerb(Verb::ReadLat),
            ),
            (
                Verb::WriteBw,
                |p| p.striping = Striping::On,
                PlanError::StripedOverOne,
            ),
            (
                Verb::WriteBw,
                |p| {
                    stripe(p);
                    p.signal_every = 2;
                },
                PlanError::StripedSignals(2),
            ),
            (
                Verb::WriteBw,
                |p| {
                    stripe(p);
                    p.inline = 64;
                },
                PlanError::StripedInline(64),
            ),
            (Verb::SendBw, |p| p.rx_depth = 0, PlanError::Depth(0)),
            (
                Verb::SendBw,
                |p| p.tx_depth = 10_000,
                PlanError::Depth(10_000),
            ),
            (
                Verb::ReadBw,
                |p| p.signal_every = 17,
                PlanError::SignalEvery {
                    every: 17,
                    depth: 16,
                },
            ),
            (Verb::ReadBw, |p| p.post_list = 0, PlanError::PostList),
            (Verb::ReadBw, |p| p.mtu = Some(1500), PlanError::Mtu(1500)),
            (Verb::ReadBw, |p| p.timeout_ms = 0, PlanError::NoTimeout),
        ];
        for (verb, change, error) in cases {
            assert_eq!(with(verb, change), Err(error));
        }
    }

    #[test]
    fn slots_do_not_overlap_and_patterns_do_not_repeat() {
        let plan = Plan {
            queue_pairs: 3,
            sizes: vec![1, 100, 4096],
            ..Plan::new(Verb::WriteBw)
        };
        let mut seeds = HashSet::new();
        for (row, size) in plan.sizes.iter().enumerate() {
            let layout = plan.layout(*size);
            let mut end = 0;
            for queue_pair in 0..3 {
                for slot in 0..layout.slots {
                    let offset = layout.offset(queue_pair, slot);
                    assert!(offset >= end && offset.is_multiple_of(ALIGNMENT));
                    end = offset + size;
                    for sender in [Role::Client, Role::Server] {
                        let pattern = Pattern {
                            row,
                            sender,
                            queue_pair,
                            slot,
                        };
                        assert!(seeds.insert(plan.pattern(pattern)));
                    }
                }
            }
            assert!(end <= layout.bytes() && layout.bytes() <= plan.registered_bytes());
        }
    }

    #[test]
    fn long_messages_share_a_slot_and_short_ones_have_as_many_as_are_in_flight() {
        let plan = Plan::new(Verb::WriteBw);
        assert_eq!(plan.layout(MOST_BYTES).slots, 1);
        assert_eq!(plan.layout(2).slots, 128);
        assert_eq!(Plan::new(Verb::WriteLat).layout(2).slots, 1);
    }
}
