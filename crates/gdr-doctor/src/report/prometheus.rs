//! A diagnosis in Prometheus' text format, for node_exporter's textfile collector.

use std::collections::BTreeSet;

use gdr_render::prometheus::{Kind, Metrics, labels};

use crate::diagnosis::{Diagnosis, Origin, Outcome};

/// Renders the metrics: `gdr_doctor_outcome` (the exit status), `gdr_doctor_findings` by verdict, `gdr_doctor_finding`
/// for every finding that something is to be done about, `gdr_doctor_rehearsal` (how many of these are rehearsed and
/// not real), `gdr_doctor_info` with what the node runs, `gdr_doctor_devices` by kind, and
/// `gdr_doctor_timestamp_seconds`.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut metrics = Metrics::default();
    let outcome = match diagnosis.outcome() {
        Outcome::Healthy => 0,
        Outcome::Warning => 1,
        Outcome::Failure => 2,
        Outcome::Undecided => 3,
    };
    let help = "0 healthy, 1 warning, 2 failure, 3 undecided.";
    metrics.single("gdr_doctor_outcome", Kind::Gauge, help, outcome);
    let findings = metrics.family("gdr_doctor_findings", Kind::Gauge, "Findings by verdict.");
    let counts = diagnosis.counts();
    for (verdict, count) in [
        ("fail", counts.fail),
        ("warn", counts.warn),
        ("unknown", counts.unknown),
        ("info", counts.info),
        ("pass", counts.pass),
        ("skip", counts.skip),
    ] {
        findings.sample(&labels(&[("verdict", &verdict)]), count);
    }
    let bad = metrics.family(
        "gdr_doctor_finding",
        Kind::Gauge,
        "1 for each thing that is wrong.",
    );
    let judged = diagnosis.findings.iter();
    let judged = judged.filter(|judged| judged.finding.verdict.is_bad());
    // Two findings may have the same labels, and a series may stand there only once.
    let series: BTreeSet<String> = judged
        .map(|judged| {
            let (check, finding) = (judged.check, &judged.finding);
            let mut pairs: Vec<(&str, &dyn std::fmt::Display)> = vec![
                ("check", &check.id),
                ("subject", &finding.subject),
                ("verdict", &finding.verdict),
            ];
            if judged.origin == Origin::Rehearsal {
                pairs.push(("rehearsal", &"yes"));
            }
            labels(&pairs)
        })
        .collect();
    for labels in series {
        bad.sample(&labels, 1);
    }
    let help = "Failures that are rehearsed and not real.";
    metrics.single(
        "gdr_doctor_rehearsal",
        Kind::Gauge,
        help,
        diagnosis.rehearsed().len(),
    );
    about(&mut metrics, diagnosis);
    metrics.to_string()
}

fn about(metrics: &mut Metrics, diagnosis: &Diagnosis) {
    let about = &diagnosis.about;
    let root = match about.root {
        Some(true) => "yes",
        Some(false) => "no",
        None => "",
    };
    let known = |text: &Option<String>| text.clone().unwrap_or_default();
    let help = "1, with what made the report and what the node runs.";
    metrics.family("gdr_doctor_info", Kind::Gauge, help).sample(
        &labels(&[
            ("version", &about.gdr),
            ("host", &known(&diagnosis.host)),
            ("kernel", &known(&about.kernel)),
            ("driver", &known(&about.driver)),
            ("root", &root),
        ]),
        1,
    );
    let devices = metrics.family("gdr_doctor_devices", Kind::Gauge, "Devices by kind.");
    devices.sample(&labels(&[("kind", &"gpu")]), about.gpus.len());
    devices.sample(&labels(&[("kind", &"nic")]), about.nics.len());
    if let Some(made) = about.made {
        let help = "When the report was made, in seconds since 1970.";
        metrics.single("gdr_doctor_timestamp_seconds", Kind::Gauge, help, made.0);
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};
    use snapshot::assert_contains;

    use crate::{CheckId, Context, Selection, diagnose};

    #[test]
    fn a_failure_is_a_series() {
        let node = MemorySource::new().directory("/sys/bus/pci/devices");
        let inventory = Inventory::read(&node);
        let text = super::render(&diagnose(
            &Context::new(&node, &inventory),
            &Selection::all().only([CheckId("gpu.present")]),
        ));
        assert_contains!(text, "\ngdr_doctor_outcome 2\n");
        assert_contains!(text, "gdr_doctor_findings{verdict=\"fail\"} 1\n");
        assert_contains!(
            text,
            "gdr_doctor_finding{check=\"gpu.present\",subject=\"this node\",verdict=\"fail\"} 1\n"
        );
    }

    #[test]
    fn the_time_and_what_the_node_runs_are_metrics() {
        let node = gdr_node::example::node();
        let inventory = Inventory::read(&node);
        let context = Context::new(&node, &inventory).made(crate::Timestamp(1_795_335_300));
        let text = super::render(&diagnose(&context, &Selection::all()));
        assert_contains!(text, "\ngdr_doctor_timestamp_seconds 1795335300\n");
        assert_contains!(text, "driver=\"580.95.05 (open)\"");
        assert_contains!(text, "\ngdr_doctor_devices{kind=\"gpu\"} 8\n");
    }
}
