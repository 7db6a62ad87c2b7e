//! A diagnosis in Prometheus' text format, for node_exporter's textfile collector.

use std::fmt::Write;

use crate::diagnosis::{Diagnosis, Origin, Outcome};

/// The metrics: `gdr_doctor_outcome` (the exit status), `gdr_doctor_findings` by verdict,
/// `gdr_doctor_finding` for every finding that something is to be done about, `gdr_doctor_rehearsal`
/// (how many of these are rehearsed and not real), `gdr_doctor_info` with what the node runs, `gdr_doctor_devices` by kind, and `gdr_doctor_timestamp_seconds`.
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
                "gdr_doctor_finding{{check=\"{}\",subject=\"{}\",verdict=\"{}\"{}}} 1",
                label(judged.check.id.0),
                label(&judged.finding.subject.to_string()),
                judged.finding.verdict,
                match judged.origin {
                    Origin::Node => "",
                    Origin::Rehearsal => ",rehearsal=\"yes\"",
                }
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
    // Writing to a string never fails.
    let _ = writeln!(
        out,
        "# HELP gdr_doctor_rehearsal Failures that are rehearsed and not real.\n\
         # TYPE gdr_doctor_rehearsal gauge\n\
         gdr_doctor_rehearsal {}",
        diagnosis.rehearsed().len()
    );
    about(&mut out, diagnosis);
    out
}

fn about(out: &mut String, diagnosis: &Diagnosis) {
    let about = &diagnosis.about;
    let known = |text: &Option<String>| label(text.as_deref().unwrap_or_default());
    let root = match about.root {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    };
    // Writing to a string never fails.
    let _ = writeln!(
        out,
        "# HELP gdr_doctor_info 1, with what made the report and what the node runs.\n\
         # TYPE gdr_doctor_info gauge\n\
         gdr_doctor_info{{version=\"{}\",host=\"{}\",kernel=\"{}\",driver=\"{}\",root=\"{root}\"}} 1",
        label(about.gdr),
        known(&diagnosis.host),
        known(&about.kernel),
        known(&about.driver),
    );
    let _ = writeln!(
        out,
        "# HELP gdr_doctor_devices Devices by kind.\n# TYPE gdr_doctor_devices gauge\n\
         gdr_doctor_devices{{kind=\"gpu\"}} {}\ngdr_doctor_devices{{kind=\"nic\"}} {}",
        about.gpus.len(),
        about.nics.len()
    );
    if let Some(made) = about.made {
        let _ = writeln!(
            out,
            "# HELP gdr_doctor_timestamp_seconds When the report was made, in seconds since 1970.\n\
             # TYPE gdr_doctor_timestamp_seconds gauge\n\
             gdr_doctor_timestamp_seconds {}",
            made.0
        );
    }
}

/// Writes a label's value, with the three characters escaped that Prometheus escapes.
pub fn label(text: &str) -> String {
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
    fn the_time_and_what_the_node_runs_are_metrics() {
        let node = gdr_node::example::node();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory).made(crate::Timestamp(1_795_335_300));
        let text = super::render(&diagnose(&context, &Selection::all()));
        assert!(
            text.contains("\ngdr_doctor_timestamp_seconds 1795335300\n"),
            "{text}"
        );
        assert!(text.contains("driver=\"580.95.05 (open)\""), "{text}");
        assert!(
            text.contains("\ngdr_doctor_devices{kind=\"gpu\"} 8\n"),
            "{text}"
        );
    }

    #[test]
    fn a_label_cannot_end_itself() {
        assert_eq!(super::label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
