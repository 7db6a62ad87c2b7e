//! The node that a command looks at: this one, a capture of another, or the example.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::Result;
use gdr_node::archive::{Archive, ArchiveError};
use gdr_node::import::nccl_xml::NcclTopology;
use gdr_node::import::topo_matrix::TopoMatrix;
use gdr_node::import::{Capture, MAX_TEXT};
use gdr_node::{Inventory, LiveRoot, MemorySource, Source, example};

use crate::exit::UsageError;
use crate::live;

/// A node, and what was read of it already.
pub(crate) struct Node {
    /// Where everything else is read.
    pub(crate) source: Box<dyn Source>,
    /// What was read.
    pub(crate) inventory: Inventory,
}

impl Node {
    fn read(source: Box<dyn Source>) -> Self {
        let inventory = Inventory::read(source.as_ref());
        Self { source, inventory }
    }

    /// One of which all else was not collected.
    pub(crate) fn of_devices(inventory: Inventory) -> Self {
        Self {
            source: Box::new(MemorySource::partial()),
            inventory,
        }
    }
}

/// A node, or what another tool said about distances in one.
pub(crate) enum Known {
    /// A node.
    Node(Node),
    /// Nothing but its devices.
    Devices(Inventory),
    /// The matrices of nvidia-smi.
    Matrices(Vec<TopoMatrix>),
    /// A topology of NCCL's.
    Nccl(NcclTopology),
}

/// Which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Look at the example node that comes with this program: eight GPUs, ten NICs, two faults
    #[arg(long)]
    example: bool,

    /// Look at another node: an archive of `gdr collect` or hwloc-gather-topology, a directory laid
    /// out like its root, or what lspci, nvidia-smi, NCCL, lstopo or rdma_topo wrote; - takes it
    /// from standard input
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    from: Option<PathBuf>,
}

impl Which {
    /// Reads the node.
    pub(crate) fn open(&self) -> Result<Node> {
        match self.look()? {
            Known::Node(node) => Ok(node),
            Known::Devices(inventory) => Ok(Node::of_devices(inventory)),
            Known::Matrices(_) => anyhow::bail!(
                "{}: a matrix of nvidia-smi has no PCI tree, which this takes; `gdr topo` shows it",
                self.name()
            ),
            Known::Nccl(_) => anyhow::bail!(
                "{}: a topology of NCCL has no ports and no host bridges, which this takes; `gdr \
                 topo` shows it",
                self.name()
            ),
        }
    }

    /// What it was asked for by.
    fn name(&self) -> String {
        let named = self.from.as_deref().map(|path| path.display().to_string());
        named.unwrap_or_else(|| "this node".to_owned())
    }

    /// Reads the node, or what is known of it.
    pub(crate) fn look(&self) -> Result<Known> {
        let source: Box<dyn Source> = match &self.from {
            _ if self.example => Box::new(example::node()),
            Some(path) => {
                return named(path);
            }
            None => Box::new(live::this_node()),
        };
        Ok(Known::Node(Node::read(source)))
    }

    /// Whether it is no node that exists.
    pub(crate) fn is_example(&self) -> bool {
        self.example
    }

    /// Whether it is another node than this one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.example || self.from.is_some()
    }
}

/// A node to compare with others.
pub(crate) struct Named {
    /// What to call it.
    pub(crate) name: String,
    /// Where everything is read.
    pub(crate) source: Box<dyn Source>,
}

impl Named {
    /// The node in a capture, named as it names itself, else as its file.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let source = capture(path)?;
        let host = source.text("/proc/sys/kernel/hostname").into_present();
        let name = host
            .filter(|host| !host.is_empty() && !host.contains(char::is_control))
            .unwrap_or_else(|| path.display().to_string());
        Ok(Self { name, source })
    }

    /// The machine this runs on.
    pub(crate) fn this() -> Self {
        Self {
            name: "this node".to_owned(),
            source: Box::new(live::this_node()),
        }
    }
}

/// A capture of which everything can be read.
fn capture(path: &Path) -> Result<Box<dyn Source>> {
    match named(path)? {
        Known::Node(node) => Ok(node.source),
        Known::Devices(_) | Known::Matrices(_) | Known::Nccl(_) => anyhow::bail!(
            "{}: this is a part of a node only; pass an archive of `gdr collect`",
            path.display()
        ),
    }
}

/// What a capture is; an error names the file.
fn named(path: &Path) -> Result<Known> {
    known(path).map_err(|error| match error.downcast_ref() {
        Some(ArchiveError::File { .. }) => error,
        _ => error.context(path.display().to_string()),
    })
}

/// What a capture is, by its content.
fn known(path: &Path) -> Result<Known> {
    if path.is_dir() {
        let root = root(path);
        if !root.join("sys").is_dir() && !root.join("proc").is_dir() {
            return Err(UsageError(format!(
                "{} is no root of a node: neither sys nor proc is in it; name a directory laid out \
                 like one, or a file",
                path.display()
            ))
            .into());
        }
        return Ok(Known::Node(Node::read(Box::new(LiveRoot::at(root)))));
    }
    let bytes = head(path)?;
    if Archive::is_archive(&bytes) {
        // Of what came on standard input there is no more than these bytes.
        let archive = if is_standard_input(path) {
            Archive::read(&bytes[..])?
        } else {
            Archive::open(path)?
        };
        return Ok(Known::Node(Node::read(Box::new(archive))));
    }
    Ok(match Capture::read(&bytes)? {
        Capture::Files(source) => Known::Node(Node::read(source)),
        Capture::Devices(inventory) => Known::Devices(*inventory),
        Capture::Matrices(matrices) => Known::Matrices(matrices),
        Capture::Nccl(topology) => Known::Nccl(topology),
        _ => anyhow::bail!("it is of a kind that is not shown yet"),
    })
}

fn is_standard_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// A file's bytes, or those of standard input, a byte more at most than a text may have.
fn head(path: &Path) -> Result<Vec<u8>> {
    let file = |source| ArchiveError::File {
        path: path.to_owned(),
        source,
    };
    let input: Box<dyn Read> = if is_standard_input(path) {
        let input = io::stdin();
        if input.is_terminal() {
            return Err(UsageError(
                "standard input is a terminal: name a file, or pipe one here".to_owned(),
            )
            .into());
        }
        Box::new(input)
    } else {
        Box::new(File::open(path).map_err(file)?)
    };
    let mut bytes = Vec::new();
    let mut input = input.take(MAX_TEXT as u64 + 1);
    input.read_to_end(&mut bytes).map_err(file)?;
    Ok(bytes)
}

/// The root in a directory: itself, or the one directory in it, as archives of
/// hwloc-gather-topology unpack.
fn root(path: &Path) -> PathBuf {
    if path.join("sys").is_dir() {
        return path.to_owned();
    }
    let inside = path.read_dir().into_iter().flatten().flatten();
    let mut roots = inside
        .map(|entry| entry.path())
        .filter(|inside| inside.join("sys").is_dir());
    match (roots.next(), roots.next()) {
        (Some(only), None) => only,
        _ => path.to_owned(),
    }
}
