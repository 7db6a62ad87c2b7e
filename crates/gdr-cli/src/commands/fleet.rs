//! `gdr fleet`: shows which nodes differ from the majority, and how.

use std::path::PathBuf;

use anyhow::Result;
use gdr_node::Datum;
use gdr_node::compare::{Category, Facts, Outliers, outliers, suspects};
use gdr_perf::report::Schema;
use gdr_render::Table;
use serde::Serialize;

use super::diff::{printable, shown};
use super::layout::Layout;
use crate::command::{CommandSpec, Group, Run};
use crate::counted::Counted;
use crate::exit::{CLOSED, Exit, INPUT, Statuses};
use crate::global::Global;
use crate::node_args::Named;
use crate::output::Output;

/// Show which nodes of a fleet differ from the majority, and how
///
/// Compares archives from `gdr collect`. For each fact, the value that more than half of the nodes
/// share is the usual one, and nodes with other values are outliers. Nodes for which the fact is
/// unknown do not count. Exits with 1 if there are outliers.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Archives, or copies of nodes' root directories
    #[arg(value_name = "ARCHIVE", required = true, num_args = 2..)]
    archives: Vec<PathBuf>,

    #[command(flatten)]
    layout: Layout,
}

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    schema: Schema,
    nodes: Vec<&'a str>,
    outliers: Vec<Row<'a>>,
}

/// A fact that differs between nodes. `null` means that a node does not have it. Without `usual_count`, no value is
/// usual.
#[derive(Debug, Serialize)]
struct Row<'a> {
    category: Category,
    subject: &'a str,
    fact: &'a str,
    usual: Option<&'a str>,
    usual_count: usize,
    known: usize,
    others: Vec<Other<'a>>,
}

#[derive(Debug, Serialize)]
struct Other<'a> {
    value: Option<&'a str>,
    nodes: Vec<&'a str>,
}

/// Maximum number of names in a cell of the table.
const MOST_NAMES: usize = 4;

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
  gdr fleet *.tar.gz          show every fact that differs between nodes
  gdr fleet --json *.tar.gz   print JSON, for a program
  gdr diff a.tar.gz b.tar.gz  compare two nodes in full";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.layout.check(global)?;
    // Keep only one archive in memory at a time.
    let mut names = Vec::new();
    let mut fleet = Vec::new();
    for path in &options.archives {
        let node = Named::open(path)?;
        fleet.push(Facts::read(node.source.as_ref()));
        names.push(node.name);
    }
    let names = distinct(names, &options.archives);
    let found = outliers(&fleet.iter().collect::<Vec<_>>());
    let exit = if found.is_empty() {
        Exit::Fine
    } else {
        Exit::Warning
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.fleet"),
            nodes: names.iter().map(String::as_str).collect(),
            outliers: found.iter().map(|outliers| row(outliers, &names)).collect(),
        })?;
        return Ok(exit);
    }
    if found.is_empty() && !options.layout.is_csv() {
        let alike = format!(
            "{}, all alike in every known fact",
            Counted(names.len(), "node")
        );
        output.line(alike)?;
        return Ok(exit);
    }
    let mut table = Table::new(&["category", "fact", "usual", "outliers"]).keep_whole(&[0]);
    let mut category = None;
    for outliers in &found {
        let is_new = category != Some(outliers.key.category) || options.layout.is_csv();
        let title = if is_new {
            outliers.key.category.to_string()
        } else {
            String::new()
        };
        category = Some(outliers.key.category);
        let usual = match &outliers.usual {
            Some(value) => format!(
                "{} ({} of {})",
                shown(value),
                outliers.usual_count,
                outliers.known
            ),
            None => "no majority".to_owned(),
        };
        let others: Vec<String> = outliers
            .others
            .iter()
            .map(|(value, places)| {
                format!("{}: {}", shown(value), printable(&some(places, &names)))
            })
            .collect();
        let key = printable(&outliers.key.to_string());
        table.row(vec![title, key, usual, others.join("; ")]);
    }
    options.layout.show(&table, output)?;
    if options.layout.is_csv() {
        return Ok(exit);
    }
    output.line("")?;
    let suspects = suspects(&found);
    let worst: Vec<String> = suspects
        .iter()
        .take(MOST_NAMES)
        .map(|(place, count)| format!("{} ({count})", names[*place]))
        .collect();
    let verdict = if worst.is_empty() {
        "no node stands out".to_owned()
    } else {
        format!("most often an outlier: {}", worst.join(", "))
    };
    output.line(format_args!(
        "{}, {} that differ between them; {verdict}",
        Counted(names.len(), "node"),
        Counted(found.len(), "fact")
    ))?;
    Ok(exit)
}

/// Returns the names of the nodes, or of their files if two nodes have the same name, as redacted nodes do.
fn distinct(names: Vec<String>, files: &[PathBuf]) -> Vec<String> {
    let same = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    if !names.iter().any(same) {
        return names;
    }
    files
        .iter()
        .map(|file| file.display().to_string())
        .collect()
}

fn some(places: &[usize], names: &[String]) -> String {
    let shown: Vec<&str> = places
        .iter()
        .take(MOST_NAMES)
        .map(|place| names[*place].as_str())
        .collect();
    match places.len().checked_sub(MOST_NAMES) {
        Some(more) if more > 0 => format!("{} and {more} more", shown.join(", ")),
        _ => shown.join(", "),
    }
}

fn row<'a>(outliers: &'a Outliers, names: &'a [String]) -> Row<'a> {
    fn known(value: &Datum<String>) -> Option<&str> {
        value.as_ref().ok().map(String::as_str)
    }
    Row {
        category: outliers.key.category,
        subject: &outliers.key.subject,
        fact: &outliers.key.name,
        usual: outliers.usual.as_ref().and_then(known),
        usual_count: outliers.usual_count,
        known: outliers.known,
        others: outliers
            .others
            .iter()
            .map(|(value, places)| Other {
                value: known(value),
                nodes: places.iter().map(|place| names[*place].as_str()).collect(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_the_same_name_are_distinguished_by_their_files() {
        let files = [PathBuf::from("a.tar.gz"), PathBuf::from("b.tar.gz")];
        let of = |names: [&str; 2]| distinct(names.map(str::to_owned).to_vec(), &files);
        assert_eq!(of(["x", "y"]), ["x", "y"]);
        assert_eq!(of(["host-1", "host-1"]), ["a.tar.gz", "b.tar.gz"]);
    }

    #[test]
    fn a_cell_holds_a_few_names() {
        let names: Vec<String> = (0..9).map(|n| format!("n{n}")).collect();
        assert_eq!(some(&[1, 2], &names), "n1, n2");
        assert_eq!(
            some(&[0, 1, 2, 3, 4, 5], &names),
            "n0, n1, n2, n3 and 2 more"
        );
    }
}
