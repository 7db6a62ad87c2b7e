//! What passed, what failed, what was skipped and why.

use std::process::ExitCode;

/// The results of a run.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<Skip>,
}

#[derive(Debug)]
struct Skip {
    name: String,
    reason: String,
}

/// How a check ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    Failed,
    Skipped { reason: String },
}

impl Ledger {
    pub(crate) fn record(&mut self, name: &str, outcome: Outcome) {
        match outcome {
            Outcome::Passed => self.passed += 1,
            Outcome::Failed => self.failed.push(name.to_owned()),
            Outcome::Skipped { reason } => {
                self.skipped.push(Skip {
                    name: name.to_owned(),
                    reason,
                });
            }
        }
    }

    /// Runs one check under a heading.
    pub(crate) fn check(&mut self, name: &str, check: impl FnOnce() -> anyhow::Result<Outcome>) {
        heading(name);
        let outcome = check().unwrap_or_else(|error| {
            eprintln!("{error:#}");
            Outcome::Failed
        });
        self.record(name, outcome);
    }

    /// Prints the lists, and the totals alone on the last line.
    pub(crate) fn close(self) -> ExitCode {
        heading("result");
        for Skip { name, reason } in &self.skipped {
            println!("SKIPPED ({reason}): {name}");
        }
        for name in &self.failed {
            println!("FAILED: {name}");
        }
        println!("{}", self.totals());
        if self.failed.is_empty() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn totals(&self) -> String {
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        format!("{} passed, {failed} failed, {skipped} skipped", self.passed)
    }
}

fn heading(name: &str) {
    println!("\n== {name}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_counted_once() {
        let mut ledger = Ledger::default();
        ledger.check("good", || Ok(Outcome::Passed));
        ledger.check("bad", || Ok(Outcome::Failed));
        ledger.check("broken", || anyhow::bail!("no such program"));
        ledger.check("absent", || {
            Ok(Outcome::Skipped {
                reason: "no GPU".into(),
            })
        });
        assert_eq!(ledger.totals(), "1 passed, 2 failed, 1 skipped");
        assert_eq!(ledger.failed, ["bad", "broken"]);
    }
}
