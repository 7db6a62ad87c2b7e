//! `gdr diff`: shows the differences between two nodes that should be alike.

use std::path::PathBuf;

use anyhow::Result;
use gdr_node::compare::{Category, Difference, Facts, differences};
use gdr_node::{Absence, Datum, DatumExt};
use gdr_perf::report::Schema;
use gdr_render::Table;
use serde::Serialize;

use super::layout::Layout;
use crate::command::{CommandSpec, Group, Run};
use crate::exit::{CLOSED, Exit, INPUT, Statuses};
use crate::global::Global;
use crate::node_args::Named;
use crate::output::Output;

/// Show the differences between two nodes that should be alike
///
/// Compares firmware, kernel, modules and their parameters, GPUs, NICs, the PCI ports between them,
/// distances, limits and libraries, but not names, addresses and counters. Exits with 1 if the nodes
/// differ.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Archive from `gdr collect`, or a copy of a node's root directory
    #[arg(value_name = "A")]
    first: PathBuf,

    /// The other node [default: this node]
    #[arg(value_name = "B")]
    second: Option<PathBuf>,

    #[command(flatten)]
    layout: Layout,
}

#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    a: String,
    b: String,
    compared: usize,
    differ: Vec<Row>,
    unknown: Vec<Row>,
}

/// A fact about both nodes. `null` means that a node does not have it.
#[derive(Debug, Serialize)]
struct Row {
    category: Category,
    subject: String,
    fact: String,
    a: Option<String>,
    b: Option<String>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "the nodes are alike"),
        (Exit::Warning, "the nodes differ"),
        (Exit::Failure, "a node could not be read"),
        (Exit::Undecided, CLOSED),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr diff good.tar.gz bad.tar.gz   compare two nodes
  gdr diff yesterday.tar.gz         compare this node with an earlier archive
  gdr fleet *.tar.gz                compare many nodes at once";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.layout.check(global)?;
    let mut first = Named::open(&options.first)?;
    let mut second = match &options.second {
        Some(path) => Named::open(path)?,
        None => Named::this(),
    };
    tell_apart(&mut first, &mut second, options);
    let found = differences(
        &Facts::read(first.source.as_ref()),
        &Facts::read(second.source.as_ref()),
    );
    let exit = if found.differ.is_empty() {
        Exit::Fine
    } else {
        Exit::Warning
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.diff"),
            a: first.name,
            b: second.name,
            compared: found.compared,
            differ: found.differ.iter().map(row).collect(),
            unknown: found.unknown.iter().map(row).collect(),
        })?;
        return Ok(exit);
    }
    if !found.differ.is_empty() || options.layout.is_csv() {
        let heads = [printable(&first.name), printable(&second.name)];
        let mut table = Table::new(&["category", "fact", &heads[0], &heads[1]]).keep_whole(&[0]);
        let mut category = None;
        for difference in &found.differ {
            let key = &difference.key;
            // In CSV, every line is complete.
            let is_new = category != Some(key.category) || options.layout.is_csv();
            category = Some(key.category);
            table.row(vec![
                if is_new {
                    key.category.to_string()
                } else {
                    String::new()
                },
                printable(&key.to_string()),
                shown(&difference.first),
                shown(&difference.second),
            ]);
        }
        options.layout.show(&table, output)?;
        if options.layout.is_csv() {
            return Ok(exit);
        }
        output.line("")?;
    }
    output.line(format_args!(
        "{} of {} facts differ",
        found.differ.len(),
        found.compared
    ))?;
    if !found.unknown.is_empty() {
        output.line(format_args!(
            "{} more are unknown for one of the nodes (--json lists them); collect as root to compare them",
            found.unknown.len()
        ))?;
    }
    Ok(exit)
}

/// Adds the file names to the names of two captures of one host.
fn tell_apart(first: &mut Named, second: &mut Named, options: &Options) {
    if first.name != second.name {
        return;
    }
    let with = |name: &str, path: &Option<PathBuf>| match path {
        Some(path) if path.display().to_string() != *name => {
            format!("{name} ({})", path.display())
        }
        Some(_) => name.to_owned(),
        None => format!("{name} (now)"),
    };
    first.name = with(&first.name, &Some(options.first.clone()));
    second.name = with(&second.name, &options.second);
    if first.name == second.name {
        first.name.push_str(" (A)");
        second.name.push_str(" (B)");
    }
}

fn row(difference: &Difference) -> Row {
    let key = &difference.key;
    Row {
        category: key.category,
        subject: key.subject.clone(),
        fact: key.name.clone(),
        a: known(&difference.first),
        b: known(&difference.second),
    }
}

fn known(value: &Datum<String>) -> Option<String> {
    match value {
        Err(Absence::Missing) => None,
        value => Some(value.shown().to_string()),
    }
}

/// Returns a value in a table.
pub(super) fn shown(value: &Datum<String>) -> String {
    match value {
        Err(Absence::Missing) => "none".to_owned(),
        Ok(text) if text.is_empty() => "empty".to_owned(),
        value => printable(&value.shown().to_string()),
    }
}

/// Returns a text from an untrusted archive, without terminal control characters.
pub(super) fn printable(text: &str) -> String {
    let replace = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_archive_reaches_the_terminal_as_a_command() {
        let value = Ok("\x1b[2J2.3.1\nx".to_owned());
        assert_eq!(shown(&value), "\u{fffd}[2J2.3.1\u{fffd}x");
        assert_eq!(shown(&Err(Absence::Missing)), "none");
        assert_eq!(shown(&Ok(String::new())), "empty");
    }

    #[test]
    fn two_captures_of_one_host_have_heads_of_their_own() {
        let named = |name: &str| Named {
            name: name.to_owned(),
            source: Box::new(gdr_node::MemorySource::new()),
        };
        let heads = |second: Option<&str>| {
            let (mut a, mut b) = (named("node17"), named("node17"));
            let options = Options {
                first: "old.tar.gz".into(),
                second: second.map(PathBuf::from),
                layout: Layout::default(),
            };
            tell_apart(&mut a, &mut b, &options);
            (a.name, b.name)
        };
        let of = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(
            heads(Some("new.tar.gz")),
            of("node17 (old.tar.gz)", "node17 (new.tar.gz)")
        );
        assert_eq!(heads(None), of("node17 (old.tar.gz)", "node17 (now)"));
        assert_eq!(
            heads(Some("old.tar.gz")),
            of("node17 (old.tar.gz) (A)", "node17 (old.tar.gz) (B)")
        );
    }
}
