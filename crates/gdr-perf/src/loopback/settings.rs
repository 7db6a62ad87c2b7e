//! How many bytes to transfer, how often, and the deadlines.

use std::time::Duration;

use gdr_cuda::{MemoryKind, pattern_word};
use serde::Serialize;

use crate::error::{MOST_SECONDS, Result, SettingsError};

/// Maximum number of bytes per iteration.
const MOST: u64 = 1 << 30;
/// Bytes per message. RDMA allows 2 GiB, but smaller messages show how far a hanging path got.
pub(super) const MESSAGE: u64 = 16 << 20;
/// Bytes that extend the deadline of a step by a second: far fewer than any working path transfers in that time.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// What happens to the bytes after the completions, in a rehearsed failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// None of them arrives.
    Lost,
    /// The second half does not arrive.
    Part,
    /// A word in the middle is wrong.
    Damaged,
    /// A kernel sees the bytes, but the comparisons after it see the previous content.
    Stale,
}

/// How to transfer bytes into GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransferPreference {
    /// Directly if the memory can be mapped or registered, otherwise staged.
    #[default]
    Auto,
    /// Directly, through a CPU mapping (soft) or a registration (verbs). The run fails if that is impossible.
    Direct,
    /// Staged: through page-locked host memory and the GPU's copy engine.
    Staged,
}

/// The receiving GPU memory. The end with the GPU chooses it.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// How to allocate it.
    pub memory: MemoryKind,
    /// How to transfer bytes into it.
    pub transfer: TransferPreference,
}

impl Default for Destination {
    fn default() -> Self {
        Self {
            memory: MemoryKind::Plain,
            transfer: TransferPreference::Auto,
        }
    }
}

/// What a run transfers.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes per iteration: a multiple of 4, at most 1 GiB.
    pub size: u64,
    /// Number of iterations. Each has its own patterns.
    pub iterations: u32,
    /// The seed of the patterns.
    pub seed: u32,
    /// Deadline of one step, extended by a second for each 64 MiB.
    pub timeout: Duration,
    /// The fault to rehearse, with both ends in this process.
    pub injected: Option<Fault>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: 1 << 20,
            iterations: 10,
            seed: 1,
            timeout: Duration::from_secs(10),
            injected: None,
        }
    }
}

impl Settings {
    /// Refuses unusable settings.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        if self.size == 0 || !self.size.is_multiple_of(4) || self.size > MOST {
            return Err(SettingsError::TransferSize(self.size));
        }
        if self.iterations == 0 {
            return Err(SettingsError::NoIterations);
        }
        if self.timeout.is_zero() {
            return Err(SettingsError::NoTimeout);
        }
        if self.timeout > Duration::from_secs(MOST_SECONDS) {
            return Err(SettingsError::LongTimeout(self.timeout));
        }
        Ok(())
    }

    /// Returns the deadline of one step.
    pub(super) fn limit(&self) -> Duration {
        self.timeout + Duration::from_secs(self.size / BYTES_PER_SECOND)
    }

    /// Returns how long to retransmit a request without an acknowledgement. Shorter than the step, so that the error
    /// completion arrives before the step's deadline.
    pub(super) fn give_up_after(&self) -> Duration {
        self.limit() * 7 / 8
    }

    /// Returns the deadline of everything that the peer does between two of its messages.
    pub(super) fn peer_limit(&self) -> Duration {
        self.limit() * 4
    }

    /// Returns the patterns of iteration `number`, from 1.
    pub(super) fn seeds(&self, number: u32) -> Seeds {
        // Under one seed, words at different indices differ.
        let seed = |index: u64| pattern_word(self.seed, index);
        Seeds {
            before: seed(2 * u64::from(number)),
            sent: seed(2 * u64::from(number) + 1),
            guard: seed(0),
        }
    }
}

/// The seeds of an iteration, all different.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Seeds {
    /// Seed of pattern A, with which a kernel fills GPU memory.
    pub(super) before: u32,
    /// Seed of pattern B, which is sent.
    pub(super) sent: u32,
    /// Seed of the pattern around the target.
    pub(super) guard: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_pattern_is_used_twice() {
        let settings = Settings::default();
        let mut seen: Vec<u32> = (1..=1000)
            .flat_map(|number| {
                let seeds = settings.seeds(number);
                [seeds.before, seeds.sent]
            })
            .chain([settings.seeds(1).guard])
            .collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2001);
    }

    #[test]
    fn unusable_settings_are_refused() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check()
        };
        with(|_| ()).unwrap();
        with(|s| s.size = 1 << 30).unwrap();
        let changes: [fn(&mut Settings); 6] = [
            |s| s.size = 0,
            |s| s.size = 6,
            |s| s.size = (1 << 30) + 4,
            |s| s.iterations = 0,
            |s| s.timeout = Duration::ZERO,
            |s| s.timeout = Duration::from_secs(86_401),
        ];
        for change in changes {
            with(change).unwrap_err();
        }
    }
}
