//! A diagnosis for people: what is wrong, worst first, with its cause, its symptoms and what to
//! do; then a line a group; at last what was not checked, and why.

use std::fmt::Write;

use crate::check::Group;
use crate::diagnosis::{Diagnosis, Judged, Outcome};
use crate::finding::{Finding, Verdict};
use crate::fix::Fix;

use super::words;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Only what is wrong.
    Quiet,
    /// What is wrong, and a line a group.
    #[default]
    Normal,
    /// Every finding with its evidence.
    Full,
}

/// Whether escape sequences may be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Paint {
    /// They may not.
    #[default]
    Plain,
    /// ANSI colours.
    Ansi,
}

/// How a text report looks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Style {
    /// How much is said.
    pub detail: Detail,
    /// In colour or not.
    pub paint: Paint,
}

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        match self.paint {
            Paint::Plain => text.to_owned(),
            Paint::Ansi => format!("\x1b[{code}m{text}\x1b[0m"),
        }
    }

    fn mark(self, verdict: Verdict) -> String {
        let (code, mark) = match verdict {
            Verdict::Fail => ("31;1", "[x]"),
            Verdict::Warn => ("33;1", "[!]"),
            Verdict::Unknown => ("35", "[?]"),
            Verdict::Info => ("36", "[i]"),
            Verdict::Pass => ("32", "[ok]"),
            Verdict::Skip => ("2", "[-]"),
        };
        self.paint(code, mark)
    }
}

/// The report as text.
pub fn render(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut out = String::new();
    headline(&mut out, diagnosis, *style);
    for (index, judged) in diagnosis.root_causes() {
        problem(&mut out, diagnosis, index, judged, *style);
    }
    match style.detail {
        Detail::Quiet => {}
        Detail::Normal => {
            groups(&mut out, diagnosis, *style);
            not_checked(&mut out, diagnosis);
        }
        Detail::Full => every_finding(&mut out, diagnosis, *style),
    }
    out
}

/// A text of the node without characters that a terminal would act on.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| {
            if c.is_control() && c != '\n' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}

fn put(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = out.write_fmt(line);
    out.push('\n');
}

fn headline(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    let code = match diagnosis.outcome() {
        Outcome::Healthy => "32;1",
        Outcome::Warning => "33;1",
        Outcome::Failure => "31;1",
        Outcome::Undecided => "35;1",
    };
    let words = words::outcome(diagnosis.outcome());
    let host = diagnosis
        .host
        .as_ref()
        .map_or(String::new(), |host| format!("{}: ", plain(host)));
    put(out, format_args!("{host}{}", style.paint(code, words)));
    put(out, format_args!("{}", words::counts(diagnosis.counts())));
}

fn problem(out: &mut String, diagnosis: &Diagnosis, index: usize, judged: &Judged, style: Style) {
    let finding = &judged.finding;
    out.push('\n');
    put(
        out,
        format_args!(
            "{} {}: {}  {}",
            style.mark(finding.verdict),
            style.paint("1", &plain(&finding.subject.to_string())),
            plain(&finding.summary),
            style.paint("2", &format!("({})", judged.check.id)),
        ),
    );
    evidence(out, finding);
    for fix in &finding.fixes {
        remedy(out, fix);
    }
    let symptoms = diagnosis.symptoms(index);
    if symptoms.is_empty() {
        return;
    }
    put(out, format_args!("    {}:", words::follow(symptoms.len())));
    for symptom in symptoms {
        put(
            out,
            format_args!(
                "      {} {}: {}  ({})",
                style.mark(symptom.finding.verdict),
                plain(&symptom.finding.subject.to_string()),
                plain(&symptom.finding.summary),
                symptom.check.id
            ),
        );
    }
}

fn evidence(out: &mut String, finding: &Finding) {
    for evidence in &finding.evidence {
        let value = plain(&evidence.value).replace('\n', "\n        ");
        put(
            out,
            format_args!("    {}: {value}", plain(&evidence.source)),
        );
    }
}

fn remedy(out: &mut String, fix: &Fix) {
    put(
        out,
        format_args!("    fix: {} ({})", fix.title, words::terms(fix)),
    );
    for action in &fix.actions {
        let text = plain(&action.to_string()).replace('\n', "\n         ");
        put(out, format_args!("         {text}"));
    }
    if let Some(caution) = &fix.caution {
        put(out, format_args!("         mind: {caution}"));
    }
}

fn groups(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    out.push('\n');
    for group in Group::ALL {
        let found: Vec<&Judged> = of_group(diagnosis, group).collect();
        let Some(worst) = found.iter().map(|judged| judged.finding.verdict).max() else {
            continue;
        };
        let count = |wanted: &[Verdict]| {
            found
                .iter()
                .filter(|judged| wanted.contains(&judged.finding.verdict))
                .count()
        };
        put(
            out,
            format_args!(
                "{:<4} {:<30} {} fine, {} wrong, {} not known",
                style.mark(worst),
                group.title(),
                count(&[Verdict::Pass, Verdict::Info]),
                count(&[Verdict::Warn, Verdict::Fail]),
                count(&[Verdict::Unknown]),
            ),
        );
    }
}

fn not_checked(out: &mut String, diagnosis: &Diagnosis) {
    let unknown: Vec<&Judged> = (diagnosis.findings.iter())
        .filter(|judged| judged.finding.verdict == Verdict::Unknown)
        .collect();
    if unknown.is_empty() {
        return;
    }
    out.push_str("\nNot checked:\n");
    for judged in unknown {
        put(
            out,
            format_args!(
                "  {}: {}: {}",
                judged.check.id,
                plain(&judged.finding.subject.to_string()),
                plain(&judged.finding.summary)
            ),
        );
    }
}

fn every_finding(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    for group in Group::ALL {
        let mut found = of_group(diagnosis, group).peekable();
        if found.peek().is_none() {
            continue;
        }
        put(out, format_args!("\n{}", style.paint("1", group.title())));
        for judged in found {
            put(
                out,
                format_args!(
                    "  {} {}  {}: {}",
                    style.mark(judged.finding.verdict),
                    judged.check.id,
                    plain(&judged.finding.subject.to_string()),
                    plain(&judged.finding.summary)
                ),
            );
            evidence(out, &judged.finding);
        }
    }
}

fn of_group(diagnosis: &Diagnosis, group: Group) -> impl Iterator<Item = &Judged> {
    (diagnosis.findings.iter()).filter(move |judged| judged.check.group == group)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use super::*;
    use crate::{Context, Selection, diagnose};

    #[test]
    fn nothing_of_a_capture_reaches_the_terminal_as_a_command() {
        let node = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .file("/proc/sys/kernel/hostname", "n1\u{1b}]0;x\u{7}\n");
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
        for detail in [Detail::Normal, Detail::Full] {
            let paint = Paint::Plain;
            let text = render(&diagnosis, &Style { detail, paint });
            assert!(text.starts_with("n1\u{fffd}]0;x\u{fffd}: "), "{text}");
            assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
        }
    }

    #[test]
    fn the_verdict_comes_first_and_the_fix_is_there() {
        let node = MemorySource::new().directory("/sys/bus/pci/devices");
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(
            &Context::new(&node, &inventory),
            &Selection::all().only([crate::CheckId("gpu.present")]),
        );
        let text = render(&diagnosis, &Style::default());
        assert!(
            text.starts_with("GPUDirect RDMA does not work here"),
            "{text}"
        );
        assert!(
            text.contains("[x] this node: there is no NVIDIA GPU"),
            "{text}"
        );
        assert!(text.contains("fix: Make a GPU visible (as root"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
}
