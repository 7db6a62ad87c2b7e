//! `gdr topo`: how far apart GPUs and NICs are, and why.

mod check;
mod report;
mod why;
mod words;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Subcommand, ValueEnum};
use gdr_node::render::{self, Vocabulary};

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit, UsageError};
use crate::node::{Known, Node, Which};
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr topo                            the matrix of nvidia-smi topo -m, from sysfs alone
  gdr topo --as nccl                  the same in NCCL's words
  gdr topo --format tree              host bridges, switches, links
  gdr topo --format svg > node.svg    a picture
  gdr topo why GPU0 mlx5_3            the way between the two, hop by hop
  gdr topo --from lspci.txt           another node, by `lspci -vvv` of it
  gdr topo check --from lspci.txt --matrix topo.txt";

/// Show how far apart GPUs and NICs are, and why
///
/// Needs neither NVIDIA's driver nor privileges. NVLinks are shown where NVIDIA's management
/// library tells of them, for sysfs does not. Root also sees the ACS bits of ports on the way.
#[derive(Debug, clap::Args)]
#[command(
    after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"),
    args_conflicts_with_subcommands = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: Option<What>,

    #[command(flatten)]
    which: Which,

    /// Whose words to use: those of nvidia-smi unless the capture is NCCL's
    #[arg(long = "as", value_enum, value_name = "TOOL")]
    words: Option<Tool>,

    /// How to show it
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t = Format::Matrix)]
    format: Format,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Say how far apart two devices are, hop by hop, and why
    Why {
        /// A device: GPU0, mlx5_3, NIC3 or a PCI address
        a: String,
        /// Another
        b: String,
        #[command(flatten)]
        which: Which,
    },
    /// Compare with a matrix that nvidia-smi printed: 0 where every cell is equal, else 2
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
    /// A line and a column a device
    Matrix,
    /// NUMA nodes, host bridges, switches, devices
    Tree,
    /// For programs
    Json,
    /// For Graphviz
    Dot,
    /// A picture
    Svg,
    /// For NCCL_TOPO_FILE
    NcclXml,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    match &options.what {
        Some(What::Why { a, b, which }) => return why::run(global, which, (a, b), output),
        Some(What::Check { matrix, which }) => return check::run(global, which, matrix, output),
        None => {}
    }
    let asked = options.words.map(Tool::vocabulary);
    let node = match options.which.look()? {
        Known::Node(node) => node,
        Known::Devices(inventory) => Node::of_devices(inventory),
        Known::Matrices(matrices) => {
            let words = matrices.iter().map(words::Words::of_matrix);
            return distances(global, options, words, output);
        }
        Known::Nccl(topology) => {
            let words = words::Words::of_nccl(&topology);
            return distances(global, options, [words], output);
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
        Format::Tree => render::tree(inventory),
        Format::Dot => render::dot(inventory),
        Format::Svg => render::svg(inventory),
        Format::NcclXml => render::nccl_xml(node.source.as_ref(), inventory),
        Format::Matrix => {
            let vocabulary = asked.unwrap_or_default();
            let mut text = render::matrix(node.source.as_ref(), inventory, vocabulary);
            text.push_str(&report::advice(inventory));
            text
        }
    };
    output.bytes(text.as_bytes())?;
    Ok(report::exit(inventory))
}

/// Shows captures that have distances only.
fn distances(
    global: &Global,
    options: &Options,
    captures: impl IntoIterator<Item = words::Words>,
    output: &mut Output,
) -> Result<Exit> {
    if !matches!(options.format, Format::Matrix | Format::Json) {
        return Err(UsageError(
            "the capture has distances only, of which there is no picture; pass a PCI tree, as \
             `lspci -D -nn -vvv` prints it"
                .to_owned(),
        )
        .into());
    }
    let json = global.json || options.format == Format::Json;
    for words in captures {
        words.check(options.words.map(Tool::vocabulary))?;
        words.show(json, output)?;
    }
    Ok(Exit::Fine)
}
