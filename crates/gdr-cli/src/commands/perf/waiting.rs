//! What a terminal shows while a size is measured.

use std::time::{Duration, Instant};

use gdr_perf::transfer::{Amount, Plan, TransferEvent};

use crate::progress::Progress;

/// Progress of a measurement.
pub(super) struct Waiting {
    progress: Progress,
    /// `None` until both ends are connected.
    plan: Option<Plan>,
    /// Number of sizes measured so far.
    done: usize,
    /// When the current size was started.
    since: Instant,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self {
            progress: Progress::on_stderr(),
            plan: None,
            done: 0,
            since: Instant::now(),
        }
    }

    pub(super) fn event(&mut self, event: &TransferEvent<'_>) {
        match event {
            TransferEvent::Ready(report) => {
                self.plan = Some(report.plan.clone());
                self.since = Instant::now();
            }
            TransferEvent::Measured(_) => {
                self.done += 1;
                self.since = Instant::now();
            }
            TransferEvent::Waiting => {
                if let Some(plan) = &self.plan {
                    let what = what(plan, self.done, self.since.elapsed());
                    self.progress.at(self.done, plan.sizes.len(), &what);
                }
            }
            _ => {}
        }
    }
}

/// Returns the size after `done` others, and how long it has been measured.
fn what(plan: &Plan, done: usize, elapsed: Duration) -> String {
    // An endless measurement starts over with the first size.
    let size = (plan.sizes.iter().cycle().nth(done))
        .map_or_else(String::new, |size| format!("sizes, {size} bytes for "));
    let seconds = elapsed.as_secs();
    match plan.amount {
        Amount::Seconds(all) => format!("{size}{seconds} of {all} s"),
        _ => format!("{size}{seconds} s"),
    }
}

#[cfg(test)]
mod tests {
    use gdr_perf::transfer::Verb;

    use super::*;

    #[test]
    fn the_size_at_hand_is_shown_with_its_time_and_how_long_it_takes() {
        let plan = Plan {
            sizes: vec![64, 4096],
            amount: Amount::Seconds(60.0),
            ..Plan::new(Verb::WriteBw)
        };
        let at = |done| what(&plan, done, Duration::from_millis(12_400));
        assert_eq!(at(0), "sizes, 64 bytes for 12 of 60 s");
        assert_eq!(at(1), "sizes, 4096 bytes for 12 of 60 s");
        assert_eq!(at(2), at(0));
        let counted = Plan {
            amount: Amount::Iterations(5000),
            ..plan
        };
        assert_eq!(
            what(&counted, 1, Duration::from_secs(3)),
            "sizes, 4096 bytes for 3 s"
        );
    }
}
