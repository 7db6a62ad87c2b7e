//! Report of a run.

use std::net::SocketAddr;

use gdr_rdma::{Counters, Device, Mtu, Provider, Stripe};
use serde::{Deserialize, Serialize};

use super::settings::{Fault, MESSAGE, Seeds};
use crate::error::Remedy;
use crate::memory_facts::{Memory, MemoryFacts};
use crate::report::Schema;
use crate::wire::Wire;

/// Report of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `gdr.loopback`.
    #[serde(flatten)]
    pub schema: Schema,
    /// Whether the bytes arrived.
    pub verdict: Verdict,
    /// The rehearsed fault. If there is one, the verdict says nothing about hardware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub injected: Option<Fault>,
    /// Why the run failed.
    pub cause: Option<Cause>,
    /// The GPU memory, with `simulated`.
    #[serde(flatten)]
    pub memory: Memory,
    /// The memory that was sent and read back into.
    pub source: MemoryFacts,
    /// The devices.
    pub path: Path,
    /// Bytes an iteration.
    pub size: u64,
    /// Iterations that were requested.
    pub iterations: u32,
    /// Iterations that passed.
    pub passed: u32,
    /// The last iteration, which is the failed one if an iteration failed.
    pub last: Option<Iteration>,
    /// The wire that carried the sender's packets in it; `None` for a kernel device.
    pub wire: Option<Wire>,
    /// Throughput of the WRITEs in iterations that passed.
    pub write: Option<Throughput>,
    /// Throughput of the READs in iterations that passed.
    pub read: Option<Throughput>,
}

/// Why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// The kind of failure.
    pub kind: CauseKind,
    /// The iteration, from 1.
    pub iteration: u32,
    /// What failed, and what follows from it.
    pub what: String,
    /// What to do.
    pub remedy: String,
}

/// Kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CauseKind {
    /// GPU memory does not hold what a kernel wrote.
    Fill,
    /// A request ended with an error.
    ErrorCompletion,
    /// A request did not complete in time.
    NoCompletion,
    /// A request was refused, or an unexpected completion arrived.
    Request,
    /// Every request succeeded, and GPU memory is unchanged.
    NothingArrived,
    /// Every request succeeded, and a part of GPU memory is unchanged.
    PartlyArrived,
    /// Bytes arrived that differ from the bytes sent.
    WrongBytes,
    /// Two comparisons of the same memory found different bytes.
    Disagreement,
    /// Bytes outside the target were changed.
    Guards,
    /// The bytes arrived, but READ returned other bytes.
    ReadBack,
    /// Memory could not be compared.
    Looking,
    /// Another failure, perhaps at the peer.
    Other,
}

impl CauseKind {
    /// Returns what the caller can change to narrow the cause down.
    pub const fn remedies(self) -> &'static [Remedy] {
        match self {
            Self::NoCompletion => &[Remedy::LongerTimeout],
            Self::NothingArrived => &[Remedy::CompareTransferModes, Remedy::RunSanity],
            Self::PartlyArrived | Self::ReadBack => &[Remedy::CompareTransferModes],
            Self::WrongBytes | Self::Disagreement => &[Remedy::RunSanity],
            _ => &[],
        }
    }
}

impl Cause {
    /// Returns the cause of a run that ended with an error in `iteration`.
    pub(super) fn of_error(iteration: u32, error: &crate::Error) -> Self {
        Self {
            kind: CauseKind::Other,
            iteration,
            what: format!("iteration {iteration} could not be finished: {error}"),
            remedy: "nothing is proved about the bytes of this iteration; see the reason".into(),
        }
    }
}

/// Whether the bytes arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// All comparisons found every byte of every iteration.
    Pass,
    /// Bytes did not arrive, or could not be compared.
    Fail,
    /// The run was stopped before the result was known.
    Undecided,
}

/// The two devices of a transfer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Path {
    /// The device that sends, and reads back.
    pub from: End,
    /// The device of the receiving GPU memory.
    pub to: End,
    /// Bytes of payload per packet.
    pub mtu: usize,
    /// Bytes of each message except the last.
    pub message: u64,
    /// The queue pairs over which the messages are striped.
    pub queue_pairs: usize,
}

/// A device at one end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// Its name.
    pub device: String,
    /// The address at which it receives.
    pub address: SocketAddr,
    /// Its provider.
    pub provider: String,
    /// Integrity checks on what it receives.
    pub integrity: String,
}

impl End {
    pub(crate) fn of(device: &Device) -> Self {
        Self {
            device: device.name().to_owned(),
            address: device.address(),
            provider: device.provider().to_string(),
            integrity: device.integrity().to_string(),
        }
    }
}

impl Path {
    /// Returns a path with one queue pair, for messages of `size` bytes at most.
    pub(super) fn new(from: End, to: End, mtu: Mtu, size: u64) -> Self {
        Self {
            from,
            to,
            mtu: mtu.bytes(),
            message: size.min(MESSAGE),
            queue_pairs: 1,
        }
    }

    /// Returns the same for transfers of `size` bytes over this many queue pairs.
    pub(super) fn over(self, queue_pairs: usize, size: u64) -> Self {
        let message = match queue_pairs {
            1 => self.message,
            _ => Stripe::parts(size, queue_pairs)
                .map(|(_, bytes)| bytes)
                .max()
                .unwrap_or_default(),
        };
        Self {
            message,
            queue_pairs,
            ..self
        }
    }
}

/// One iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Iteration {
    /// From 1.
    pub number: u32,
    /// Seed of pattern A, which GPU memory held before.
    pub seed_before: u32,
    /// Seed of pattern B, which was sent.
    pub seed_sent: u32,
    /// Whether a kernel found pattern A.
    pub filled: Outcome,
    /// The result of the RDMA WRITEs at the sender.
    pub sent: Ended,
    /// Their result at the receiver.
    pub received: Ended,
    /// The comparisons of GPU memory.
    pub checks: Checks,
    /// The result of the RDMA READs.
    pub read: Ended,
    /// The comparison of the bytes that they returned.
    pub read_back: Outcome,
    /// The devices' counters during the iteration.
    pub packets: Packets,
}

/// The counters of both devices during an iteration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Packets {
    /// The requesting end; `None` if its device has no counters.
    pub sender: Option<PacketCounts>,
    /// The end with the GPU; also `None` if it did not report its counters.
    pub receiver: Option<PacketCounts>,
}

/// Packets that a device of the soft provider counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketCounts {
    /// Passed to the kernel, or to a device of this host through shared memory.
    pub sent: u64,
    /// How many of these went through shared memory.
    #[serde(default)]
    pub sent_by_memory: u64,
    /// Received from the kernel or through shared memory, valid or not.
    pub received: u64,
    /// How many of these are not packets of a reliable connection.
    pub malformed: u64,
    /// How many of these had a wrong ICRC.
    pub icrc_mismatches: u64,
    /// How many of these were for queue pairs that do not exist.
    pub unknown_queue_pair: u64,
    /// How many of these came from an address or port other than the peer's.
    #[serde(default)]
    pub wrong_source: u64,
    /// Dropped by the kernel: from addresses without a peer, or beyond the capacity of the receive buffer.
    #[serde(default)]
    pub kernel_drops: u64,
    /// NAKs sent because a packet of the peer was missing.
    #[serde(default)]
    pub sequence_naks_sent: u64,
    /// NAKs received because the peer missed a packet.
    #[serde(default)]
    pub sequence_naks_received: u64,
    /// System calls to send that failed.
    pub sends_failed: u64,
}

impl PacketCounts {
    /// Returns the current counters of a device; `None` for a kernel device.
    pub(super) fn of(device: &Device) -> Option<Self> {
        (device.provider() == Provider::Soft).then(|| Self::from(device.counters()))
    }

    /// Returns the difference from `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(earlier.sent),
            sent_by_memory: self.sent_by_memory.saturating_sub(earlier.sent_by_memory),
            received: self.received.saturating_sub(earlier.received),
            malformed: self.malformed.saturating_sub(earlier.malformed),
            icrc_mismatches: self.icrc_mismatches.saturating_sub(earlier.icrc_mismatches),
            unknown_queue_pair: self
                .unknown_queue_pair
                .saturating_sub(earlier.unknown_queue_pair),
            wrong_source: self.wrong_source.saturating_sub(earlier.wrong_source),
            kernel_drops: self.kernel_drops.saturating_sub(earlier.kernel_drops),
            sequence_naks_sent: self
                .sequence_naks_sent
                .saturating_sub(earlier.sequence_naks_sent),
            sequence_naks_received: self
                .sequence_naks_received
                .saturating_sub(earlier.sequence_naks_received),
            sends_failed: self.sends_failed.saturating_sub(earlier.sends_failed),
        }
    }
}

impl From<Counters> for PacketCounts {
    fn from(counters: Counters) -> Self {
        Self {
            sent: counters.packets_sent,
            sent_by_memory: counters.sent_by_memory,
            received: counters.packets_received,
            malformed: counters.malformed,
            icrc_mismatches: counters.icrc_mismatches,
            unknown_queue_pair: counters.unknown_queue_pair,
            wrong_source: counters.wrong_source,
            kernel_drops: counters.kernel_drops,
            sequence_naks_sent: counters.sequence_naks_sent,
            sequence_naks_received: counters.sequence_naks_received,
            sends_failed: counters.sends_failed,
        }
    }
}

/// Counts a device's packets from a starting point on.
pub(super) struct PacketCounter<'a> {
    device: &'a Device,
    start: Option<PacketCounts>,
}

impl<'a> PacketCounter<'a> {
    pub(super) fn start(device: &'a Device) -> Self {
        Self {
            device,
            start: PacketCounts::of(device),
        }
    }

    pub(super) fn counted(&self) -> Option<PacketCounts> {
        let start = self.start?;
        PacketCounts::of(self.device).map(|now| now.since(start))
    }
}

impl Iteration {
    /// Creates an iteration without results.
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
            packets: Packets::default(),
        }
    }
}

/// Comparisons of GPU memory after the WRITE.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checks {
    /// By a kernel launched after the completion.
    pub kernel: Outcome,
    /// By a copy to the host.
    pub copy: Outcome,
    /// By loads through a CPU mapping.
    pub mapping: Outcome,
    /// By a copy: whether the bytes before and after the target are unchanged.
    pub guards: Outcome,
}

impl Checks {
    /// Returns the same from a peer, with its texts marked as quotes.
    pub(super) fn of_peer(self) -> Self {
        Self {
            kernel: self.kernel.of_peer(),
            copy: self.copy.of_peer(),
            mapping: self.mapping.of_peer(),
            guards: self.guards.of_peer(),
        }
    }

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

/// The result of a comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// The expected bytes.
    Equal,
    /// Other bytes.
    Differs(Difference),
    /// The comparison failed.
    Failed {
        /// Why.
        reason: String,
    },
    /// There was no comparison.
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

    /// Returns the same from a peer, with its texts marked as quotes.
    pub(super) fn of_peer(self) -> Self {
        match self {
            Self::Failed { reason } => Self::Failed {
                reason: says(&reason),
            },
            Self::NotDone { reason } => Self::NotDone {
                reason: says(&reason),
            },
            known @ (Self::Equal | Self::Differs(_)) => known,
        }
    }

    /// Returns the outcome of a comparison; an error becomes `Failed`.
    pub(super) fn of(looked: crate::Result<Self>) -> Self {
        looked.unwrap_or_else(|error| Self::Failed {
            reason: error.to_string(),
        })
    }
}

/// Quotes text of the peer, which was escaped on arrival.
fn says(words: &str) -> String {
    format!("the peer says \"{words}\"")
}

/// How memory differs from a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// 32-bit words that were compared.
    pub words: u64,
    /// How many of them differ.
    pub mismatches: u64,
    /// How many of these still have their previous value.
    pub still_before: u64,
    /// Byte offset of the first difference.
    pub first_offset: u64,
    /// What it should be.
    pub expected: u32,
    /// What it is.
    pub found: u32,
}

/// The result of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ended", rename_all = "snake_case")]
pub enum Ended {
    /// All succeeded.
    Done {
        /// Nanoseconds from the first post to the last completion.
        ns: u64,
    },
    /// Completions are missing at the deadline.
    Late {
        /// Milliseconds that were waited.
        waited_ms: u64,
        /// Completions that came.
        completions: u32,
        /// Completions that were due.
        due: u32,
    },
    /// A completion with an error.
    Error {
        /// Its name in `enum ibv_wc_status`.
        status: String,
        /// Its meaning.
        meaning: String,
        /// What to do.
        remedy: String,
    },
    /// A request was not posted, or an unexpected completion arrived.
    Failed {
        /// Why.
        reason: String,
    },
    /// No request was made.
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

    /// Returns the same from a peer, with its texts marked as quotes.
    pub(super) fn of_peer(self) -> Self {
        match self {
            Self::Error {
                status,
                meaning,
                remedy,
            } => Self::Error {
                status,
                meaning: says(&meaning),
                remedy: says(&remedy),
            },
            Self::Failed { reason } => Self::Failed {
                reason: says(&reason),
            },
            Self::NotDone { reason } => Self::NotDone {
                reason: says(&reason),
            },
            known @ (Self::Done { .. } | Self::Late { .. }) => known,
        }
    }

    /// Returns whether all requests succeeded.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }
}

/// Throughput of the iterations, each from its first post to its last completion.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Throughput {
    /// Whether the GPU was simulated. If so, the figures do not describe hardware.
    pub simulated: bool,
    /// The median's nanoseconds.
    pub median_ns: u64,
    /// The fastest iteration's nanoseconds.
    pub best_ns: u64,
    /// Bytes per nanosecond (GB/s) at the median.
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
