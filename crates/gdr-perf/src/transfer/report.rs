//! The result of a measurement.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use super::plan::{Plan, Role};
use super::threshold::Thresholds;
use crate::error::Result;
use crate::loopback::End;
use crate::memory_facts::MemoryFacts;
use crate::report::{ProcessFacts, Schema};
use crate::stats::{Bucket, Samples, Summary};
use crate::wire::Wire;

/// Progress of a measurement.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum TransferEvent<'a> {
    /// The listening end waits for a peer at this address.
    Listening(std::net::SocketAddr),
    /// Both ends are connected; there are no rows yet.
    Ready(&'a TransferReport),
    /// A size was measured and judged.
    Measured(&'a TransferRow),
    /// A wait goes on. The observer may stop the run.
    Waiting,
}

/// An observer, which breaks to stop the run.
pub(super) type Observe<'a> = &'a mut dyn FnMut(TransferEvent<'_>) -> ControlFlow<()>;

/// Result of a measurement; each end has one.
#[derive(Clone, Debug, Serialize)]
pub struct TransferReport {
    /// `gdr.perf`.
    #[serde(flatten)]
    pub schema: Schema,
    /// The end that wrote this report.
    pub role: Role,
    /// Whether a GPU was simulated. If so, the figures do not describe hardware.
    pub simulated: bool,
    /// What was measured.
    pub plan: Plan,
    /// The path MTU in bytes.
    pub path_mtu: usize,
    /// The wire that carried what this end sent; `None` before the end of the measurement, and for a kernel device.
    pub wire: Option<Wire>,
    /// The end that connected.
    pub client: TransferEnd,
    /// The end that listened.
    pub server: TransferEnd,
    /// Thresholds for every size.
    pub thresholds: Thresholds,
    /// In the order of the plan's sizes.
    pub rows: Vec<TransferRow>,
    /// Whether every row meets the thresholds.
    pub passed: bool,
}

impl TransferReport {
    /// Stores the row of a size, replacing the row of an earlier round.
    pub(super) fn keep(&mut self, row: usize, measured: TransferRow) {
        self.passed &= measured.failures.is_empty();
        match self.rows.get_mut(row) {
            Some(earlier) => *earlier = measured,
            None => self.rows.push(measured),
        }
    }
}

/// One end in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferEnd {
    /// Its host and version.
    #[serde(flatten)]
    pub process: ProcessFacts,
    /// Its device.
    pub device: End,
    /// Its memory.
    pub memory: MemoryFacts,
}

/// One size. Figures are the sums of both directions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferRow {
    /// Bytes of a message.
    pub size: u64,
    /// Warm-up messages, counted like the measured ones.
    pub warm_up: u64,
    /// Measured messages; for round trips, the messages in one direction.
    pub messages: u64,
    /// From the first request to the last completion.
    pub seconds: f64,
    /// Payload in 10^9 bytes per second.
    pub gb_per_s: f64,
    /// Payload in 10^9 bits per second.
    pub gbit_per_s: f64,
    /// Millions of messages per second.
    pub mpps: f64,
    /// Time from request to completion, or half of a round trip, at the connecting end.
    pub latency: LatencyDistribution,
    /// CPU seconds of the processes in this time.
    pub cpu: CpuSeconds,
    /// Bytes compared at both ends; `None` if nothing was compared.
    pub verified_bytes: Option<u64>,
    /// Thresholds that were not met.
    pub failures: Vec<String>,
}

/// The CPU time of both ends, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSeconds {
    /// At the connecting end.
    pub client: f64,
    /// At the listening end.
    pub server: f64,
}

/// A set of latencies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyDistribution {
    /// Its figures.
    #[serde(flatten)]
    pub summary: Summary,
    /// 99.99 % of the latencies are at most this long.
    pub p9999_ns: f64,
    /// All latencies in buckets of 0.1 % width, without empty buckets. Only at the connecting end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub histogram: Vec<Bucket>,
}

impl LatencyDistribution {
    /// Computes the figures of samples.
    pub(super) fn of(samples: &Samples) -> Result<Self> {
        Ok(Self {
            summary: samples.summary()?,
            p9999_ns: samples.quantile_ns(0.9999),
            histogram: samples.buckets(),
        })
    }
}
