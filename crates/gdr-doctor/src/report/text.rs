//! A diagnosis for people: what is wrong, worst first, with its cause, its symptoms and what to
//! do; then a line a group; at last what was not checked, and why.

use crate::check::Group;
use crate::diagnosis::{Diagnosis, Outcome, Reported};
use crate::finding::{Finding, Verdict};
use crate::fix::{Fix, Shown};

use super::paragraph::Paragraph;
use super::phrases;

/// How much is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verbosity {
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
    pub detail: Verbosity,
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

    /// Returns a verdict's mark, which takes [`MARK`] columns.
    fn mark(self, verdict: Verdict) -> String {
        let (code, mark) = mark_of(verdict);
        let pad = " ".repeat(MARK.saturating_sub(mark.len()));
        format!("{}{pad}", self.paint(code, mark))
    }
}

/// The columns of a mark with a blank after it.
const MARK: usize = 5;

const fn mark_of(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Fail => ("31;1", "[x]"),
        Verdict::Warn => ("33;1", "[!]"),
        Verdict::Unknown => ("35", "[?]"),
        Verdict::Info => ("36", "[i]"),
        Verdict::Pass => ("32", "[ok]"),
        Verdict::Skip => ("2", "[-]"),
    }
}

/// Renders the report as text, of lines of at most 100 columns but for command lines, paths and what was read.
pub fn render(diagnosis: &Diagnosis, style: &Style) -> String {
    let mut out = String::new();
    headline(&mut out, diagnosis, *style);
    for (index, judged) in diagnosis.root_causes() {
        problem(&mut out, diagnosis, index, judged, *style);
    }
    match style.detail {
        Verbosity::Quiet => return out,
        Verbosity::Normal => {
            groups(&mut out, diagnosis, *style);
            not_known(&mut out, diagnosis, *style);
        }
        Verbosity::Full => {
            every_finding(&mut out, diagnosis, *style);
            not_known(&mut out, diagnosis, *style);
        }
    }
    legend(&mut out, *style);
    out
}

/// Returns a text of the node without characters that a terminal would act on.
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

fn put_paragraph(out: &mut String, paragraph: &Paragraph, style: Style) {
    for line in paragraph.lines(|color, text| style.paint(color, text)) {
        *out += &format!("{line}\n");
    }
}

fn headline(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    let color = match diagnosis.outcome() {
        Outcome::Healthy => "32;1",
        Outcome::Warning => "33;1",
        Outcome::Failure => "31;1",
        Outcome::Undecided => "35;1",
    };
    let host = diagnosis.host.as_ref();
    let host = host.map_or(String::new(), |host| format!("{}:", plain(host)));
    let words = phrases::headline(diagnosis);
    let first = Paragraph::default().text("", &host).text(color, &words);
    put_paragraph(out, &first, style);
    *out += &format!("{}\n", phrases::counts(diagnosis.counts()));
    for line in diagnosis.about.lines() {
        let line = Paragraph::default().text("2", &plain(&line));
        put_paragraph(out, &line, style);
    }
}

fn problem(out: &mut String, diagnosis: &Diagnosis, index: usize, judged: &Reported, style: Style) {
    let finding = &judged.finding;
    out.push('\n');
    let first = Paragraph::default()
        .mark(&style.mark(finding.verdict), MARK)
        .text("1", &format!("{}:", plain(&finding.subject.to_string())))
        .text("", &plain(&finding.summary))
        .text("2", &format!("({})", judged.check.id));
    put_paragraph(out, &first, style);
    evidence(out, finding);
    for fix in &finding.fixes {
        remedy(out, fix, style);
    }
    let symptoms = diagnosis.symptoms(index);
    if symptoms.is_empty() {
        return;
    }
    *out += &format!("     {}:\n", phrases::follow(symptoms.len()));
    for symptom in symptoms {
        let line = Paragraph::new("       ")
            .mark(&style.mark(symptom.finding.verdict), MARK)
            .text("", &plain(&format!("{}:", symptom.finding.subject)))
            .text("", &plain(&symptom.finding.summary))
            .text("", &format!("({})", symptom.check.id));
        put_paragraph(out, &line, style);
    }
}

fn evidence(out: &mut String, finding: &Finding) {
    for evidence in &finding.evidence {
        let source = plain(&evidence.source);
        if evidence.value.contains('\n') {
            let value = plain(&evidence.value).replace('\n', "\n         ");
            *out += &format!("     {source}: {value}\n");
        } else {
            let text = format!("{source}: {}", plain(&evidence.value));
            let line = Paragraph::new("     ").text("", &text);
            for (number, line) in line.lines(|_, text| text.to_owned()).iter().enumerate() {
                let hang = if number == 0 { "" } else { "    " };
                *out += &format!("{hang}{line}\n");
            }
        }
    }
}

fn remedy(out: &mut String, fix: &Fix, style: Style) {
    let title = Paragraph::new("     fix: ")
        .text("", &fix.title)
        .text("", &format!("({})", phrases::terms(fix)));
    put_paragraph(out, &title, style);
    for action in &fix.actions {
        match action.shown() {
            // A command is copied from here: it is never broken.
            Shown::Command(line) => {
                let line = plain(&line).replace('\n', "\n            ");
                *out += &format!("          $ {line}\n");
            }
            Shown::Prose(text) => {
                let text = Paragraph::new("          ").text("", &plain(&text));
                put_paragraph(out, &text, style);
            }
        }
    }
    if let Some(caution) = &fix.caution {
        let caution = Paragraph::new("          note: ").text("", caution);
        put_paragraph(out, &caution, style);
    }
}

fn groups(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    out.push('\n');
    for (group, counts) in diagnosis.groups() {
        *out += &format!(
            "{}{:<30} {} fine, {} wrong, {} not known\n",
            style.mark(counts.verdict()),
            group.title(),
            counts.fine(),
            counts.fail + counts.warn,
            counts.unknown
        );
    }
}

fn not_known(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    let lines = phrases::not_known(diagnosis);
    if lines.is_empty() {
        return;
    }
    out.push_str("\nNot known:\n");
    for line in lines {
        let line = Paragraph::new("  ").text("", &plain(&line));
        put_paragraph(out, &line, style);
    }
}

fn legend(out: &mut String, style: Style) {
    let marks = [
        (Verdict::Fail, "failure"),
        (Verdict::Warn, "warning"),
        (Verdict::Unknown, "not known"),
        (Verdict::Info, "worth knowing"),
        (Verdict::Pass, "fine"),
        (Verdict::Skip, "does not apply"),
    ];
    let marks: Vec<String> = (marks.iter())
        .map(|(verdict, means)| format!("{} {means}", mark_of(*verdict).1))
        .collect();
    *out += &format!("\n{}\n", style.paint("2", &marks.join("  ")));
}

fn every_finding(out: &mut String, diagnosis: &Diagnosis, style: Style) {
    for (group, _) in diagnosis.groups() {
        *out += &format!("\n{}\n", style.paint("1", group.title()));
        for judged in of_group(diagnosis, group) {
            let line = Paragraph::new("  ")
                .mark(&style.mark(judged.finding.verdict), MARK)
                .text("", &format!("{}", judged.check.id))
                .text("", &plain(&format!("{}:", judged.finding.subject)))
                .text("", &plain(&judged.finding.summary));
            put_paragraph(out, &line, style);
            evidence(out, &judged.finding);
        }
    }
}

fn of_group(diagnosis: &Diagnosis, group: Group) -> impl Iterator<Item = &Reported> {
    (diagnosis.findings.iter()).filter(move |judged| judged.check.group == group)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};
    use snapshot::assert_contains;

    use super::*;
    use crate::{Context, Selection, diagnose};

    #[test]
    fn nothing_of_a_capture_reaches_the_terminal_as_a_command() {
        let node = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .file("/proc/sys/kernel/hostname", "n1\u{1b}]0;x\u{7}\n");
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
        for detail in [Verbosity::Normal, Verbosity::Full] {
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
            text.starts_with("GPUDirect RDMA cannot work here: there is no NVIDIA GPU."),
            "{text}"
        );
        assert_contains!(text, "[x]  this node: there is no NVIDIA GPU");
        assert_contains!(text, "fix: Make a GPU visible (as root");
        assert!(!text.contains('\x1b'), "{text}");
    }
}
