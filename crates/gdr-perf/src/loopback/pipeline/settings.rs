//! What a comparison measures.

use std::time::Duration;

use gdr_cuda::MemoryKind;

use super::super::settings::Settings;
use super::report::Published;
use crate::error::{Result, SettingsError};

/// The smallest size by default, which is also the ratio between two sizes.
const SMALLEST: u64 = 4;
const RATIO: u64 = 4;
/// Bytes in a frame of KIRO's benchmark.
const KIRO_FRAME: u64 = 512 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct PipelineSettings {
    /// Bytes of a frame. Each size is a multiple of 4, up to 1 GiB.
    pub sizes: Vec<u64>,
    /// Maximum number of frames per size and mode.
    pub rounds: u32,
    /// How to allocate the GPU memory.
    pub memory: MemoryKind,
    /// The seed of the bytes that are received.
    pub seed: u32,
    /// Deadline of one frame, extended by a second for each 64 MiB.
    pub timeout: Duration,
    /// Published figures for the report to repeat.
    pub published: Option<Published>,
}

impl Default for PipelineSettings {
    fn default() -> Self {
        Self {
            sizes: Self::sizes(SMALLEST, 64 << 20),
            rounds: 1000,
            memory: MemoryKind::Plain,
            seed: 1,
            timeout: Duration::from_secs(10),
            published: None,
        }
    }
}

impl PipelineSettings {
    /// Returns settings for frames as in KIRO's benchmark of GPUDirect: 512 MiB of 32-bit integers.
    pub fn kiro() -> Self {
        Self {
            sizes: vec![KIRO_FRAME],
            rounds: 20,
            published: Some(Published::KIRO),
            ..Self::default()
        }
    }

    /// Returns sizes from `smallest` to `largest`, each four times the previous one.
    pub fn sizes(smallest: u64, largest: u64) -> Vec<u64> {
        std::iter::successors(Some(smallest), |size| size.checked_mul(RATIO))
            .take_while(|size| (1..=largest).contains(size))
            .collect()
    }

    /// Returns the largest size.
    pub(super) fn largest(&self) -> u64 {
        self.sizes.iter().copied().max().unwrap_or(0)
    }

    /// Returns the deadline of a frame of `size` bytes.
    pub(super) fn limit(&self, size: u64) -> Duration {
        self.of(size).limit()
    }

    /// Returns how long a request is retransmitted without an acknowledgement.
    pub(super) fn give_up_after(&self) -> Duration {
        self.of(self.largest()).give_up_after()
    }

    /// Refuses unusable settings.
    pub(super) fn check(&self) -> Result<(), SettingsError> {
        if self.sizes.is_empty() {
            return Err(SettingsError::NoSize);
        }
        self.sizes
            .iter()
            .try_for_each(|size| self.of(*size).check())
    }

    fn of(&self, size: u64) -> Settings {
        Settings {
            size,
            iterations: self.rounds,
            seed: self.seed,
            timeout: self.timeout,
            injected: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_four_times_the_smallest() {
        assert_eq!(PipelineSettings::sizes(4, 100), [4, 16, 64]);
        assert_eq!(PipelineSettings::sizes(1024, 1024), [1024]);
        assert_eq!(PipelineSettings::sizes(8, 4), [0; 0]);
        assert_eq!(PipelineSettings::sizes(0, 4), [0; 0]);
    }

    #[test]
    fn unusable_settings_are_refused() {
        let with = |sizes: &[u64], rounds| {
            let settings = PipelineSettings {
                sizes: sizes.to_vec(),
                rounds,
                ..PipelineSettings::default()
            };
            settings.check()
        };
        with(&[4, 1 << 30], 1).unwrap();
        with(&[], 1).unwrap_err();
        with(&[4, 0], 1).unwrap_err();
        with(&[6], 1).unwrap_err();
        with(&[(1 << 30) + 4], 1).unwrap_err();
        with(&[4], 0).unwrap_err();
    }
}
