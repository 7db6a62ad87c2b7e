//! Runs checks and keeps what they found.

use serde::Serialize;

use crate::check::{Check, CheckId, Group, Purpose};
use crate::checks;
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::root_cause;

/// Which checks to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    only: Vec<CheckId>,
    skip: Vec<CheckId>,
    groups: Vec<Group>,
}

impl Selection {
    /// Every check.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only these; none named is all.
    #[must_use]
    pub fn only(mut self, checks: impl IntoIterator<Item = CheckId>) -> Self {
        self.only.extend(checks);
        self
    }

    /// All but these.
    #[must_use]
    pub fn skip(mut self, checks: impl IntoIterator<Item = CheckId>) -> Self {
        self.skip.extend(checks);
        self
    }

    /// Only those of these groups; none named is all.
    #[must_use]
    pub fn groups(mut self, groups: impl IntoIterator<Item = Group>) -> Self {
        self.groups.extend(groups);
        self
    }

    fn takes(&self, check: &Check, purpose: Option<Purpose>) -> bool {
        (self.only.is_empty() || self.only.contains(&check.id))
            && !self.skip.contains(&check.id)
            && (self.groups.is_empty() || self.groups.contains(&check.group))
            // Who names a check wants to see it, whatever it is good for.
            && (self.only.contains(&check.id)
                || purpose.is_none_or(|purpose| check.serves(purpose)))
    }
}

/// A finding, and whose it is.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The check that found it.
    pub check: &'static Check,
    /// What it found.
    pub finding: Finding,
    /// The place in [`Diagnosis::findings`] of what explains it, where something does.
    pub cause: Option<usize>,
}

/// What a diagnosis comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// Nothing is wrong. Exit status 0.
    Healthy,
    /// Something works, but not as it should. Exit status 1.
    Warning,
    /// Something does not work. Exit status 2.
    Failure,
    /// Too little is known to say that nothing is wrong. Exit status 3.
    Undecided,
}

/// How many findings there are of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Does not work.
    pub fail: usize,
    /// Works, but not as it should.
    pub warn: usize,
    /// Cannot be told.
    pub unknown: usize,
    /// Worth knowing.
    pub info: usize,
    /// Fine.
    pub pass: usize,
    /// Does not apply.
    pub skip: usize,
}

/// What all checks found, in the order of groups and checks.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The node's name, where it is known.
    pub host: Option<String>,
    /// What the node is wanted for.
    pub purpose: Option<Purpose>,
    /// What was found.
    pub findings: Vec<Judged>,
}

impl Diagnosis {
    /// What it comes to: the worst that was found; where nothing is wrong and a check could not
    /// tell, that.
    pub fn outcome(&self) -> Outcome {
        let worst = (self.findings.iter())
            .map(|judged| judged.finding.verdict)
            .max();
        match worst {
            Some(Verdict::Fail) => Outcome::Failure,
            Some(Verdict::Warn) => Outcome::Warning,
            Some(Verdict::Unknown) | None => Outcome::Undecided,
            Some(Verdict::Info | Verdict::Pass | Verdict::Skip) => {
                // Where nothing applies, nothing was shown to be well.
                if (self.findings.iter()).all(|judged| judged.finding.verdict == Verdict::Skip) {
                    Outcome::Undecided
                } else {
                    Outcome::Healthy
                }
            }
        }
    }

    /// How many findings there are of each verdict.
    pub fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for judged in &self.findings {
            *match judged.finding.verdict {
                Verdict::Fail => &mut counts.fail,
                Verdict::Warn => &mut counts.warn,
                Verdict::Unknown => &mut counts.unknown,
                Verdict::Info => &mut counts.info,
                Verdict::Pass => &mut counts.pass,
                Verdict::Skip => &mut counts.skip,
            } += 1;
        }
        counts
    }

    /// The findings that something is to be done about and that no other explains, worst first.
    pub fn root_causes(&self) -> Vec<(usize, &Judged)> {
        let mut causes: Vec<(usize, &Judged)> = (self.findings.iter().enumerate())
            .filter(|(_, judged)| judged.finding.verdict.is_bad() && judged.cause.is_none())
            .collect();
        causes.sort_by_key(|(_, judged)| std::cmp::Reverse(judged.finding.verdict));
        causes
    }

    /// The findings that this one explains, straight or through others.
    pub fn symptoms(&self, cause: usize) -> Vec<&Judged> {
        (self.findings.iter().enumerate())
            .filter(|(index, _)| *index != cause && self.root_of(*index) == cause)
            .map(|(_, judged)| judged)
            .collect()
    }

    fn root_of(&self, mut index: usize) -> usize {
        // Causes never form a circle: `root_cause` sees to it.
        while let Some(cause) = self.findings.get(index).and_then(|judged| judged.cause) {
            index = cause;
        }
        index
    }
}

/// Runs the checks that were chosen and that matter for the purpose.
pub fn diagnose(context: &Context<'_>, selection: &Selection) -> Diagnosis {
    diagnose_with(checks::all(), context, selection)
}

fn diagnose_with(
    checks: impl IntoIterator<Item = &'static Check>,
    context: &Context<'_>,
    selection: &Selection,
) -> Diagnosis {
    let mut findings = Vec::new();
    for check in checks {
        if !selection.takes(check, context.purpose) {
            continue;
        }
        let mut found = (check.run)(context);
        if found.is_empty() {
            // A check that is silent would pass for one that is content.
            found.push(Finding::new(
                Verdict::Unknown,
                Subject::Node,
                "the check said nothing",
            ));
        }
        findings.extend(found.into_iter().map(|finding| Judged {
            check,
            finding,
            cause: None,
        }));
    }
    root_cause::link(&mut findings);
    Diagnosis {
        host: (context.text("/proc/sys/kernel/hostname"))
            .into_present()
            .filter(|name| !name.is_empty()),
        purpose: context.purpose,
        findings,
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use super::*;
    use crate::check::Documentation;

    const NOTHING: Documentation = Documentation {
        means: "",
        reads: "",
        judges: "",
        sources: &[],
    };

    fn check(id: &'static str, run: fn(&Context<'_>) -> Vec<Finding>) -> &'static Check {
        Box::leak(Box::new(Check {
            id: CheckId(id),
            group: Group::Host,
            title: "",
            documentation: NOTHING,
            purposes: &[Purpose::Nccl],
            symptom_of: &[],
            run,
        }))
    }

    fn outcome(runs: &[fn(&Context<'_>) -> Vec<Finding>]) -> Outcome {
        let node = MemorySource::new();
        let inventory = Inventory::read(&node);
        let checks: Vec<&'static Check> = runs.iter().map(|run| check("a", *run)).collect();
        diagnose_with(checks, &Context::new(&node, &inventory), &Selection::all()).outcome()
    }

    #[test]
    fn the_worst_finding_decides() {
        let pass = |_: &Context<'_>| vec![Finding::pass(Subject::Node, "")];
        let warn = |_: &Context<'_>| vec![Finding::warn(Subject::Node, "")];
        let fail = |_: &Context<'_>| vec![Finding::fail(Subject::Node, "")];
        let skip = |_: &Context<'_>| vec![Finding::skip("")];
        let silent = |_: &Context<'_>| Vec::new();
        assert_eq!(outcome(&[pass, skip]), Outcome::Healthy);
        assert_eq!(outcome(&[pass, silent]), Outcome::Undecided);
        assert_eq!(outcome(&[silent, warn]), Outcome::Warning);
        assert_eq!(outcome(&[warn, fail, pass]), Outcome::Failure);
        assert_eq!(outcome(&[skip, skip]), Outcome::Undecided);
        assert_eq!(outcome(&[]), Outcome::Undecided);
    }

    #[test]
    fn a_purpose_narrows_and_a_name_overrules_it() {
        let it = check("a", |_| vec![Finding::skip("")]);
        let selection = Selection::all();
        assert!(selection.takes(it, Some(Purpose::Nccl)));
        assert!(!selection.takes(it, Some(Purpose::Gdrcopy)));
        let named = Selection::all().only([CheckId("a")]);
        assert!(named.takes(it, Some(Purpose::Gdrcopy)));
        assert!(!named.clone().skip([CheckId("a")]).takes(it, None));
        assert!(!Selection::all().groups([Group::Pcie]).takes(it, None));
    }
}
