//! A diagnosis as one page of HTML that needs nothing else: to attach to a ticket.

use std::fmt::Write;

use gdr_node::render::Escaped;

use crate::check::Group;
use crate::diagnosis::{Diagnosis, Judged, Outcome};
use crate::finding::Verdict;

use super::words;

const STYLE: &str = include_str!("html.css");

/// The report as one page. `picture` is an SVG element of the node's topology, put in as it is.
pub fn render(diagnosis: &Diagnosis, picture: Option<&str>) -> String {
    let host = diagnosis.host.as_deref().unwrap_or("this node");
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
    for (index, judged) in causes {
        problem(&mut out, diagnosis, index, judged);
    }
    if let Some(picture) = picture {
        line(
            &mut out,
            format_args!("<h2>Topology</h2>\n<figure class=\"topology\">{picture}</figure>"),
        );
    }
    out.push_str("<h2>All findings</h2>\n");
    for group in Group::ALL {
        findings(&mut out, diagnosis, group);
    }
    line(
        &mut out,
        format_args!(
            "<footer>gdr {} doctor</footer>\n</main>\n</body>\n</html>",
            env!("CARGO_PKG_VERSION")
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
            words::outcome(diagnosis.outcome()),
            words::counts(diagnosis.counts()),
            diagnosis
                .purpose
                .map_or(String::new(), |purpose| format!("; judged for {purpose}")),
        ),
    );
}

fn problem(out: &mut String, diagnosis: &Diagnosis, index: usize, judged: &Judged) {
    let finding = &judged.finding;
    line(
        out,
        format_args!(
            "<section class=\"problem {0}\">\n<h3>{1} {2}: {3}</h3>\n<p class=\"check\">{4} \
             &middot; {5}</p>",
            finding.verdict,
            badge(finding.verdict),
            Escaped(&finding.subject.to_string()),
            Escaped(&finding.summary),
            Escaped(judged.check.id.0),
            Escaped(judged.check.title),
        ),
    );
    if !finding.evidence.is_empty() {
        out.push_str("<dl>\n");
        for evidence in &finding.evidence {
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
        let commands: Vec<String> = fix.actions.iter().map(ToString::to_string).collect();
        line(
            out,
            format_args!(
                "<div class=\"fix\"><p><strong>{}</strong> <span class=\"terms\">{}</span></p>\n\
                 <pre>{}</pre>",
                Escaped(&fix.title),
                words::terms(fix),
                Escaped(&commands.join("\n"))
            ),
        );
        if let Some(caution) = &fix.caution {
            line(
                out,
                format_args!("<p class=\"caution\">Mind: {}</p>", Escaped(caution)),
            );
        }
        out.push_str("</div>\n");
    }
    let symptoms = diagnosis.symptoms(index);
    if !symptoms.is_empty() {
        line(
            out,
            format_args!(
                "<details><summary>{}</summary>\n<ul>",
                words::follow(symptoms.len())
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

fn badge(verdict: Verdict) -> String {
    format!("<span class=\"badge {verdict}\">{verdict}</span>")
}

fn findings(out: &mut String, diagnosis: &Diagnosis, group: Group) {
    let found: Vec<&Judged> = (diagnosis.findings.iter())
        .filter(|judged| judged.check.group == group)
        .collect();
    let Some(worst) = found.iter().map(|judged| judged.finding.verdict).max() else {
        return;
    };
    line(
        out,
        format_args!(
            "<details class=\"group\"><summary>{} {} <span class=\"terms\">{} findings</span>\
             </summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>verdict</th><th>check</th>\
             <th>of</th><th>finding</th><th>evidence</th></tr></thead>\n<tbody>",
            badge(worst),
            group.title(),
            found.len()
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
}
