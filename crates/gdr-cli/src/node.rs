//! The node that a command looks at: this one, a capture of another, or the example.

use anyhow::Result;
use gdr_node::{Inventory, LiveRoot, Source, example};

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
}

impl Which {
    /// Reads the node.
    pub(crate) fn open(&self) -> Result<Node> {
        let source: Box<dyn Source> = if self.example {
            Box::new(example::node())
        } else {
            Box::new(LiveRoot::new())
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
        self.example
    }
}
