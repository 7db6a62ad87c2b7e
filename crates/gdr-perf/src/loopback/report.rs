//! What a run found.

use std::net::SocketAddr;

use gdr_rdma::{Device, Mtu};
use serde::{Deserialize, Serialize};

use super::judge::Cause;
use super::settings::Seeds;
use crate::report::{Schema, Subject};

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.loopback`.
    #[serde(flatten)]
    pub schema: Schema,
    /// Whether the bytes arrived.
    pub verdict: Verdict,
    /// Why they did not.
    pub cause: Option<Cause>,
    /// The GPU memory they went to, `simulated` among it.
    #[serde(flatten)]
    pub memory: Memory,
    /// The way they took.
    pub path: Path,
    /// Bytes an iteration.
    pub size: u64,
    /// Iterations that were asked for.
    pub iterations: u32,
    /// Iterations that passed.
    pub passed: u32,
    /// The last iteration: the one that failed, if one did.
    pub last: Option<Iteration>,
    /// How fast the writes of those that passed were.
    pub write: Option<Throughput>,
    /// How fast their reads were.
    pub read: Option<Throughput>,
}

/// Whether the bytes arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Every byte of every iteration did, by every way of looking.
    Pass,
    /// They did not, or nobody can say that they did.
    Fail,
    /// The run was stopped before it could tell.
    Undecided,
}

/// GPU memory, and how it is reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// The GPU, the backend and its route.
    #[serde(flatten)]
    pub subject: Subject,
    /// The CUDA function that allocated it.
    pub allocated_by: String,
    /// How an arriving packet gets there.
    pub reached: Reached,
    /// Why so.
    pub why: String,
    /// The ways that a device of the kernel refused before, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refusals: Vec<String>,
    /// Single READs of this many bytes and more are made by the copy engine, although others go by
    /// the mapping.
    #[serde(default)]
    pub long_reads_from: Option<u64>,
}

/// How an arriving packet gets into GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reached {
    /// By CPU stores into a mapping of it.
    Direct,
    /// By the device of the kernel itself, with which it is registered.
    Device,
    /// By host memory and the GPU's copy engine.
    Staged,
}

/// The way the bytes take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// Where they come from: host memory.
    pub from: End,
    /// Where they go to: GPU memory.
    pub to: End,
    /// Bytes of payload a packet.
    pub mtu: usize,
    /// Bytes of a message, but for the last.
    pub message: u64,
}

/// A device at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its name.
    pub device: String,
    /// Where it receives.
    pub address: SocketAddr,
    /// What moves its bytes.
    pub provider: String,
    /// How far what it receives is checked.
    pub integrity: String,
}

impl End {
    pub(super) fn of(device: &Device) -> Self {
        Self {
            device: device.name().to_owned(),
            address: device.address(),
            provider: device.provider().to_string(),
            integrity: device.integrity().to_string(),
        }
    }
}

impl Path {
    pub(super) fn new(from: End, to: End, mtu: Mtu, size: u64) -> Self {
        Self {
            from,
            to,
            mtu: mtu.bytes(),
            message: size.min(super::link::MESSAGE),
        }
    }
}

/// One iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Iteration {
    /// From 1.
    pub number: u32,
    /// The seed of pattern A, which was there before.
    pub seed_before: u32,
    /// The seed of pattern B, which was sent.
    pub seed_sent: u32,
    /// Whether pattern A was there, by a kernel.
    pub filled: Outcome,
    /// How the RDMA WRITEs ended at the sender.
    pub sent: Ended,
    /// How they ended at the receiver.
    pub received: Ended,
    /// What is in GPU memory after that.
    pub checks: Checks,
    /// How the RDMA READs ended.
    pub read: Ended,
    /// What they brought.
    pub read_back: Outcome,
}

impl Iteration {
    /// One of which nothing is done yet.
    pub(super) fn begun(number: u32, seeds: Seeds) -> Self {
        let earlier = "an earlier step failed";
        Self {
            number,
            seed_before: seeds.before,
            seed_sent: seeds.sent,
            filled: Outcome::not_done(earlier),
            sent: Ended::not_done(earlier),
            received: Ended::not_done(earlier),
            checks: Checks::not_done(earlier),
            read: Ended::not_done(earlier),
            read_back: Outcome::not_done(earlier),
        }
    }
}

/// GPU memory after the WRITE, by every way of looking.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// By a kernel that was launched after the completion.
    pub kernel: Outcome,
    /// By a copy to the host.
    pub copy: Outcome,
    /// By loads through a CPU mapping.
    pub mapping: Outcome,
    /// The bytes before and after the target, by a copy: whether they are as before.
    pub guards: Outcome,
}

impl Checks {
    pub(super) fn not_done(reason: &str) -> Self {
        let outcome = Outcome::not_done(reason);
        Self {
            kernel: outcome.clone(),
            copy: outcome.clone(),
            mapping: outcome.clone(),
            guards: outcome,
        }
    }
}

/// What a look at memory found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// What should be there.
    Equal,
    /// Something else.
    Differs(Difference),
    /// Nothing, because looking failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// Nothing, because nobody looked.
    NotDone {
        /// Why.
        reason: String,
    },
}

impl Outcome {
    pub(super) fn not_done(reason: &str) -> Self {
        let reason = reason.to_owned();
        Self::NotDone { reason }
    }

    /// `Failed` where looking failed.
    pub(super) fn of(looked: crate::Result<Self>) -> Self {
        looked.unwrap_or_else(|error| Self::Failed {
            reason: error.to_string(),
        })
    }
}

/// How memory differs from a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// 32-bit words that were compared.
    pub words: u64,
    /// How many of them differ.
    pub mismatches: u64,
    /// How many of these hold what was there before.
    pub still_before: u64,
    /// Bytes to the first that differs.
    pub first_offset: u64,
    /// What it should be.
    pub expected: u32,
    /// What it is.
    pub found: u32,
}

/// How requests ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "snake_case")]
pub enum Ended {
    /// All with success.
    Done {
        /// Nanoseconds from the first post to the last completion.
        ns: u64,
    },
    /// Not by the deadline.
    Late {
        /// Milliseconds that were waited.
        waited_ms: u64,
        /// Completions that came.
        completions: u32,
        /// Completions that were due.
        due: u32,
    },
    /// With an error completion.
    Error {
        /// As `enum ibv_wc_status` has it.
        status: String,
        /// In words.
        meaning: String,
        /// What to do.
        remedy: String,
    },
    /// Without having been posted, or with a completion nobody asked for.
    Failed {
        /// Why.
        reason: String,
    },
    /// Not at all: nobody tried.
    NotDone {
        /// Why.
        reason: String,
    },
}

impl Ended {
    pub(super) fn not_done(reason: &str) -> Self {
        let reason = reason.to_owned();
        Self::NotDone { reason }
    }

    /// Whether all is well.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// How fast the requests of the iterations were, each from its first post to its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Whether a simulated GPU took part: says nothing of hardware then.
    pub simulated: bool,
    /// The median's nanoseconds.
    pub median_ns: u64,
    /// The fastest iteration's nanoseconds.
    pub best_ns: u64,
    /// Bytes a nanosecond (GB/s) at the median.
    pub median_gb_per_s: f64,
}

impl Throughput {
    pub(super) fn new(size: u64, simulated: bool, mut ns: Vec<u64>) -> Option<Self> {
        ns.sort_unstable();
        let median_ns = *ns.get(ns.len() / 2)?;
        Some(Self {
            simulated,
            median_ns,
            best_ns: *ns.first()?,
            median_gb_per_s: size as f64 / median_ns.max(1) as f64,
        })
    }
}

/// Iterations as they come in.
#[derive(Debug, Default)]
pub(super) struct Tally {
    passed: u32,
    last: Option<Iteration>,
    writes: Vec<u64>,
    reads: Vec<u64>,
}

impl Tally {
    /// Takes an iteration; why it failed, if it did.
    pub(super) fn add(&mut self, iteration: Iteration) -> Option<Cause> {
        let cause = super::judge::judge(&iteration);
        if cause.is_none() {
            self.passed += 1;
            if let Ended::Done { ns } = iteration.sent {
                self.writes.push(ns);
            }
            if let Ended::Done { ns } = iteration.read {
                self.reads.push(ns);
            }
        }
        self.last = Some(iteration);
        cause
    }

    /// The report on a run that ended so.
    pub(super) fn report(
        self,
        settings: &super::Settings,
        memory: Memory,
        path: Path,
        end: crate::Result<Option<Cause>>,
    ) -> Report {
        let (verdict, cause) = match end {
            Ok(None) if self.passed == settings.iterations => (Verdict::Pass, None),
            // Nothing was found to be wrong, and yet not everything was shown to be right.
            Ok(None) | Err(crate::Error::Stopped) => (Verdict::Undecided, None),
            Ok(Some(cause)) => (Verdict::Fail, Some(cause)),
            Err(error) => (
                Verdict::Fail,
                Some(Cause::of_error(self.passed + 1, &error)),
            ),
        };
        let (size, simulated) = (settings.size, memory.subject.simulated);
        Report {
            schema: Schema::first("gdr.loopback"),
            verdict,
            cause,
            memory,
            path,
            size,
            iterations: settings.iterations,
            passed: self.passed,
            last: self.last,
            write: Throughput::new(size, simulated, self.writes),
            read: Throughput::new(size, simulated, self.reads),
        }
    }
}
