//! Links symptoms to their causes.

use crate::check::CheckId;
use crate::diagnosis::Reported;

/// Sets the cause of every bad finding that another one explains: the worst bad finding about a
/// related subject, from a check that the check or the finding names as a cause.
pub(crate) fn link(findings: &mut [Reported]) {
    for symptom in 0..findings.len() {
        if !findings[symptom].finding.verdict.is_bad() {
            continue;
        }
        let cause = (0..findings.len())
            .filter(|&cause| explains(findings, cause, symptom) && !leads(findings, cause, symptom))
            .max_by_key(|&cause| {
                // The first of two that are equally bad.
                (findings[cause].finding.verdict, std::cmp::Reverse(cause))
            });
        findings[symptom].cause = cause;
    }
}

fn explains(findings: &[Reported], cause: usize, symptom: usize) -> bool {
    let (cause, symptom) = (&findings[cause], &findings[symptom]);
    let names = |id: CheckId| {
        symptom.check.symptom_of.contains(&id.0) || symptom.finding.symptom_of.contains(&id)
    };
    cause.finding.verdict.is_bad()
        && cause.check.id != symptom.check.id
        && names(cause.check.id)
        && cause.finding.subject.touches(&symptom.finding.subject)
}

/// Returns whether the chain of causes from `from` contains `to`.
fn leads(findings: &[Reported], from: usize, to: usize) -> bool {
    let mut at = Some(from);
    while let Some(index) = at {
        if index == to {
            return true;
        }
        at = findings[index].cause;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::Check;
    use crate::diagnosis::Origin;
    use crate::finding::{Finding, Subject};

    fn judged(id: &'static str, of: &'static [&'static str], finding: Finding) -> Reported {
        let check = Box::leak(Box::new(Check {
            id: CheckId(id),
            symptom_of: of,
            ..Check::DEFAULT
        }));
        Reported {
            check,
            finding,
            cause: None,
            origin: Origin::Node,
        }
    }

    fn named(name: &str) -> Subject {
        Subject::Named(name.into())
    }

    #[test]
    fn a_symptom_goes_under_the_worst_cause_about_the_same_thing() {
        const A: &[&str] = &["a", "b"];
        let mut findings = vec![
            judged("a", &[], Finding::warn("").about(named("x"))),
            judged("b", &[], Finding::fail("").about(named("x"))),
            judged("b", &[], Finding::fail("").about(named("y"))),
            judged("c", A, Finding::fail("").about(named("x"))),
            judged("c", A, Finding::pass("").about(named("y"))),
            judged("c", A, Finding::warn("").about(named("z"))),
        ];
        link(&mut findings);
        let causes: Vec<Option<usize>> = findings.iter().map(|it| it.cause).collect();
        assert_eq!(causes, [None, None, None, Some(1), None, None]);
    }

    #[test]
    fn two_that_name_each_other_do_not_vanish_both() {
        const A: &[&str] = &["a"];
        const B: &[&str] = &["b"];
        let mut findings = vec![
            judged("a", B, Finding::fail("")),
            judged("b", A, Finding::fail("")),
        ];
        link(&mut findings);
        assert_eq!(findings[0].cause, Some(1));
        assert_eq!(findings[1].cause, None);
    }
}
