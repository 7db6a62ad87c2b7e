//! A node's topology as text and pictures.
//!
//! ```
//! use gdr_node::{Inventory, example, render};
//!
//! let node = example::node();
//! let inventory = Inventory::read(&node);
//! println!("{}", render::tree(&inventory));
//! assert!(render::svg(&inventory).starts_with("<svg "));
//! ```

mod dot;
mod layout;
mod matrix;
mod nccl_xml;
mod svg;
mod tree;

pub use dot::dot;
pub use layout::{Branch, Layout, NumaGroup, RootGroup};
pub use matrix::{AFFINITY_HEADINGS, Affinity, Cells, MOST_DEVICES, Paint, Vocabulary, matrix};
pub use nccl_xml::nccl_xml;
pub use svg::{svg, svg_titled};
pub use tree::{nothing, tree, without_tree};

use crate::pci::{AcsBits, Function};

/// Returns a function's current link, and its best one if different: `32 GT/s x8 of x16`. A port is often faster than
/// the device below it, so for bridges only the width is compared.
pub(crate) fn link(function: &Function) -> Option<String> {
    let now = function.link.as_ref().ok().copied();
    let best = function.link_capable.as_ref().ok().copied();
    Some(match (now, best) {
        (Some(now), Some(best)) if now.speed < best.speed && !function.is_bridge() => {
            format!("{now} of {best}")
        }
        (Some(now), Some(best)) if now.width < best.width => format!("{now} of {}", best.width),
        (Some(now), _) => now.to_string(),
        (None, Some(best)) => format!("up to {best}"),
        (None, None) => return None,
    })
}

/// Returns the ACS bits of a port that redirect peer-to-peer traffic.
pub(crate) fn redirects(function: &Function) -> Option<AcsBits> {
    let bits = function.acs.as_ref().ok()?.redirecting();
    (!bits.is_empty()).then_some(bits)
}
