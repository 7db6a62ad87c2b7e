//! Findings in SARIF 2.1.0, the format of static analyzers that code hosts show.

use gdr_check::{Found, FoundFrame, Rule, Severity};
use serde_json::{Value, json};

/// Returns the document.
pub(super) fn document(findings: &[Found]) -> serde_json::Result<String> {
    let document = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "gdr check",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": Rule::ALL.iter().map(rule).collect::<Vec<_>>(),
            }},
            "results": findings.iter().map(result).collect::<Vec<_>>(),
        }],
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn level(rule: Rule) -> &'static str {
    match rule.severity() {
        Severity::Note => "note",
        Severity::Error => "error",
    }
}

fn rule(rule: &Rule) -> Value {
    json!({
        "id": rule.id(),
        "shortDescription": { "text": rule.title() },
        "fullDescription": { "text": format!("{} ({})", rule.why(), rule.source()) },
        "help": { "text": rule.remedy() },
        "defaultConfiguration": { "level": level(*rule) },
    })
}

fn result(found: &Found) -> Value {
    let stacks: Vec<_> = found
        .places
        .iter()
        .map(|place| {
            let frames = place
                .frames
                .iter()
                .map(|it| json!({ "location": location(it) }));
            json!({ "message": { "text": place.what }, "frames": frames.collect::<Vec<_>>() })
        })
        .collect();
    let mut frames = found.places.iter().flat_map(|place| &place.frames);
    // Prefer a place in a source file, where the reader can change something.
    let first = frames
        .clone()
        .find(|it| it.source.is_some())
        .or_else(|| frames.next());
    json!({
        "ruleId": found.rule.id(),
        "level": level(found.rule),
        "message": { "text": format!("{}: {}", found.object, found.detail) },
        "locations": first.map(location).into_iter().collect::<Vec<_>>(),
        "stacks": stacks,
    })
}

fn location(frame: &FoundFrame) -> Value {
    let (file, line) = frame
        .source
        .as_deref()
        .and_then(|it| it.rsplit_once(':'))
        .map_or((frame.object.as_str(), None), |(file, line)| {
            (file, line.parse::<u32>().ok().filter(|line| *line != 0))
        });
    let mut physical = json!({ "artifactLocation": { "uri": file } });
    if let Some(line) = line {
        physical["region"] = json!({ "startLine": line });
    }
    json!({
        "physicalLocation": physical,
        "message": { "text": frame.symbol.as_deref().unwrap_or("?") },
    })
}

#[cfg(test)]
mod tests {
    use gdr_check::FoundPlace;

    use super::*;

    #[test]
    fn a_result_has_its_rule_and_the_line_of_the_post() {
        let found = Found {
            rule: Rule::CqOverrun,
            pid: 1,
            object: "queue pair 3".to_owned(),
            detail: "5 requests".to_owned(),
            places: vec![FoundPlace {
                what: "posted".to_owned(),
                frames: vec![FoundFrame {
                    object: "/bin/app".to_owned(),
                    offset: 16,
                    symbol: Some("main".to_owned()),
                    source: Some("src/app.c:9".to_owned()),
                }],
            }],
        };
        let document: Value = serde_json::from_str(&document(&[found]).unwrap()).unwrap();
        let result = &document["runs"][0]["results"][0];
        assert_eq!(result["ruleId"], "cq-overrun");
        let place = &result["locations"][0]["physicalLocation"];
        assert_eq!(place["artifactLocation"]["uri"], "src/app.c");
        assert_eq!(place["region"]["startLine"], 9);
        let rules = document["runs"][0]["tool"]["driver"]["rules"].as_array();
        assert_eq!(rules.map(Vec::len), Some(Rule::ALL.len()));
    }
}
