//! Runs checks and keeps their findings.

use serde::Serialize;

use crate::about::{About, Capture};
use crate::check::{Check, CheckId, Group, Workload};
use crate::checks;
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::platform::Platform;
use crate::root_cause;

/// The word that marks what is rehearsed in every report.
pub(crate) const REHEARSAL: &str = "REHEARSAL";

/// The checks to run.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    only: Vec<CheckId>,
    skip: Vec<CheckId>,
    groups: Vec<Group>,
    rehearse: Vec<CheckId>,
}

impl Selection {
    /// Returns every check.
    pub fn all() -> Self {
        Self::default()
    }

    /// Only these checks; all if the list is empty.
    #[must_use]
    pub fn only(mut self, checks: impl IntoIterator<Item = CheckId>) -> Self {
        self.only.extend(checks);
        self
    }

    /// Returns all checks except these.
    #[must_use]
    pub fn skip(mut self, checks: impl IntoIterator<Item = CheckId>) -> Self {
        self.skip.extend(checks);
        self
    }

    /// Only checks of these groups; all if the list is empty.
    #[must_use]
    pub fn groups(mut self, groups: impl IntoIterator<Item = Group>) -> Self {
        self.groups.extend(groups);
        self
    }

    /// Adds a failure of each of these checks to what is found, to rehearse an alarm. The failures are
    /// marked in every report, explain no other finding, and take none away.
    #[must_use]
    pub fn rehearse(mut self, checks: impl IntoIterator<Item = CheckId>) -> Self {
        self.rehearse.extend(checks);
        self
    }

    fn takes(&self, check: &Check, purpose: Option<Workload>) -> bool {
        (self.only.is_empty() || self.only.contains(&check.id))
            && !self.skip.contains(&check.id)
            && (self.groups.is_empty() || self.groups.contains(&check.group))
            // A check that is named overrides the filter by workload.
            && (self.only.contains(&check.id)
                || purpose.is_none_or(|purpose| check.serves(purpose)))
    }
}

/// A finding and its check.
#[derive(Clone, Debug)]
pub struct Reported {
    /// The check that found it.
    pub check: &'static Check,
    /// The finding.
    pub finding: Finding,
    /// The index in [`Diagnosis::findings`] of the finding that explains it, if there is one.
    pub cause: Option<usize>,
    /// Whether it is true.
    pub origin: Origin,
}

/// Where a finding is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The node.
    Node,
    /// A rehearsal ([`Selection::rehearse`]): it says nothing about the node.
    Rehearsal,
}

/// The outcome of a diagnosis.
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

/// The number of findings of each verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Fail.
    pub fail: usize,
    /// Warn.
    pub warn: usize,
    /// Unknown.
    pub unknown: usize,
    /// Info.
    pub info: usize,
    /// Pass.
    pub pass: usize,
    /// Skip.
    pub skip: usize,
}

impl Counts {
    fn of<'a>(findings: impl IntoIterator<Item = &'a Reported>) -> Self {
        let mut counts = Self::default();
        for judged in findings {
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

    /// Returns the number of findings without a problem.
    pub const fn fine(self) -> usize {
        self.pass + self.info
    }

    /// Returns the verdict of all together: the worst bad one. Without a bad one: unknown if more findings are unknown
    /// than fine, else pass; skip if there are none.
    pub const fn verdict(self) -> Verdict {
        if self.fail > 0 {
            Verdict::Fail
        } else if self.warn > 0 {
            Verdict::Warn
        } else if self.unknown > self.fine() {
            Verdict::Unknown
        } else if self.fine() > 0 {
            Verdict::Pass
        } else {
            Verdict::Skip
        }
    }
}

/// The findings of all checks, in the order of groups and checks.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The node's name, if it is known.
    pub host: Option<String>,
    /// The subject of the report and how it was made.
    pub about: About,
    /// The workload.
    pub purpose: Option<Workload>,
    /// The names of the GPU and the NIC that the report is limited to.
    pub pair: Option<(String, String)>,
    /// The findings; a rehearsal's come last.
    pub findings: Vec<Reported>,
}

impl Diagnosis {
    /// Returns the outcome, which the worst finding decides. An unknown finding without a bad one is
    /// [`Outcome::Undecided`].
    pub fn outcome(&self) -> Outcome {
        let worst = (self.findings.iter())
            .map(|judged| judged.finding.verdict)
            .max();
        match worst {
            Some(Verdict::Fail) => Outcome::Failure,
            Some(Verdict::Warn) => Outcome::Warning,
            Some(Verdict::Unknown) | None => Outcome::Undecided,
            Some(Verdict::Info | Verdict::Pass | Verdict::Skip) => {
                // If no check applies, it is not shown that the node works.
                if (self.findings.iter()).all(|judged| judged.finding.verdict == Verdict::Skip) {
                    Outcome::Undecided
                } else {
                    Outcome::Healthy
                }
            }
        }
    }

    /// Returns the checks whose failure is rehearsed.
    pub fn rehearsed(&self) -> Vec<CheckId> {
        (self.findings.iter())
            .filter(|judged| judged.origin == Origin::Rehearsal)
            .map(|judged| judged.check.id)
            .collect()
    }

    /// Returns the number of findings with each verdict.
    pub fn counts(&self) -> Counts {
        Counts::of(&self.findings)
    }

    /// Returns whether the requirements of GPUDirect RDMA were seen: a GPU and an RDMA NIC with
    /// their drivers, and dma-buf or a peer-memory module.
    pub fn has_the_essentials(&self) -> bool {
        const ESSENTIAL: [&str; 5] = [
            "gpu.present",
            "gpu.driver",
            "nic.present",
            "nic.driver",
            "peermem.loaded",
        ];
        ESSENTIAL.iter().all(|id| {
            let mut found = (self.findings.iter())
                .filter(|judged| judged.check.id.0 == *id)
                .map(|judged| judged.finding.verdict)
                .peekable();
            let good = [Verdict::Pass, Verdict::Info, Verdict::Warn];
            found.peek().is_some() && found.all(|verdict| good.contains(&verdict))
        })
    }

    /// Returns the number of findings with each verdict, by the group that was looked at.
    pub fn groups(&self) -> Vec<(Group, Counts)> {
        (Group::ALL.into_iter())
            .filter(|group| self.findings.iter().any(|it| it.check.group == *group))
            .map(|group| {
                let of_group = self.findings.iter().filter(|it| it.check.group == group);
                (group, Counts::of(of_group))
            })
            .collect()
    }

    /// Returns the bad findings that no other finding explains, the worst first.
    pub fn root_causes(&self) -> Vec<(usize, &Reported)> {
        let mut causes: Vec<(usize, &Reported)> = (self.findings.iter().enumerate())
            .filter(|(_, judged)| judged.finding.verdict.is_bad() && judged.cause.is_none())
            .collect();
        causes.sort_by_key(|(_, judged)| std::cmp::Reverse(judged.finding.verdict));
        causes
    }

    /// Returns the findings that this one explains, directly or through others.
    pub fn symptoms(&self, cause: usize) -> Vec<&Reported> {
        (self.findings.iter().enumerate())
            .filter(|(index, _)| *index != cause && self.root_of(*index) == cause)
            .map(|(_, judged)| judged)
            .collect()
    }

    fn root_of(&self, mut index: usize) -> usize {
        // `root_cause` never makes a cycle of causes.
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

/// Runs the chosen checks, except any that found something already.
pub(crate) fn diagnose_instead(
    context: &Context<'_>,
    selection: &Selection,
    found: Vec<(CheckId, Finding)>,
) -> Diagnosis {
    diagnose_around(checks::all(), context, selection, found)
}

fn diagnose_with(
    checks: impl IntoIterator<Item = &'static Check>,
    context: &Context<'_>,
    selection: &Selection,
) -> Diagnosis {
    diagnose_around(checks, context, selection, Vec::new())
}

fn diagnose_around(
    checks: impl IntoIterator<Item = &'static Check>,
    context: &Context<'_>,
    selection: &Selection,
    mut already: Vec<(CheckId, Finding)>,
) -> Diagnosis {
    let mut findings = Vec::new();
    let platform = Platform::of(context);
    for check in checks {
        if !selection.takes(check, context.purpose) {
            continue;
        }
        let known = already.extract_if(.., |(id, _)| *id == check.id);
        let mut found: Vec<Finding> = known.map(|(_, finding)| finding).collect();
        if found.is_empty() {
            found = check.run(context);
        }
        if found.is_empty() {
            // A check that is silent would pass for one that is content.
            found.push(Finding::new(Verdict::Unknown, "the check said nothing"));
        }
        findings.extend(found.into_iter().map(|mut finding| {
            platform.suit(&mut finding.fixes);
            Reported {
                check,
                finding,
                cause: None,
                origin: Origin::Node,
            }
        }));
    }
    root_cause::link(&mut findings);
    for check in (selection.rehearse.iter()).filter_map(|id| checks::find(id.0)) {
        findings.push(rehearsed(check, &findings));
    }
    // What holds no files of a node was worked out from what a tool printed.
    let printed = context.source.list("/sys/bus/pci/devices").is_err();
    if let Some(capture) = context.capture.as_ref().filter(|_| printed) {
        for judged in &mut findings {
            for evidence in &mut judged.finding.evidence {
                evidence.source = source_in(capture, &evidence.source);
            }
        }
    }
    Diagnosis {
        about: About::read(context),
        host: (context.text("/proc/sys/kernel/hostname"))
            .ok()
            .filter(|name| !name.is_empty()),
        purpose: context.purpose,
        pair: context.pair(),
        findings,
    }
}

/// Returns a rehearsed failure of a check, about the first subject that the check found something about.
fn rehearsed(check: &'static Check, found: &[Reported]) -> Reported {
    let subject = (found.iter())
        .find(|judged| judged.check.id == check.id)
        .map_or(Subject::Node, |judged| judged.finding.subject.clone());
    let summary = format!("{REHEARSAL}: as if this were not so: {}", check.title);
    Reported {
        check,
        finding: Finding::fail(summary).about(subject),
        cause: None,
        origin: Origin::Rehearsal,
    }
}

/// Returns where in a capture something stood that checks know by its path on a node.
fn source_in(capture: &Capture, path: &str) -> String {
    if !path.starts_with('/') {
        return path.to_owned();
    }
    let what = match path.strip_prefix("/sys/bus/pci/devices/") {
        Some(rest) => match rest.split_once('/') {
            Some((bdf, file)) => format!("{file} of {bdf}"),
            None => rest.to_owned(),
        },
        None if path == "/sys/bus/pci/devices" => "the PCI functions".to_owned(),
        None => {
            let name = path.rsplit('/').next();
            name.unwrap_or(path).to_owned()
        }
    };
    format!("{}: {what}", capture.file)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};
    use snapshot::assert_contains;

    use super::*;
    use crate::runner::{Scope, Unjudged};

    type Judge = fn(&Context<'_>) -> Result<Vec<Finding>, Unjudged>;

    fn check(judge: Judge) -> &'static Check {
        Box::leak(Box::new(Check {
            id: CheckId("a"),
            group: Group::Host,
            workloads: &[Workload::Nccl],
            scope: Scope::Several(judge),
            ..Check::DEFAULT
        }))
    }

    fn outcome(runs: &[Judge]) -> Outcome {
        let node = MemorySource::new();
        let inventory = Inventory::read(&node);
        let checks: Vec<&'static Check> = runs.iter().map(|run| check(*run)).collect();
        diagnose_with(checks, &Context::new(&node, &inventory), &Selection::all()).outcome()
    }

    #[test]
    fn the_worst_finding_decides() {
        let pass = |_: &Context<'_>| Ok(vec![Finding::pass("")]);
        let warn = |_: &Context<'_>| Ok(vec![Finding::warn("")]);
        let fail = |_: &Context<'_>| Ok(vec![Finding::fail("")]);
        let skip = |_: &Context<'_>| Ok(vec![Finding::skip("")]);
        let silent = |_: &Context<'_>| Ok(Vec::new());
        assert_eq!(outcome(&[pass, skip]), Outcome::Healthy);
        assert_eq!(outcome(&[pass, silent]), Outcome::Undecided);
        assert_eq!(outcome(&[silent, warn]), Outcome::Warning);
        assert_eq!(outcome(&[warn, fail, pass]), Outcome::Failure);
        assert_eq!(outcome(&[skip, skip]), Outcome::Undecided);
        assert_eq!(outcome(&[]), Outcome::Undecided);
    }

    #[test]
    fn a_rehearsal_is_a_failure_that_is_marked_in_every_report_and_changes_no_other_finding() {
        use crate::report::{html, json, junit, markdown, prometheus, text};

        let node = gdr_node::example::healthy();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory);
        let real = diagnose(&context, &Selection::all());
        let rehearsal = [CheckId("acs.path"), CheckId("gpu.driver")];
        let diagnosis = diagnose(&context, &Selection::all().rehearse(rehearsal));
        assert_eq!(diagnosis.outcome(), Outcome::Failure);
        assert_eq!(diagnosis.rehearsed(), rehearsal);
        assert_eq!(diagnosis.root_causes().len(), real.root_causes().len() + 2);
        for (found, rehearsed) in real.findings.iter().zip(&diagnosis.findings) {
            assert_eq!(found.finding, rehearsed.finding);
            assert_eq!(found.cause, rehearsed.cause);
        }
        let last = diagnosis.findings.last().unwrap();
        let first = real.findings.iter().find(|it| it.check.id == rehearsal[1]);
        assert_eq!(last.finding.subject, first.unwrap().finding.subject);

        let reports = |diagnosis| {
            let style = text::Style::default();
            [
                text::render(diagnosis, &style),
                json::render(diagnosis).unwrap(),
                markdown::render(diagnosis),
                html::render(diagnosis, None),
                junit::render(diagnosis),
                prometheus::render(diagnosis),
            ]
        };
        for (rehearsed, real) in reports(&diagnosis).iter().zip(&reports(&real)) {
            // In the head, and at each of the two.
            let marks = rehearsed.matches("REHEARSAL").count()
                + rehearsed.matches("rehearsal=\"yes\"").count();
            assert!(marks >= 2, "{rehearsed}");
            assert!(!real.contains("REHEARSAL"), "{real}");
            assert!(!real.contains("rehearsal=\"yes\""), "{real}");
        }
        let metrics = prometheus::render(&diagnosis);
        assert_contains!(metrics, "\ngdr_doctor_rehearsal 2\n");
        assert!(
            metrics.contains("check=\"acs.path\",") && metrics.contains("rehearsal=\"yes\"} 1\n"),
            "{metrics}"
        );
        let document: serde_json::Value =
            serde_json::from_str(&json::render(&diagnosis).unwrap()).unwrap();
        assert_eq!(document["rehearsal"][0], "acs.path");
    }

    #[test]
    fn a_purpose_narrows_and_a_name_overrules_it() {
        let it = check(|_| Ok(vec![Finding::skip("")]));
        let selection = Selection::all();
        assert!(selection.takes(it, Some(Workload::Nccl)));
        assert!(!selection.takes(it, Some(Workload::Gdrcopy)));
        let named = Selection::all().only([CheckId("a")]);
        assert!(named.takes(it, Some(Workload::Gdrcopy)));
        assert!(!named.clone().skip([CheckId("a")]).takes(it, None));
        assert!(!Selection::all().groups([Group::Pcie]).takes(it, None));
    }
}
