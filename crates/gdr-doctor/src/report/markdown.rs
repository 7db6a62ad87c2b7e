//! A diagnosis as Markdown, for tickets and chats.

use std::fmt::Write;

use crate::check::Group;
use crate::diagnosis::{Diagnosis, Judged};
use crate::finding::Verdict;

use super::words;

/// The report as Markdown.
pub fn render(diagnosis: &Diagnosis) -> String {
    let mut out = String::new();
    let host = diagnosis.host.as_deref().unwrap_or("this node");
    line(
        &mut out,
        format_args!("# GPUDirect RDMA on {}\n", plain(host)),
    );
    line(
        &mut out,
        format_args!("**{}**", words::outcome(diagnosis.outcome())),
    );
    line(
        &mut out,
        format_args!("{}.\n", words::counts(diagnosis.counts())),
    );
    for (index, judged) in diagnosis.root_causes() {
        problem(&mut out, diagnosis, index, judged);
    }
    everything(&mut out, diagnosis);
    out
}

fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = out.write_fmt(line);
    out.push('\n');
}

fn problem(out: &mut String, diagnosis: &Diagnosis, index: usize, judged: &Judged) {
    let finding = &judged.finding;
    line(
        out,
        format_args!(
            "## {}: {}: {}\n",
            finding.verdict,
            plain(&finding.subject.to_string()),
            plain(&finding.summary)
        ),
    );
    line(out, format_args!("Check `{}`.\n", judged.check.id));
    for evidence in &finding.evidence {
        line(
            out,
            format_args!("- {}: {}", plain(&evidence.source), code(&evidence.value)),
        );
    }
    if !finding.evidence.is_empty() {
        out.push('\n');
    }
    for fix in &finding.fixes {
        line(
            out,
            format_args!("**{}** ({})\n", plain(&fix.title), words::terms(fix)),
        );
        let commands: Vec<String> = fix.actions.iter().map(ToString::to_string).collect();
        line(out, format_args!("{}\n", block(&commands.join("\n"))));
        if let Some(caution) = &fix.caution {
            line(out, format_args!("Mind: {}\n", plain(caution)));
        }
    }
    let symptoms = diagnosis.symptoms(index);
    if !symptoms.is_empty() {
        line(out, format_args!("{}:\n", words::follow(symptoms.len())));
        for symptom in symptoms {
            line(
                out,
                format_args!(
                    "- {} `{}` {}: {}",
                    symptom.finding.verdict,
                    symptom.check.id,
                    plain(&symptom.finding.subject.to_string()),
                    plain(&symptom.finding.summary)
                ),
            );
        }
        out.push('\n');
    }
}

fn everything(out: &mut String, diagnosis: &Diagnosis) {
    for group in Group::ALL {
        let found: Vec<&Judged> = (diagnosis.findings.iter())
            .filter(|judged| judged.check.group == group)
            .filter(|judged| judged.finding.verdict != Verdict::Skip)
            .collect();
        if found.is_empty() {
            continue;
        }
        line(
            out,
            format_args!(
                "<details><summary>{}</summary>\n\n| verdict | check | of | finding |\n|---|---|---|---|",
                group.title()
            ),
        );
        for judged in found {
            line(
                out,
                format_args!(
                    "| {} | `{}` | {} | {} |",
                    judged.finding.verdict,
                    judged.check.id,
                    plain(&judged.finding.subject.to_string()),
                    plain(&judged.finding.summary)
                ),
            );
        }
        out.push_str("\n</details>\n\n");
    }
}

/// A text of which nothing is markup.
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

/// A text as inline code, fenced by one more back-tick than it holds in a row.
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

/// A text as a block of code.
fn block(text: &str) -> String {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    format!("{fence}sh\n{text}\n{fence}")
}

fn longest_run(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evidence_cannot_end_its_code() {
        assert_eq!(code("a``b"), "```a``b```");
        assert_eq!(code("`x"), "`` `x ``");
        assert_eq!(plain("a|b\n<c>"), "a\\|b \\<c\\>");
        assert!(block("```").starts_with("````sh\n"));
    }
}
