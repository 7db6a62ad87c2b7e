//! What to move, how often, and how long to wait for it.

use std::time::Duration;

use gdr_cuda::{MemoryKind, pattern_word};

use crate::error::{Error, Result};

/// The most bytes that one iteration moves.
const MOST: u64 = 1 << 30;
/// Bytes for which a step is given a second more: far below what any working path does.
const BYTES_PER_SECOND: u64 = 64 << 20;

/// How GPU memory is to be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reach {
    /// Directly where it can be mapped, else staged.
    #[default]
    Auto,
    /// Through a CPU mapping of it, or not at all.
    Direct,
    /// Through page-locked host memory and the GPU's copy engine.
    Staged,
}

/// Where the bytes are to arrive. The side with the GPU decides it.
#[derive(Clone, Copy, Debug)]
pub struct Destination {
    /// How to allocate it.
    pub memory: MemoryKind,
    /// How to reach it.
    pub reach: Reach,
}

impl Default for Destination {
    fn default() -> Self {
        Self {
            memory: MemoryKind::Plain,
            reach: Reach::Auto,
        }
    }
}

/// What to move.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes an iteration, a multiple of 4, 1 GiB at most.
    pub size: u64,
    /// Iterations, each with patterns of its own.
    pub iterations: u32,
    /// What the patterns are made from.
    pub seed: u32,
    /// How long one step may take, and a second more for each 64 MiB.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            size: 1 << 20,
            iterations: 10,
            seed: 1,
            timeout: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// Whether they make sense.
    pub(super) fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Settings(what));
        if self.size == 0 || !self.size.is_multiple_of(4) || self.size > MOST {
            return wrong(format!(
                "{} bytes cannot be moved: give a multiple of 4 up to 1G",
                self.size
            ));
        }
        if self.iterations == 0 {
            return wrong("no iteration proves nothing: give at least 1".into());
        }
        if self.timeout.is_zero() {
            return wrong("no step ends in no time at all: give at least 1 second".into());
        }
        Ok(())
    }

    /// How long one step may take.
    pub(super) fn limit(&self) -> Duration {
        self.timeout + Duration::from_secs(self.size / BYTES_PER_SECOND)
    }

    /// How long the peer may take for all that it does between two of its messages.
    pub(super) fn peer_limit(&self) -> Duration {
        self.limit() * 4
    }

    /// The patterns of iteration `number`, from 1.
    pub(super) fn seeds(&self, number: u32) -> Seeds {
        // For one seed, words of different indices are different.
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
    /// Of pattern A, which a kernel fills GPU memory with.
    pub(super) before: u32,
    /// Of pattern B, which is sent.
    pub(super) sent: u32,
    /// Of the pattern around the target.
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
    fn settings_that_make_no_sense_are_refused() {
        let with = |change: fn(&mut Settings)| {
            let mut settings = Settings::default();
            change(&mut settings);
            settings.check()
        };
        with(|_| ()).unwrap();
        with(|s| s.size = 1 << 30).unwrap();
        let changes: [fn(&mut Settings); 5] = [
            |s| s.size = 0,
            |s| s.size = 6,
            |s| s.size = (1 << 30) + 4,
            |s| s.iterations = 0,
            |s| s.timeout = Duration::ZERO,
        ];
        for change in changes {
            assert!(matches!(with(change), Err(Error::Settings(_))));
        }
    }
}
