//! `gdr doctor list` and `gdr doctor show`: the checks themselves.

use anyhow::Result;
use gdr_doctor::{Check, CheckId, Documentation, Group};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use crate::args::Global;
use crate::exit::Exit;
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
    purposes: Vec<&'static str>,
    documentation: Documentation,
}

impl Item {
    fn new(check: &Check) -> Self {
        Self {
            id: check.id,
            group: check.group,
            title: check.title,
            purposes: check
                .purposes
                .iter()
                .map(|purpose| purpose.name())
                .collect(),
            documentation: check.documentation,
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
            output.line(format_args!("  {:<24} {}", check.id.0, check.title))?;
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
        let said = check.documentation;
        output.line(format_args!("{}: {}", check.id.0.bold(), check.title))?;
        for (title, text) in [
            ("means", said.means),
            ("reads", said.reads),
            ("judges", said.judges),
        ] {
            output.line(format_args!("\n{}\n  {text}", title.bold()))?;
        }
        if !check.purposes.is_empty() {
            let purposes: Vec<&str> = check.purposes.iter().map(|it| it.name()).collect();
            output.line(format_args!(
                "\n{}\n  {}",
                "matters to".bold(),
                purposes.join(", ")
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
