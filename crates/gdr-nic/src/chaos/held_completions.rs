//! Held completions of one work queue.

use std::collections::VecDeque;
use std::time::Duration;

use gdr_roce::{Completion, Time, WcStatus};

/// A held completion.
#[derive(Clone, Copy, Debug)]
struct Held {
    completion: Completion,
    /// Not delivered to the completion queue.
    is_silent: bool,
    due: Time,
}

/// Held completions, in the order of their requests.
#[derive(Debug, Default)]
pub(super) struct HeldCompletions {
    held: VecDeque<Held>,
    /// The due time of the last completion added; later ones are never due earlier, so that order is kept.
    floor: Option<Time>,
    /// How many more completions the current burst collects, and until when it is held.
    burst: Option<(u32, Time)>,
    /// Set once no further completion is delivered.
    is_stuck: bool,
    /// How many requests have completed so far.
    pub(super) operations: u64,
}

impl HeldCompletions {
    pub(super) fn add(
        &mut self,
        now: Time,
        completion: Completion,
        is_silent: bool,
        late: Duration,
        burst: Option<(u32, Duration)>,
    ) {
        let mut due = now + late;
        if let Some((count, by)) = burst {
            let (missing, until) = self.burst.take().unwrap_or((count, now + by));
            due = due.max(until);
            match missing > 1 && until > now {
                true => self.burst = Some((missing - 1, until)),
                false => {
                    // Release the whole burst now.
                    due = now;
                    self.held
                        .iter_mut()
                        .filter(|held| held.due == until)
                        .for_each(|held| held.due = now);
                    self.floor = self.floor.filter(|floor| *floor != until);
                }
            }
        }
        due = self.floor.map_or(due, |floor| due.max(floor));
        self.floor = Some(due);
        self.held.push_back(Held {
            completion,
            is_silent,
            due,
        });
    }

    /// Withholds all completions added from now on.
    pub(super) fn get_stuck(&mut self) {
        self.is_stuck = true;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// Returns the next completion that is due, and whether it is silent. With `has_failed` the queue pair is in ERR,
    /// which flushes the withheld ones.
    pub(super) fn take(&mut self, now: Time, has_failed: bool) -> Option<(Completion, bool)> {
        if self.is_stuck && !has_failed {
            return None;
        }
        let is_due = |held: &Held| held.due <= now || self.is_stuck;
        let mut held = *self.held.front().filter(|held| is_due(held))?;
        self.held.pop_front();
        if self.is_stuck {
            held.completion.status = WcStatus::WrFlushed;
            held.is_silent = false;
        }
        Some((held.completion, held.is_silent))
    }

    pub(super) fn next(&self) -> Option<Time> {
        let next = self.held.front().map(|held| held.due);
        next.filter(|_| !self.is_stuck)
    }
}
