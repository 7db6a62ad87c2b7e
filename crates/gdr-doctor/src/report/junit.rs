//! A diagnosis as JUnit XML: a suite a group, a case a finding.

use std::fmt::Write;

use gdr_render::Escaped;

use crate::check::Group;
use crate::diagnosis::{Diagnosis, REHEARSAL, Reported};
use crate::finding::Verdict;

/// Renders the report as JUnit XML. A failed finding is a failure; a warning passes with its text on standard output,
/// as JUnit knows none; what is not known or does not apply is skipped.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let counts = diagnosis.counts();
    // Writing to a string never fails.
    let _ = writeln!(
        out,
        "<testsuites name=\"gdr doctor{}\" tests=\"{}\" failures=\"{}\" errors=\"0\" skipped=\"{}\">",
        if diagnosis.rehearsed().is_empty() {
            String::new()
        } else {
            format!(" ({REHEARSAL})")
        },
        diagnosis.findings.len(),
        counts.fail,
        counts.unknown + counts.skip
    );
    for group in Group::ALL {
        let found: Vec<&Reported> = (diagnosis.findings.iter())
            .filter(|judged| judged.check.group == group)
            .collect();
        if found.is_empty() {
            continue;
        }
        let count = |wanted: &[Verdict]| {
            (found.iter())
                .filter(|judged| wanted.contains(&judged.finding.verdict))
                .count()
        };
        let _ = writeln!(
            out,
            "  <testsuite name=\"{group}\" tests=\"{}\" failures=\"{}\" errors=\"0\" \
             skipped=\"{}\">",
            found.len(),
            count(&[Verdict::Fail]),
            count(&[Verdict::Unknown, Verdict::Skip])
        );
        for judged in found {
            case(&mut out, judged);
        }
        out.push_str("  </testsuite>\n");
    }
    out.push_str("</testsuites>\n");
    out
}

fn case(out: &mut String, judged: &Reported) {
    let finding = &judged.finding;
    let _ = write!(
        out,
        "    <testcase classname=\"{}\" name=\"{}\">",
        Escaped(judged.check.id.0),
        Escaped(&finding.subject.to_string())
    );
    let summary = Escaped(&finding.summary);
    let _ = match finding.verdict {
        Verdict::Fail => write!(
            out,
            "<failure message=\"{summary}\">{}</failure>",
            Escaped(&details(judged))
        ),
        Verdict::Unknown | Verdict::Skip => write!(out, "<skipped message=\"{summary}\"/>"),
        Verdict::Warn => write!(
            out,
            "<system-out>warning: {summary}\n{}</system-out>",
            Escaped(&details(judged))
        ),
        Verdict::Pass | Verdict::Info => write!(out, "<system-out>{summary}</system-out>"),
    };
    out.push_str("</testcase>\n");
}

fn details(judged: &Reported) -> String {
    let evidence = (judged.finding.evidence.iter())
        .map(|evidence| format!("{}: {}", evidence.source, evidence.value));
    let fixes = judged.finding.fixes.iter().flat_map(|fix| {
        std::iter::once(format!("fix: {}", fix.title))
            .chain(fix.actions.iter().map(|action| format!("  {action}")))
    });
    evidence.chain(fixes).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use crate::{Context, Selection, diagnose};

    #[test]
    fn a_failed_finding_is_a_failed_case() {
        let node = MemorySource::new().directory("/sys/bus/pci/devices");
        let inventory = Inventory::read(&node);
        let text = super::render(&diagnose(
            &Context::new(&node, &inventory),
            &Selection::all(),
        ));
        assert!(text.contains("<testcase classname=\"gpu.present\" name=\"this node\"><failure"));
        assert!(text.ends_with("</testsuites>\n"));
    }
}
