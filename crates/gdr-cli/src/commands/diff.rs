//! `gdr diff`: what differs between two nodes that should be alike.

use std::path::PathBuf;

use anyhow::Result;
use comfy_table::presets::NOTHING;
use comfy_table::{ContentArrangement, Table};
use gdr_node::Datum;
use gdr_node::compare::{Area, Difference, Facts, differences};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::node::Named;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr diff good.tar.gz bad.tar.gz   what one has and the other has not
  gdr diff yesterday.tar.gz         this node, now and then
  gdr fleet *.tar.gz                many nodes at once";

/// Say what differs between two nodes that should be alike
///
/// Compares firmware, kernel, modules and their parameters, GPUs, NICs, the PCI ports between
/// them, distances, limits and libraries. Names, addresses and counters are not compared. Ends
/// with 1 where something differs.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    /// Archive of `gdr collect`, or a directory laid out like a node's root
    #[arg(value_name = "A")]
    first: PathBuf,

    /// The other one [default: this node]
    #[arg(value_name = "B")]
    second: Option<PathBuf>,
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

/// A fact of both nodes. `null` is what a node has not.
#[derive(Debug, Serialize)]
struct Row {
    area: Area,
    subject: String,
    fact: String,
    a: Option<String>,
    b: Option<String>,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let first = Named::open(&options.first)?;
    let second = match &options.second {
        Some(path) => Named::open(path)?,
        None => Named::this(),
    };
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
    if !found.differ.is_empty() {
        let mut table = Table::new();
        table
            .load_style(NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["", "", first.name.as_str(), second.name.as_str()]);
        let mut area = None;
        for difference in &found.differ {
            let key = &difference.key;
            let title = if area == Some(key.area) {
                String::new()
            } else {
                key.area.to_string()
            };
            area = Some(key.area);
            table.add_row([
                title,
                printable(&key.to_string()),
                shown(&difference.first),
                shown(&difference.second),
            ]);
        }
        output.line(table.trim_fmt())?;
        output.line("")?;
    }
    output.line(format_args!(
        "{} of {} facts differ",
        found.differ.len(),
        found.compared
    ))?;
    if !found.unknown.is_empty() {
        output.line(format_args!(
            "{} more are not known of both; collected as root they may be (--json lists them)",
            found.unknown.len()
        ))?;
    }
    Ok(exit)
}

fn row(difference: &Difference) -> Row {
    let key = &difference.key;
    Row {
        area: key.area,
        subject: key.subject.clone(),
        fact: key.name.clone(),
        a: known(&difference.first),
        b: known(&difference.second),
    }
}

fn known(value: &Datum<String>) -> Option<String> {
    match value {
        Datum::Missing => None,
        value => Some(value.to_string()),
    }
}

/// A value in a table.
pub(super) fn shown(value: &Datum<String>) -> String {
    match value {
        Datum::Missing => "-".to_owned(),
        value => printable(&value.to_string()),
    }
}

/// A text of an archive, which anybody may have made, without what moves a terminal's cursor.
pub(super) fn printable(text: &str) -> String {
    let replace = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_an_archive_reaches_the_terminal_as_a_command() {
        let value = Datum::Present("\x1b[2J2.3.1\nx".to_owned());
        assert_eq!(shown(&value), "\u{fffd}[2J2.3.1\u{fffd}x");
        assert_eq!(shown(&Datum::Missing), "-");
    }
}
