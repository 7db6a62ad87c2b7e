//! `gdr doctor list` and `gdr doctor show`: the checks themselves.

use anyhow::Result;
use gdr_doctor::{Check, CheckId, Documentation, Group};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::exit::Exit;
use crate::global::Global;
use crate::output::Output;

#[derive(Serialize)]
struct List {
    #[serde(flatten)]
    schema: Schema,
    checks: Vec<Item>,
}

#[derive(Serialize)]
struct Item {
    id: CheckId,
    group: Group,
    title: &'static str,
    /// Empty is for all.
    #[serde(rename = "purposes")]
    workloads: Vec<&'static str>,
    documentation: Documentation,
}

impl Item {
    fn new(check: &Check) -> Self {
        Self {
            id: check.id,
            group: check.group,
            title: check.title,
            workloads: check
                .workloads
                .iter()
                .map(|purpose| purpose.name())
                .collect(),
            documentation: check.documentation(),
        }
    }
}

pub(super) fn list(global: &Global, output: &mut Output) -> Result<Exit> {
    if global.json {
        output.json(&List {
            schema: Schema::first("gdr.checks"),
            checks: gdr_doctor::all().map(Item::new).collect(),
        })?;
        return Ok(Exit::Fine);
    }
    for group in Group::ALL {
        output.line(format_args!("{} ({})", group.title().bold(), group.name()))?;
        for check in gdr_doctor::all().filter(|check| check.group == group) {
            let first = format!("  {:<24} ", check.id.0);
            output.paragraph(&first, &" ".repeat(first.len()), check.title)?;
        }
    }
    Ok(Exit::Fine)
}

pub(super) fn documentation(global: &Global, ids: &[CheckId], output: &mut Output) -> Result<Exit> {
    let checks = || ids.iter().filter_map(|id| gdr_doctor::find(id.0));
    if global.json {
        output.json(&List {
            schema: Schema::first("gdr.checks"),
            checks: checks().map(Item::new).collect(),
        })?;
        return Ok(Exit::Fine);
    }
    for check in checks() {
        let said = check.documentation();
        output.line(format_args!("{}: {}", check.id.0.bold(), check.title))?;
        for (title, text) in [
            ("means", said.why),
            ("reads", said.inputs),
            ("judges", said.criteria),
        ] {
            output.line(format_args!("\n{}\n  {text}", title.bold()))?;
        }
        if !check.workloads.is_empty() {
            let workloads: Vec<&str> = check.workloads.iter().map(|it| it.name()).collect();
            output.line(format_args!(
                "\n{}\n  {}",
                "matters to".bold(),
                workloads.join(", ")
            ))?;
        }
        output.line(format_args!("\n{}", "known from".bold()))?;
        for source in said.sources {
            output.line(format_args!("  {source}"))?;
        }
        output.line("")?;
    }
    Ok(Exit::Fine)
}
