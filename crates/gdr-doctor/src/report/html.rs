//! A diagnosis as one page of HTML that needs nothing else: to attach to a ticket.

use gdr_render::Escaped;

use crate::check::Group;
use crate::diagnosis::{Counts, Diagnosis, Outcome, Reported};
use crate::finding::Verdict;
use crate::fix::Shown;

use super::phrases::{self, Span};

const STYLE: &str = include_str!("html.css");

/// Renders the report as one page. `picture` is an SVG element of the node's topology, inserted as it is.
pub fn render(diagnosis: &Diagnosis, picture: Option<&str>) -> String {
    let host = phrases::node(diagnosis);
    let mut out = String::new();
    out += &format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>GPUDirect RDMA on {0}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
             <main>\n<h1>GPUDirect RDMA on {0}</h1>\n",
        Escaped(host)
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
        out += &format!("<h2>Topology</h2>\n<figure class=\"topology\">{picture}</figure>\n");
    }
    out.push_str("<h2>All findings</h2>\n");
    for (group, counts) in diagnosis.groups() {
        findings(&mut out, diagnosis, group, counts);
    }
    out += &format!(
        "<footer>gdr {} doctor</footer>\n</main>\n</body>\n</html>\n",
        diagnosis.about.gdr
    );
    out
}

fn headline(out: &mut String, diagnosis: &Diagnosis) {
    let class = match diagnosis.outcome() {
        Outcome::Healthy => "pass",
        Outcome::Warning => "warn",
        Outcome::Failure => "fail",
        Outcome::Undecided => "unknown",
    };
    *out += &format!(
        "<p class=\"outcome {class}\">{}</p>\n<p class=\"counts\">{}{}</p>\n",
        Escaped(&phrases::headline(diagnosis)),
        phrases::counts(diagnosis.counts()),
        diagnosis
            .purpose
            .map_or(String::new(), |purpose| format!("; judged for {purpose}"))
    );
    for about in diagnosis.about.lines() {
        *out += &format!("<p class=\"about\">{}</p>\n", Escaped(&about));
    }
    let lines = phrases::not_known(diagnosis);
    if !lines.is_empty() {
        out.push_str("<details><summary>Not known</summary>\n<ul>\n");
        for text in lines {
            *out += &format!("<li>{}</li>\n", Escaped(&text));
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
    *out += &format!(
        "<section class=\"problem {0}\">\n<h3>{1} {2}: {3}</h3>\n<p class=\"check\">{4} \
             &middot; {5}</p>\n",
        finding.verdict,
        badge(finding.verdict),
        Escaped(&subjects.join(", ")),
        Escaped(&finding.summary),
        Escaped(judged.check.id.0),
        Escaped(judged.check.title)
    );
    let mut evidence = (alike.iter())
        .flat_map(|(_, judged)| &judged.finding.evidence)
        .peekable();
    if evidence.peek().is_some() {
        out.push_str("<dl>\n");
        for evidence in evidence {
            *out += &format!(
                "<dt>{}</dt><dd><pre>{}</pre></dd>\n",
                Escaped(&evidence.source),
                Escaped(&evidence.value)
            );
        }
        out.push_str("</dl>\n");
    }
    for fix in &finding.fixes {
        *out += &format!(
            "<div class=\"fix\"><p><strong>{}</strong> <span class=\"terms\">{}</span></p>\n",
            Escaped(&fix.title),
            phrases::terms(fix)
        );
        for step in phrases::steps(fix) {
            match step {
                Shown::Command(lines) => {
                    *out += &format!("<pre>{}</pre>\n", Escaped(&lines));
                }
                Shown::Prose(text) => *out += &format!("<p>{}</p>\n", prose(&text)),
            }
        }
        if let Some(caution) = &fix.caution {
            *out += &format!("<p class=\"caution\">Note: {}</p>\n", prose(caution));
        }
        out.push_str("</div>\n");
    }
    let symptoms: Vec<&Reported> = (alike.iter())
        .flat_map(|(index, _)| diagnosis.symptoms(*index))
        .collect();
    if !symptoms.is_empty() {
        *out += &format!(
            "<details><summary>{}</summary>\n<ul>\n",
            phrases::follow(symptoms.len())
        );
        for symptom in symptoms {
            *out += &format!(
                "<li>{} {}: {} <span class=\"check\">{}</span></li>\n",
                badge(symptom.finding.verdict),
                Escaped(&symptom.finding.subject.to_string()),
                Escaped(&symptom.finding.summary),
                Escaped(symptom.check.id.0)
            );
        }
        out.push_str("</ul></details>\n");
    }
    out.push_str("</section>\n");
}

/// Returns a sentence, in which only commands and names are code.
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
    *out += &format!(
        "<details class=\"group\"><summary>{} {} <span class=\"terms\">{} fine, {} wrong, {} \
             not known</span></summary>\n<div class=\"scroll\"><table>\n<thead><tr><th>verdict</th><th>check</th>\
             <th>of</th><th>finding</th><th>evidence</th></tr></thead>\n<tbody>\n",
        badge(counts.verdict()),
        group.title(),
        counts.fine(),
        counts.fail + counts.warn,
        counts.unknown
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
        *out += &format!(
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
            badge(judged.finding.verdict),
            Escaped(judged.check.id.0),
            Escaped(&judged.finding.subject.to_string()),
            Escaped(&judged.finding.summary),
            evidence.join("<br>")
        );
    }
    out.push_str("</tbody></table></div></details>\n");
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, MemorySource};
    use snapshot::assert_contains;

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
        assert_contains!(page, "GPU0, GPU1, GPU2");
        assert_contains!(page, "GPUDirect RDMA on rack7.txt");
    }
}
