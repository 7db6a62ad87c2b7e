//! The plan of fixes for a diagnosis.

use crate::check::CheckId;
use crate::diagnosis::Diagnosis;
use crate::finding::{Subject, Verdict};
use crate::fix::{Action, Fix};

/// The fixes of one finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The check that found it.
    pub check: CheckId,
    /// Its verdict.
    pub verdict: Verdict,
    /// Its subject.
    pub subject: Subject,
    /// Its summary.
    pub summary: String,
    /// The fixes that can be applied: the best for each persistence.
    pub fixes: Vec<Fix>,
    /// The fixes that have to be done by hand.
    pub others: Vec<Fix>,
    /// Whether an earlier step has the same actions.
    pub shared: bool,
}

/// The steps of a plan, in the order of severity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The node's name, if it is known.
    pub host: Option<String>,
    /// The step for each finding.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Makes a plan for the root causes of a diagnosis, or only for the causes of some checks. An action that several
    /// findings need is in the plan once.
    pub fn new(diagnosis: &Diagnosis, only: &[CheckId]) -> Self {
        let mut seen: Vec<Action> = Vec::new();
        let mut steps = Vec::new();
        for (_, judged) in diagnosis.root_causes() {
            if !only.is_empty() && !only.contains(&judged.check.id) {
                continue;
            }
            let finding = &judged.finding;
            let mut step = Step {
                check: judged.check.id,
                verdict: finding.verdict,
                subject: finding.subject.clone(),
                summary: finding.summary.clone(),
                fixes: Vec::new(),
                others: Vec::new(),
                shared: false,
            };
            let mut lasting = Vec::new();
            for fix in &finding.fixes {
                let able = !fix.actions.is_empty()
                    && fix.actions.iter().all(|action| action.permitted().is_ok());
                if !able || lasting.contains(&fix.persistence) {
                    step.others.push(fix.clone());
                    continue;
                }
                lasting.push(fix.persistence);
                let mut fix = fix.clone();
                fix.actions.retain(|action| !seen.contains(action));
                seen.extend(fix.actions.iter().cloned());
                if fix.actions.is_empty() {
                    step.shared = true;
                } else {
                    step.fixes.push(fix);
                }
            }
            if !step.fixes.is_empty() || !step.others.is_empty() {
                steps.push(step);
            }
        }
        Self {
            host: diagnosis.host.clone(),
            steps,
        }
    }

    /// Returns the findings without a fix that can be applied.
    pub fn left(&self) -> impl Iterator<Item = &Step> {
        (self.steps.iter()).filter(|step| step.fixes.is_empty() && !step.shared)
    }

    /// Returns all actions that can be applied, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        (self.steps.iter())
            .flat_map(|step| &step.fixes)
            .flat_map(|fix| &fix.actions)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::check::{Check, Group};
    use crate::diagnosis::{Origin, Reported};
    use crate::finding::Finding;

    /// Returns a diagnosis of these findings.
    pub(in crate::fix) fn diagnosis(findings: Vec<Finding>) -> Diagnosis {
        static CHECK: Check = Check {
            id: CheckId("acs.path"),
            group: Group::Topology,
            ..Check::DEFAULT
        };
        Diagnosis {
            about: crate::about::About::default(),
            pair: None,
            host: Some("n1".into()),
            purpose: None,
            findings: findings
                .into_iter()
                .map(|finding| Reported {
                    check: &CHECK,
                    finding,
                    cause: None,
                    origin: Origin::Node,
                })
                .collect(),
        }
    }

    fn load(module: &str) -> Action {
        Action::load(module)
    }

    #[test]
    fn the_best_that_can_be_done_is_done_once() {
        let fixes = |finding: Finding| {
            finding
                .fix(Fix::manual("by hand", "reseat"))
                .fix(Fix::now("load", load("nvidia_peermem")))
                .fix(Fix::now("load the other", load("other")))
        };
        let plan = Plan::new(
            &diagnosis(vec![
                fixes(Finding::warn("a")),
                fixes(Finding::fail("b")),
                Finding::fail("nothing helps"),
                Finding::pass("fine"),
            ]),
            &[],
        );
        assert_eq!(plan.steps.len(), 2);
        assert_eq!(plan.steps[0].summary, "b");
        assert_eq!(plan.steps[0].others.len(), 2);
        let actions: Vec<&Action> = plan.actions().collect();
        assert_eq!(actions, [&load("nvidia_peermem")]);
        assert!(Plan::new(&diagnosis(vec![]), &[]).steps.is_empty());
    }

    #[test]
    fn what_only_people_can_do_is_left_and_what_an_earlier_step_does_is_not() {
        let load = || {
            let module = "nvidia_peermem".to_owned();
            Fix::now("Load it", Action::load(module))
        };
        let manual = || Fix::manual("Seat the card", "seat the card");
        let plan = Plan::new(
            &diagnosis(vec![
                Finding::fail("a").fix(load()),
                Finding::warn("b").fix(load()).fix(manual()),
                Finding::fail("c")
                    .about(Subject::Named("x".into()))
                    .fix(manual()),
            ]),
            &[],
        );
        let left: Vec<&str> = plan.left().map(|step| step.summary.as_str()).collect();
        assert_eq!(left, ["c"]);
        assert_eq!(plan.actions().count(), 1);
    }
}
