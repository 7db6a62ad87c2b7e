//! A diagnosis as JSON: schema `gdr.doctor`.

use serde::Serialize;

use super::phrases;
use crate::about::About;
use crate::check::{CheckId, Group};
use crate::diagnosis::{Counts, Diagnosis, Outcome};
use crate::finding::{Evidence, Subject, Verdict};
use crate::fix::Fix;

/// The version of the layout. It grows when a field changes its meaning or goes away; new fields
/// may appear without.
pub const VERSION: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    version: u32,
    gdr: &'static str,
    host: Option<&'a str>,
    purpose: Option<&'static str>,
    /// The GPU and the NIC that alone were judged.
    pair: Option<[&'a str; 2]>,
    about: &'a About,
    /// The checks whose failure is rehearsed; empty otherwise.
    rehearsal: Vec<CheckId>,
    outcome: Outcome,
    /// What it comes to, in a sentence.
    headline: String,
    counts: Counts,
    groups: Vec<GroupCounts>,
    findings: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct GroupCounts {
    group: Group,
    counts: Counts,
}

#[derive(Serialize)]
struct Item<'a> {
    check: CheckId,
    group: Group,
    title: &'static str,
    verdict: Verdict,
    subject: &'a Subject,
    summary: &'a str,
    /// Why it is unknown, where something was not read.
    absence: Option<&'static str>,
    evidence: &'a [Evidence],
    fixes: Vec<Remedy<'a>>,
    /// The place in `findings` of what explains this one.
    cause: Option<usize>,
}

#[derive(Serialize)]
struct Remedy<'a> {
    #[serde(flatten)]
    fix: &'a Fix,
    /// The actions as command lines or words, in their order.
    commands: Vec<String>,
}

/// Renders the diagnosis as one JSON object, indented, with a line feed at its end.
///
/// # Errors
///
/// None in practice: everything in it can be written as JSON.
pub fn render(diagnosis: &Diagnosis) -> serde_json::Result<String> {
    let report = Report {
        schema: "gdr.doctor",
        version: VERSION,
        gdr: env!("CARGO_PKG_VERSION"),
        host: diagnosis.host.as_deref(),
        purpose: diagnosis.purpose.map(|purpose| purpose.name()),
        pair: (diagnosis.pair.as_ref()).map(|(gpu, nic)| [gpu.as_str(), nic.as_str()]),
        about: &diagnosis.about,
        rehearsal: diagnosis.rehearsed(),
        outcome: diagnosis.outcome(),
        headline: phrases::headline(diagnosis),
        counts: diagnosis.counts(),
        groups: (diagnosis.groups().into_iter())
            .map(|(group, counts)| GroupCounts { group, counts })
            .collect(),
        findings: diagnosis
            .findings
            .iter()
            .map(|judged| Item {
                check: judged.check.id,
                group: judged.check.group,
                title: judged.check.title,
                verdict: judged.finding.verdict,
                subject: &judged.finding.subject,
                summary: &judged.finding.summary,
                absence: judged.finding.absence.map(gdr_node::Absence::name),
                evidence: &judged.finding.evidence,
                fixes: judged
                    .finding
                    .fixes
                    .iter()
                    .map(|fix| Remedy {
                        fix,
                        commands: fix.actions.iter().map(ToString::to_string).collect(),
                    })
                    .collect(),
                cause: judged.cause,
            })
            .collect(),
    };
    serde_json::to_string_pretty(&report).map(|text| text + "\n")
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use crate::{Context, Selection, diagnose};

    #[test]
    fn the_layout_is_named_and_the_same_node_gives_the_same_bytes() {
        let node = MemorySource::new().file("/proc/sys/kernel/hostname", "n1\n");
        let inventory = Inventory::read(&node);
        let write = || {
            let context = Context::new(&node, &inventory);
            super::render(&diagnose(&context, &Selection::all())).unwrap()
        };
        let text = write();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], "gdr.doctor");
        assert_eq!(value["version"], 1);
        assert_eq!(value["host"], "n1");
        assert!(value["findings"][0]["check"].is_string());
        assert_eq!(text, write());
    }
}
