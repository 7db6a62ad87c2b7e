//! A diagnosis as one page of HTML that needs nothing else: to attach to a ticket.

use std::fmt::Write;

use gdr_node::render::Escaped;

use crate::check::Group;
use crate::diagnosis::{Counts, Diagnosis, Outcome, Reported};
use crate::finding::Verdict;
use crate::fix::Shown;

use super::phrases::{self, Span};

const STYLE: &str = include_str!("html.css");

/// The report as one page. `picture` is an SVG element of the node's topology, put in as it is.
pub fn render(diagnosis: &Diagnosis, picture: Option<&str>) -> String {
    let host = phrases::node(diagnosis);
    let mut out = String::new();
    line(
        &mut out,
        format_args!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>GPUDirect RDMA on {0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <main>\n<h1>GPUDirect RDMA on {0}</h1>",
            Escaped(host)
        ),
    );
    headline(&mut out, diagnosis);
    let causes = diagnosis.root_causes();
    if !causes.is_empty() {
        out.push_str("<h2>What to do</h2>\n");
    }
    for alike in phrases::alike(causes) {
        problem(&mut out, diagnosis, &alike);
    }
    if let Some(picture) = picture {
        line(
            &mut out,
            format_args!("<h2>Topology</h2>\n<figure class=\"topology\">{picture}</figure>"),
        );
    }
    out.push_str("<h2>All findings</h2>\n");
    for (group, counts) in diagnosis.groups() {
        findings(&mut out, diagnosis, group, counts);
    }
    line(
        &mut out,
        format_args!(
            "<footer>gdr {} doctor</footer>\n</main>\n</body>\n</html>",
            diagnosis.about.gdr
        ),
    );
    out
}

fn line(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string never fails.
    let _ = out.write_fmt(line);
    out.push('\n');
}

fn headline(out: &mut String, diagnosis: &Diagnosis) {
    let class = match diagnosis.outcome() {
        Outcome::Healthy => "pass",
        Outcome::Warning => "warn",
        Outcome::Failure => "fail",
        Outcome::Undecided => "unknown",
    };
    line(
        out,
        format_args!(
            "<p class=\"outcome {class}\">{}</p>\n<p class=\"counts\">{}{}</p>",
            Escaped(&phrases::headline(diagnosis)),
            phrases::counts(diagnosis.counts()),
            diagnosis
                .purpose
                .map_or(String::new(), |purpose| format!("; judged for {purpose}")),
        ),
    );
    for about in diagnosis.about.lines() {
        line(
            out,
            format_args!("<p class=\"about\">{}</p>", Escaped(&about)),
        );
    }
    let lines = phrases::not_known(diagnosis);
    if !lines.is_empty() {
        out.push_str("<details><summary>Not known</summary>\n<ul>\n");
        for text in lines {
            line(out, format_args!("<li>{}</li>", Escaped(&text)));
        }
        out.push_str("</ul></details>\n");
    }
}

/// One card for root causes that differ in their subject only.
fn problem(out: &mut String, diagnosis: &Diagnosis, alike: &[(usize, &Reported)]) {
    let Some((_, judged)) = alike.first() else {
        return;
    };
    let finding = &judged.finding;
    let subjects: Vec<String> = (alike.iter())
        .map(|(_, judged)| judged.finding.subject.to_string())
        .collect();
    line(
        out,
        format_args!(
            "<section class=\"problem {0}\">\n<h3>{1} {2}: {3}</h3>\n<p class=\"check\">{4} \
             &middot; {5}</p>",
            finding.verdict,
            badge(finding.verdict),
            Escaped(&subjects.join(", ")),
            Escaped(&finding.summary),
            Escaped(judged.check.id.0),
            Escaped(judged.check.title),
        ),
    );
    let mut evidence = (alike.iter())
        .flat_map(|(_, judged)| &judged.finding.evidence)
        .peekable();
    if evidence.peek().is_some() {
        out.push_str("<dl>\n");
        for evidence in evidence {
            line(
                out,
                format_args!(
                    "<dt>{}</dt><dd><pre>{}</pre></dd>",
                    Escaped(&evidence.source),
                    Escaped(&evidence.value)
                ),
            );
        }
        out.push_str("</dl>\n");
    }
    for fix in &finding.fixes {
        line(
            out,
            format_args!(
                "<div class=\"fix\"><p><strong>{}</strong> <span class=\"terms\">{}</span></p>",
                Escaped(&fix.title),
                phrases::terms(fix),
            ),
        );
        for step in phrases::steps(fix) {
            match step {
                Shown::Command(lines) => {
                    line(out, format_args!("<pre>{}</pre>", Escaped(&lines)));
                }
                Shown::Prose(text) => line(out, format_args!("<p>{}</p>", prose(&text))),
            }
        }
        if let Some(caution) = &fix.caution {
            line(
                out,
                format_args!("<p class=\"caution\">Note: {}</p>", prose(caution)),
            );
        }
        out.push_str("</div>\n");
    }
    let symptoms: Vec<&Reported> = (alike.iter())
        .flat_map(|(index, _)| diagnosis.symptoms(*index))
        .collect();
    if !symptoms.is_empty() {
        line(
            out,
            format_args!(
                "<details><summary>{}</summary>\n<ul>",
                phrases::follow(symptoms.len())
            ),
        );
        for symptom in symptoms {
            line(
                out,
                format_args!(
                    "<li>{} {}: {} <span class=\"check\">{}</span></li>",
                    badge(symptom.finding.verdict),
                    Escaped(&symptom.finding.subject.to_string()),
                    Escaped(&symptom.finding.summary),
                    Escaped(symptom.check.id.0)
                ),
            );
        }
        out.push_str("</ul></details>\n");
    }
    out.push_str("</section>\n");
}

/// A sentence, in which only commands and names are code.
fn prose(text: &str) -> String {
    (phrases::spans(text).into_iter())
        .map(|span| match span {
            Span::Words(words) => Escaped(words).to_string(),
            Span::Code(words) => format!("<code>{}</code>", Escaped(words)),
        })
        .collect()
}

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge {verdict}\">{verdict}</span>")
}

fn findings(out: &mut String, diagnosis: &Diagnosis, group: Group, counts: Counts) {
    let found: Vec<&Reported> = (diagnosis.findings.iter())
        .filter(|judged| judged.check.group == group)
        .collect();
    line(
        out,
        format_args!(
            "<details class=\"group\"><summary>{} {} <span class=\"terms\">{} fine, {} wrong, {} \
             not known</span></summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>verdict</th><th>check</th>\
             <th>of</th><th>finding</th><th>evidence</th></tr></thead>\n<tbody>",
            badge(counts.verdict()),
            group.title(),
            counts.fine(),
            counts.fail + counts.warn,
            counts.unknown
        ),
    );
    for judged in found {
        let evidence: Vec<String> = (judged.finding.evidence.iter())
            .map(|evidence| {
                format!(
                    "{}: <code>{}</code>",
                    Escaped(&evidence.source),
                    Escaped(&evidence.value)
                )
            })
            .collect();
        line(
            out,
            format_args!(
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
                badge(judged.finding.verdict),
                Escaped(judged.check.id.0),
                Escaped(&judged.finding.subject.to_string()),
                Escaped(&judged.finding.summary),
                evidence.join("<br>")
            ),
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};

    use crate::{Context, Selection, diagnose};

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_it_quotes() {
        let node = MemorySource::new()
            .directory("/sys/bus/pci/devices")
            .file("/proc/sys/kernel/hostname", "<b>n1</b>\n");
        let inventory = Inventory::read(&node);
        let diagnosis = diagnose(&Context::new(&node, &inventory), &Selection::all());
        let page = super::render(&diagnosis, Some("<svg id=\"tree\"></svg>"));
        assert!(page.starts_with("<!doctype html>"));
        assert!(page.contains("GPUDirect RDMA on &lt;b&gt;n1&lt;/b&gt;"));
        assert!(page.contains("<svg id=\"tree\">"));
        for outside in ["http://", "https://", "src=", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn what_is_wrong_with_several_gpus_alike_is_one_card() {
        let lost = |address: &str| {
            format!(
                "{address} 3D controller [0302]: NVIDIA Corporation X [10de:2330] (rev ff)\n\
                 \t!!! Unknown header type 7f\n\tKernel driver in use: nvidia\n"
            )
        };
        let text = ["01:00.0", "02:00.0", "03:00.0"].map(lost).concat();
        let tree = gdr_node::import::lspci::read(&text).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), gdr_node::NumaLayout::unknown());
        let node = MemorySource::partial();
        let context = Context::new(&node, &inventory).captured(crate::Capture {
            file: "rack7.txt".to_owned(),
            collected: None,
        });
        let page = super::render(&diagnose(&context, &Selection::all()), None);
        let card = page.matches("<h3>").count();
        assert_eq!(card, 1, "{page}");
        assert!(page.contains("GPU0, GPU1, GPU2"), "{page}");
        assert!(page.contains("GPUDirect RDMA on rack7.txt"), "{page}");
    }
}
