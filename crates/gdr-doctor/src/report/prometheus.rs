//! A diagnosis in Prometheus' text format, for node_exporter's textfile collector.

use std::fmt::Write;

use crate::diagnosis::{Diagnosis, Outcome};

/// The metrics: `gdr_doctor_outcome` (the exit status), `gdr_doctor_findings` by verdict, and
/// `gdr_doctor_finding` for every finding that something is to be done about.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    let outcome = match diagnosis.outcome() {
        Outcome::Healthy => 0,
        Outcome::Warning => 1,
        Outcome::Failure => 2,
        Outcome::Undecided => 3,
    };
    out.push_str(
        "# HELP gdr_doctor_outcome 0 healthy, 1 warning, 2 failure, 3 undecided.\n\
         # TYPE gdr_doctor_outcome gauge\n",
    );
    // Writing to a string never fails.
    let _ = writeln!(out, "gdr_doctor_outcome {outcome}");
    out.push_str(
        "# HELP gdr_doctor_findings Findings by verdict.\n# TYPE gdr_doctor_findings gauge\n",
    );
    let counts = diagnosis.counts();
    for (verdict, count) in [
        ("fail", counts.fail),
        ("warn", counts.warn),
        ("unknown", counts.unknown),
        ("info", counts.info),
        ("pass", counts.pass),
        ("skip", counts.skip),
    ] {
        let _ = writeln!(out, "gdr_doctor_findings{{verdict=\"{verdict}\"}} {count}");
    }
    out.push_str(
        "# HELP gdr_doctor_finding 1 for each thing that is wrong.\n\
         # TYPE gdr_doctor_finding gauge\n",
    );
    let mut series: Vec<String> = diagnosis
        .findings
        .iter()
        .filter(|judged| judged.finding.verdict.is_bad())
        .map(|judged| {
            format!(
                "gdr_doctor_finding{{check=\"{}\",subject=\"{}\",verdict=\"{}\"}} 1",
                label(judged.check.id.0),
                label(&judged.finding.subject.to_string()),
                judged.finding.verdict
            )
        })
        .collect();
    // A series may stand there only once.
    series.sort();
    series.dedup();
    for line in series {
        out.push_str(&line);
        out.push('\n');
    }
    out
}

/// A label's value, of which Prometheus escapes three characters.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use crate::{CheckId, Context, Selection, diagnose};

    #[test]
    fn a_failure_is_a_series() {
        let node = MemorySource::new().directory("/sys/bus/pci/devices");
        let inventory = Inventory::read(&node);
        let text = super::render(&diagnose(
            &Context::new(&node, &inventory),
            &Selection::all().only([CheckId("gpu.present")]),
        ));
        assert!(text.contains("\ngdr_doctor_outcome 2\n"), "{text}");
        assert!(
            text.contains("gdr_doctor_findings{verdict=\"fail\"} 1\n"),
            "{text}"
        );
        assert!(
            text.contains(
                "gdr_doctor_finding{check=\"gpu.present\",subject=\"this node\",verdict=\"fail\"} 1\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_label_cannot_end_itself() {
        assert_eq!(super::label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
