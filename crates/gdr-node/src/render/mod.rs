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
mod escape;
mod matrix;
mod nccl_xml;
mod shape;
mod svg;
mod tree;

pub use dot::dot;
pub use escape::Escaped;
pub use matrix::{Affinity, Cells, Vocabulary, matrix};
pub use nccl_xml::nccl_xml;
pub use shape::{Branch, NumaShape, RootShape, Shape};
pub use svg::svg;
pub use tree::tree;

use crate::pci::{AcsBits, Function};

/// A function's link, now and at its best where the two differ: `32 GT/s x8 of x16`. A port that
/// could be faster than what is plugged in is no news, so of bridges only lanes count.
pub(crate) fn link(function: &Function) -> Option<String> {
    let now = function.link.present().copied();
    let best = function.link_capable.present().copied();
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

/// The ACS bits of a port that keep peers from talking straight to each other.
pub(crate) fn redirects(function: &Function) -> Option<AcsBits> {
    let bits = function.acs.present()?.redirecting();
    (!bits.is_empty()).then_some(bits)
}
