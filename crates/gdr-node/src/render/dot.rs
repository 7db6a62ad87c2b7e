//! The topology as a Graphviz graph.

use std::fmt::Write;

use super::layout::{Branch, Layout};
use super::{link, redirects};
use crate::devices::DeviceKind;
use crate::inventory::Inventory;

/// Returns the graph in DOT, with a cluster per NUMA node, boxes for bridges and ovals for devices. `dot -Tpdf` draws
/// it.
pub fn dot(inventory: &Inventory) -> String {
    let mut out = String::from(
        "graph topology {\n  rankdir=TB;\n  node [shape=box, fontname=\"sans-serif\"];\n  \
         edge [fontname=\"sans-serif\", fontsize=10];\n",
    );
    // Writing to a string never fails.
    for (number, node) in Layout::new(inventory)
        .iter()
        .flat_map(|layout| &layout.nodes)
        .enumerate()
    {
        let title = match node.node {
            Some(node) => format!("NUMA node {node}"),
            None => "no NUMA node".to_owned(),
        };
        let _ = writeln!(
            out,
            "  subgraph cluster_{number} {{\n    label={};",
            quoted(&title)
        );
        for root in &node.roots {
            let name = root.root.to_string();
            let _ = writeln!(out, "    {} [shape=trapezium];", quoted(&name));
            for branch in &root.branches {
                put(&mut out, &name, branch, inventory);
            }
        }
        out.push_str("  }\n");
    }
    out.push_str("}\n");
    out
}

fn put(out: &mut String, above: &str, branch: &Branch, inventory: &Inventory) {
    let (bdf, label, style) = match branch {
        Branch::Bridge { bdf, .. } => (*bdf, bdf.to_string(), ""),
        Branch::Device(device) => (
            device.bdf,
            format!("{}\n{}", device.name, device.bdf),
            match device.kind {
                DeviceKind::Gpu => ", shape=oval, style=filled, fillcolor=\"#c5e48b\"",
                DeviceKind::Nic => ", shape=oval, style=filled, fillcolor=\"#9cc4f0\"",
            },
        ),
    };
    let function = inventory.function(bdf);
    let on_edge = function.and_then(link).unwrap_or_default();
    let warning = function.and_then(redirects);
    let label = match warning {
        Some(bits) => format!("{label}\nACS {bits}"),
        None => label,
    };
    let colour = if warning.is_some() { ", color=red" } else { "" };
    let name = bdf.to_string();
    let _ = writeln!(
        out,
        "    {} [label={}{style}{colour}];\n    {} -- {} [label={}];",
        quoted(&name),
        quoted(&label),
        quoted(above),
        quoted(&name),
        quoted(&on_edge)
    );
    if let Branch::Bridge { below, .. } = branch {
        for child in below {
            put(out, &name, child, inventory);
        }
    }
}

/// Quotes a text for DOT.
fn quoted(text: &str) -> String {
    let inside: String = text
        .chars()
        .map(|c| match c {
            '"' => "\\\"".to_owned(),
            '\\' => "\\\\".to_owned(),
            '\n' => "\\n".to_owned(),
            c if c.is_control() => " ".to_owned(),
            c => c.to_string(),
        })
        .collect();
    format!("\"{inside}\"")
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::example;

    #[test]
    fn every_device_hangs_on_its_port() {
        let node = example::node();
        let text = dot(&Inventory::read(&node));
        for (port, gpu) in example::GPU_PORTS.iter().zip(example::GPUS) {
            assert_contains!(text, format!("\"{port}\" -- \"{gpu}\""));
        }
        assert_eq!(text.matches('{').count(), text.matches('}').count());
    }

    #[test]
    fn a_quote_cannot_end_a_name() {
        assert_eq!(quoted("a\"b\\\nc"), "\"a\\\"b\\\\\\nc\"");
    }
}
