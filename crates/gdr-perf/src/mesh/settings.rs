//! What a mesh measures, and its deadlines.

use std::time::Duration;

use crate::error::{Result, SettingsError};
use crate::transfer::{Amount, Plan, Verb, Verification};

/// Bytes in flight, as far as the number of requests allows.
const IN_FLIGHT: u64 = 4 << 20;
/// Minimum number of requests in flight, so that one is under way while the next begins.
const LEAST_DEPTH: u64 = 2;
const MOST_DEPTH: u64 = 16;

/// The CPUs of the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankCpus {
    /// Each rank has enough CPUs of its own: a rate describes its path.
    #[default]
    Own,
    /// The ranks share CPUs, so that a rate is what the others leave. A rank is judged slow only if all its directions
    /// are far slower than those between the others.
    Shared,
}

/// What a mesh measures.
#[derive(Clone, Debug)]
pub struct MeshSettings {
    /// Bytes of a message.
    pub size: u64,
    /// How long each direction is measured.
    pub duration: Duration,
    /// The part of the expected rate that a direction must reach to pass, from 0 to 1. With 0, rates are not judged.
    pub least: f64,
    /// Which CPUs the ranks run on.
    pub cpus: RankCpus,
    /// How long ranks may take to meet.
    pub meet_within: Duration,
    /// How long one request of a transfer may take.
    pub timeout: Duration,
}

impl Default for MeshSettings {
    fn default() -> Self {
        Self {
            size: 1 << 20,
            duration: Duration::from_secs(1),
            least: 0.7,
            cpus: RankCpus::Own,
            meet_within: Duration::from_secs(60),
            timeout: Duration::from_secs(5),
        }
    }
}

impl MeshSettings {
    /// Returns the plan of one direction.
    pub(super) fn plan(&self) -> Plan {
        Plan {
            sizes: vec![self.size],
            amount: Amount::Seconds(self.duration.as_secs_f64()),
            warm_up: 2,
            tx_depth: self.depth(),
            verify: Verification::Last,
            timeout_ms: self.timeout.as_millis() as u64,
            ..Plan::new(Verb::WriteBw)
        }
    }

    /// Returns the number of requests in flight. A few MiB keep any link busy, and on a slow link they complete soon
    /// after the measured time.
    fn depth(&self) -> u32 {
        (IN_FLIGHT / self.size.max(1)).clamp(LEAST_DEPTH, MOST_DEPTH) as u32
    }

    /// Returns how long one direction may take, including connection setup and the aftermath of a failure.
    pub(super) fn direction_limit(&self) -> Duration {
        self.duration + self.timeout * 6
    }

    pub(super) fn check(&self) -> Result<()> {
        self.plan().check().map_err(SettingsError::Plan)?;
        if !(0.0..=1.0).contains(&self.least) {
            return Err(SettingsError::LeastPart(self.least.to_string()).into());
        }
        Ok(())
    }
}
