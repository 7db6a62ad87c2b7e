//! Completions that wait, of one queue of a queue pair.

use std::collections::VecDeque;
use std::time::Duration;

use gdr_roce::{Completion, Time, WcStatus};

/// A completion that waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    completion: Completion,
    /// The completion queue does not get it.
    is_silent: bool,
    due: Time,
}

/// Completions, in the order of the requests.
#[derive(Debug, Default)]
pub(super) struct HeldCompletions {
    held: VecDeque<Held>,
    /// None comes before.
    floor: Option<Time>,
    /// How many are missing in the burst, and until when it waits.
    burst: Option<(u32, Time)>,
    /// From here on none comes.
    is_stuck: bool,
    /// How many requests have completed.
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
                    // Release all of its completions now.
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

    /// From the next one on none comes.
    pub(super) fn get_stuck(&mut self) {
        self.is_stuck = true;
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.is_stuck
    }

    /// The next completion that is due, and whether it is silent. `has_failed`: the queue pair is in ERR, where
    /// those that never came are flushed.
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
