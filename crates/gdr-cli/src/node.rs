//! The node that a command looks at: this one, a capture of another, or the example.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use gdr_node::archive::{Archive, ArchiveError};
use gdr_node::{Inventory, LiveRoot, Source, example};

use crate::live;

/// A node, and what was read of it already.
pub(crate) struct Node {
    /// Where everything else is read.
    pub(crate) source: Box<dyn Source>,
    /// What was read.
    pub(crate) inventory: Inventory,
}

/// Which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// Look at the example node that comes with this program: eight GPUs, ten NICs, two faults
    #[arg(long)]
    example: bool,

    /// Look at another node: an archive of `gdr collect`, or a directory laid out like its root
    #[arg(long, value_name = "PATH", conflicts_with = "example")]
    from: Option<PathBuf>,
}

impl Which {
    /// Reads the node.
    pub(crate) fn open(&self) -> Result<Node> {
        let source: Box<dyn Source> = match &self.from {
            _ if self.example => Box::new(example::node()),
            Some(path) => capture(path)?,
            None => Box::new(live::this_node()),
        };
        let inventory = Inventory::read(source.as_ref());
        Ok(Node { source, inventory })
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

/// A capture of a node, by what it is.
fn capture(path: &Path) -> Result<Box<dyn Source>> {
    if path.is_dir() {
        return Ok(Box::new(LiveRoot::at(path)));
    }
    match Archive::open(path) {
        Ok(archive) => Ok(Box::new(archive)),
        // Names the file itself.
        Err(error @ ArchiveError::File { .. }) => Err(error.into()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}
