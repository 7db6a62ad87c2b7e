//! What a mesh measures, and its deadlines.

use std::time::Duration;

use crate::error::{Result, SettingsError};
use crate::transfer::{Amount, Plan, Verb, Verification};

/// Bytes in flight, as far as the number of requests allows it.
const IN_FLIGHT: u64 = 4 << 20;
/// The fewest requests in flight: one is under way while the next one begins.
const LEAST_DEPTH: u64 = 2;
const MOST_DEPTH: u64 = 16;

/// The CPUs of the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RankCpus {
    /// Each rank has enough of its own: a rate says what its path carries.
    #[default]
    Own,
    /// The ranks share them, so that a rate is what the others leave: only a rank all of whose directions are far slower
    /// than those between the others is judged slow.
    Shared,
}

/// What a mesh measures.
#[derive(Clone, Debug)]
pub struct MeshSettings {
    /// Bytes of a message.
    pub size: u64,
    /// How long each direction is measured.
    pub duration: Duration,
    /// The part of the expected rate that a direction needs in order to pass, from 0 to 1; with 0 no rate
    /// is judged.
    pub least: f64,
    /// Whose CPUs the ranks run on.
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
    /// The plan of one direction.
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

    /// Requests in flight: a few MiB keep any link busy, and a slow one takes not much longer than the
    /// measured time until they are complete.
    fn depth(&self) -> u32 {
        (IN_FLIGHT / self.size.max(1)).clamp(LEAST_DEPTH, MOST_DEPTH) as u32
    }

    /// How long one direction may take, with its connection setup and what follows a failure.
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
