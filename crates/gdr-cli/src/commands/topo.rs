//! `gdr topo`: shows the distances between GPUs and NICs, and the reasons.

mod check;
mod distances;
mod report;
mod why;

use std::io::IsTerminal as _;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use gdr_node::render::{self, Vocabulary};

use crate::command::{CommandSpec, Group, Run};
use crate::exit::{Exit, INPUT, Statuses, UsageError};
use crate::global::Global;
use crate::node_args::{Known, Node, Which};
use crate::output::Output;
use distances::Distances;

/// Show how far apart GPUs and NICs are, and why
///
/// Needs neither NVIDIA's driver nor privileges. To show NVLinks it needs NVIDIA's management library,
/// because sysfs does not have them. Root can also read the ACS bits of the ports on the path.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    which: Which,

    /// Whose names for distances to use [default: nvidia-smi's, or NCCL's if the capture is from NCCL]
    #[arg(long = "as", value_enum, value_name = "TOOL")]
    words: Option<Tool>,

    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Matrix)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Show the path between two devices, hop by hop, and why they are that far apart
    Why {
        /// A device: GPU0, mlx5_3, NIC3 or a PCI address
        a: String,
        /// The other device
        b: String,
        #[command(flatten)]
        which: Which,
    },
    /// Compare with the matrix of nvidia-smi; exits with 0 if every cell is equal, else with 2
    Check {
        /// The output of `nvidia-smi topo -m`
        #[arg(long, value_name = "FILE")]
        matrix: PathBuf,
        #[command(flatten)]
        which: Which,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Tool {
    NvidiaSmi,
    Nccl,
    Ucx,
}

impl Tool {
    const fn vocabulary(self) -> Vocabulary {
        match self {
            Self::NvidiaSmi => Vocabulary::Smi,
            Self::Nccl => Vocabulary::Nccl,
            Self::Ucx => Vocabulary::Ucx,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A row and a column for each device
    Matrix,
    /// NUMA nodes, host bridges, switches, devices
    Tree,
    /// JSON for programs
    Json,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
    /// For NCCL_TOPO_FILE
    NcclXml,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "shown; check: all distances agree"),
        (Exit::Warning, "check: some distances could not be compared"),
        (Exit::Failure, "check: a distance differs"),
        (
            Exit::Undecided,
            "the capture has no PCI tree; check: nothing could be compared",
        ),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr topo                            show the matrix of nvidia-smi topo -m, from sysfs alone
  gdr topo --as nccl                  show it with NCCL's names
  gdr topo --format tree              show host bridges, switches and links
  gdr topo --format svg > node.svg    draw a picture
  gdr topo why GPU0 mlx5_3            show the path between two devices, hop by hop
  gdr topo --from lspci.txt           show another node, from the output of `lspci -vvv`
  gdr topo check --from lspci.txt --matrix topo.txt";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    match &options.what {
        Some(What::Why { a, b, which }) => return why::run(global, which, (a, b), output),
        Some(What::Check { matrix, which }) => return check::run(global, which, matrix, output),
        None => {}
    }
    let asked = options.words.map(Tool::vocabulary);
    let node = match options.which.look()? {
        Known::Node(node) => node,
        Known::Devices(inventory) => Node::of_devices(inventory),
        Known::Distances(matrices, nccl, _) => {
            return distances(global, options, &Distances::new(&matrices, &nccl), output);
        }
    };
    let inventory = &node.inventory;
    let format = if global.json {
        Format::Json
    } else {
        options.format
    };
    let text = match format {
        Format::Json => {
            output.json(&report::Report::new(inventory))?;
            return Ok(report::exit(inventory));
        }
        Format::Tree => lines_of(&render::tree(inventory)),
        Format::Dot => render::dot(inventory),
        Format::Svg => render::svg_titled(inventory, &options.which.title(&node)),
        Format::NcclXml => render::nccl_xml(node.source.as_ref(), inventory),
        Format::Matrix => {
            let vocabulary = asked.unwrap_or_default();
            match render::nothing(inventory) {
                Some(words) => words,
                None => {
                    let source = node.source.as_ref();
                    let mut text = render::matrix(source, inventory, vocabulary, paint());
                    text.push_str(&report::advice(inventory));
                    text
                }
            }
        }
    };
    match format {
        Format::Matrix | Format::Tree => output.text(&text)?,
        _ => output.bytes(text.as_bytes())?,
    }
    Ok(report::exit(inventory))
}

/// Returns the lines of a tree, in ASCII unless standard output is a terminal with a UTF-8 locale.
fn lines_of(tree: &str) -> String {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
    let is_utf8 = locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    });
    if is_utf8 && std::io::stdout().is_terminal() {
        tree.to_owned()
    } else {
        ascii(tree)
    }
}

/// Returns the lines of a tree as `lspci -t` draws them.
fn ascii(tree: &str) -> String {
    tree.replace('├', "+")
        .replace('└', "\\")
        .replace('│', "|")
        .replace('─', "-")
}

/// Returns colors if standard output shows them.
fn paint() -> render::Paint {
    match anstream::AutoStream::choice(&std::io::stdout()) {
        anstream::ColorChoice::Never => render::Paint::Plain,
        _ => render::Paint::Terminal,
    }
}

/// Shows captures that contain only distances.
fn distances(
    global: &Global,
    options: &Options,
    found: &Distances,
    output: &mut Output,
) -> Result<Exit> {
    if !matches!(options.format, Format::Matrix | Format::Json) {
        return Err(UsageError(
            "the capture contains only distances, which cannot be drawn; pass a PCI tree, such as the \
             output of `lspci -D -nn -vvv`"
                .to_owned(),
        )
        .into());
    }
    found.check(options.words.map(Tool::vocabulary))?;
    let json = global.json || options.format == Format::Json;
    found.show(json, paint(), output)
}

#[cfg(test)]
mod tests {
    use gdr_node::{Inventory, example};

    use super::*;

    #[test]
    fn a_tree_can_be_drawn_in_ascii() {
        let tree = render::tree(&Inventory::read(&example::node()));
        let plain = ascii(&tree);
        assert!(
            plain.is_ascii() && plain.contains("+- ") && plain.contains("\\- "),
            "{plain}"
        );
        assert_eq!(plain.lines().count(), tree.lines().count());
    }
}
