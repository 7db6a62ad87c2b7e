//! Which fixes of a diagnosis to carry out.

use crate::check::CheckId;
use crate::diagnosis::Diagnosis;
use crate::finding::{Subject, Verdict};
use crate::fix::{Action, Fix};

/// What is to be done about one finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The check that found it.
    pub check: CheckId,
    /// How bad it is.
    pub verdict: Verdict,
    /// What it is about.
    pub subject: Subject,
    /// What was found.
    pub summary: String,
    /// The fixes that can be carried out: for each time that one lasts the best.
    pub fixes: Vec<Fix>,
    /// The fixes that are left to people.
    pub others: Vec<Fix>,
}

/// What is to be done, in the order of concern.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// The node's name, where it is known.
    pub host: Option<String>,
    /// What is to be done about each finding.
    pub steps: Vec<Step>,
}

impl Plan {
    /// A plan for the root causes of a diagnosis, or of those that these checks found. An action
    /// that several findings ask for is done once.
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
                if !fix.actions.is_empty() {
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

    /// Everything that can be carried out, in order.
    pub fn actions(&self) -> impl Iterator<Item = &Action> {
        (self.steps.iter())
            .flat_map(|step| &step.fixes)
            .flat_map(|fix| &fix.actions)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::check::{Check, Documentation, Group};
    use crate::diagnosis::Judged;
    use crate::finding::Finding;

    /// A diagnosis of these findings.
    pub(in crate::remedy) fn diagnosis(findings: Vec<Finding>) -> Diagnosis {
        static CHECK: Check = Check {
            id: CheckId("acs.path"),
            group: Group::Topology,
            title: "",
            documentation: Documentation {
                means: "",
                reads: "",
                judges: "",
                sources: &[],
            },
            purposes: &[],
            symptom_of: &[],
            run: |_| Vec::new(),
        };
        Diagnosis {
            host: Some("n1".into()),
            purpose: None,
            findings: findings
                .into_iter()
                .map(|finding| Judged {
                    check: &CHECK,
                    finding,
                    cause: None,
                })
                .collect(),
        }
    }

    fn load(module: &str) -> Action {
        Action::LoadModule {
            module: module.into(),
        }
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
                fixes(Finding::warn(Subject::Node, "a")),
                fixes(Finding::fail(Subject::Node, "b")),
                Finding::fail(Subject::Node, "nothing helps"),
                Finding::pass(Subject::Node, "fine"),
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
}
