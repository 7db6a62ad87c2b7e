//! A diagnosis as Markdown, for tickets and chats.

use crate::check::Group;
use crate::diagnosis::{Diagnosis, Reported};
use crate::finding::Verdict;
use crate::fix::Shown;

use super::phrases::{self, Span};

/// Renders the report as Markdown.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    let host = phrases::node(diagnosis);
    out += &format!("# GPUDirect RDMA on {}\n\n", plain(host));
    out += &format!("**{}**\n", plain(&phrases::headline(diagnosis)));
    out += &format!("{}.\n\n", phrases::counts(diagnosis.counts()));
    for about in diagnosis.about.lines() {
        out += &format!("- {}\n", plain(&about));
    }
    groups(&mut out, diagnosis);
    for (index, judged) in diagnosis.root_causes() {
        problem(&mut out, diagnosis, index, judged);
    }
    everything(&mut out, diagnosis);
    out
}

fn problem(out: &mut String, diagnosis: &Diagnosis, index: usize, judged: &Reported) {
    let finding = &judged.finding;
    *out += &format!(
        "## {}: {}: {}\n\n",
        finding.verdict,
        plain(&finding.subject.to_string()),
        plain(&finding.summary)
    );
    *out += &format!("Check `{}`.\n\n", judged.check.id);
    for evidence in &finding.evidence {
        *out += &format!("- {}: {}\n", plain(&evidence.source), code(&evidence.value));
    }
    if !finding.evidence.is_empty() {
        out.push('\n');
    }
    for fix in &finding.fixes {
        *out += &format!("**{}** ({})\n\n", plain(&fix.title), phrases::terms(fix));
        for step in phrases::steps(fix) {
            match step {
                Shown::Command(lines) => *out += &format!("{}\n\n", block(&lines)),
                Shown::Prose(text) => *out += &format!("{}\n\n", prose(&text)),
            }
        }
        if let Some(caution) = &fix.caution {
            *out += &format!("Note: {}\n\n", prose(caution));
        }
    }
    let symptoms = diagnosis.symptoms(index);
    if !symptoms.is_empty() {
        *out += &format!("{}:\n\n", phrases::follow(symptoms.len()));
        for symptom in symptoms {
            *out += &format!(
                "- {} `{}` {}: {}\n",
                symptom.finding.verdict,
                symptom.check.id,
                plain(&symptom.finding.subject.to_string()),
                plain(&symptom.finding.summary)
            );
        }
        out.push('\n');
    }
}

fn groups(out: &mut String, diagnosis: &Diagnosis) {
    out.push_str("\n| group | fine | wrong | not known |\n|---|---|---|---|\n");
    for (group, counts) in diagnosis.groups() {
        *out += &format!(
            "| {} | {} | {} | {} |\n",
            group.title(),
            counts.fine(),
            counts.fail + counts.warn,
            counts.unknown
        );
    }
    out.push('\n');
    let lines = phrases::not_known(diagnosis);
    if lines.is_empty() {
        return;
    }
    out.push_str("Not known:\n\n");
    for text in lines {
        *out += &format!("- {}\n", plain(&text));
    }
    out.push('\n');
}

fn everything(out: &mut String, diagnosis: &Diagnosis) {
    for group in Group::ALL {
        let found: Vec<&Reported> = (diagnosis.findings.iter())
            .filter(|judged| judged.check.group == group)
            .filter(|judged| judged.finding.verdict != Verdict::Skip)
            .collect();
        if found.is_empty() {
            continue;
        }
        *out += &format!(
            "<details><summary>{}</summary>\n\n| verdict | check | of | finding |\n|---|---|---|---|\n",
            group.title()
        );
        for judged in found {
            *out += &format!(
                "| {} | `{}` | {} | {} |\n",
                judged.finding.verdict,
                judged.check.id,
                plain(&judged.finding.subject.to_string()),
                plain(&judged.finding.summary)
            );
        }
        out.push_str("\n</details>\n\n");
    }
}

/// Escapes a text, so that nothing in it is markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '|' | '#' | '~' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

/// Returns a sentence, in which only commands and names are code.
fn prose(text: &str) -> String {
    (phrases::spans(text).into_iter())
        .map(|span| match span {
            Span::Words(words) => plain(words),
            Span::Code(words) => code(words),
        })
        .collect()
}

/// Returns a text as inline code, fenced by one more back-tick than it holds in a row.
fn code(text: &str) -> String {
    let text = text.replace(['\n', '\r'], " ");
    let fence = "`".repeat(longest_run(&text) + 1);
    let pad = if text.starts_with('`') || text.ends_with('`') {
        " "
    } else {
        ""
    };
    format!("{fence}{pad}{text}{pad}{fence}")
}

/// Returns a text as a block of code.
fn block(text: &str) -> String {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    format!("{fence}sh\n{text}\n{fence}")
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, example};
    use snapshot::assert_contains;

    use super::*;
    use crate::{Context, Selection, diagnose};

    #[test]
    fn only_commands_are_fenced_and_a_sentence_stays_one() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
        let text = render(&diagnosis);
        let mut fenced = false;
        for line in text.lines() {
            if line.starts_with("```") {
                fenced = !fenced;
            } else if fenced {
                let word = line.split(' ').next().unwrap_or_default();
                assert!(!["boot", "seat", "in", "put"].contains(&word), "{line}");
            }
        }
        assert_contains!(text, "NVIDIA driver 580.95.05");
        let argument = prose("boot with the kernel argument `pci=x`");
        assert_eq!(argument, "boot with the kernel argument `pci=x`");
    }

    #[test]
    fn evidence_cannot_end_its_code() {
        assert_eq!(code("a``b"), "```a``b```");
        assert_eq!(code("`x"), "`` `x ``");
        assert_eq!(plain("a|b\n<c>"), "a\\|b \\<c\\>");
        assert!(block("```").starts_with("````sh\n"));
    }
}
