//! Findings as lines of text.

use gdr_doctor::{Diagnosis, Reported};

/// Returns one line a finding of those that are wanted.
pub(crate) fn lines(diagnosis: &Diagnosis, wanted: impl Fn(&Reported) -> bool) -> Vec<String> {
    let wanted = diagnosis.findings.iter().filter(|judged| wanted(judged));
    let line = |judged: &Reported| {
        let (check, finding) = (judged.check.id, &judged.finding);
        let (verdict, subject) = (finding.verdict, &finding.subject);
        format!("{verdict} {check} {subject}: {}", finding.summary)
    };
    wanted.map(line).collect()
}

/// Returns one line a finding that something is to be done about.
pub(crate) fn bad(diagnosis: &Diagnosis) -> Vec<String> {
    lines(diagnosis, |judged| judged.finding.verdict.is_bad())
}
