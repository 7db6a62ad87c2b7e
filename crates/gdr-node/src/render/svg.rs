//! The topology as a picture: NUMA nodes, host bridges, switches, devices, and below it the
//! distances.

use std::fmt::Write;

use super::shape::{Branch, NumaShape, RootShape, Shape};
use super::{Cells, Escaped, Vocabulary, link, redirects};
use crate::devices::{Device, DeviceKind};
use crate::inventory::Inventory;
use crate::pci::Function;

/// The widest that a row of host bridges becomes before the next one is begun, in pixels.
const ROW: f64 = 1300.0;
const GAP: f64 = 14.0;
const LEAF: (f64, f64) = (116.0, 62.0);
const SWITCH: f64 = 36.0;
/// Between a bridge and what hangs on it: room for the port's words.
const WIRE: f64 = 40.0;
const HEAD: f64 = 26.0;
const CELL: (f64, f64) = (58.0, 22.0);

const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1b1f24}\
.m{font-family:ui-monospace,Menlo,Consolas,monospace;font-size:10.5px}\
.s{font-size:10.5px;fill:#57606a}.n{font-size:14px;font-weight:600}\
.h{font-size:15px;font-weight:600}\
.p{paint-order:stroke;stroke:#fff;stroke-width:4px;stroke-linejoin:round}.bad{fill:#cf222e;font-weight:600}\
.numa{fill:#f6f8fa;stroke:#d0d7de}.root{fill:#fff;stroke:#afb8c1}\
.sw{fill:#eceff3;stroke:#8c959f}.gpu{fill:#e4f3cb;stroke:#5b8c00}\
.nic{fill:#ddebfb;stroke:#1f6fc4}.w{stroke:#8c959f;fill:none;stroke-width:1.5}\
.wbad{stroke:#cf222e;fill:none;stroke-width:2.5;stroke-dasharray:5 3}";

/// A thing with room below it: a switch, or a device with the ports above it.
enum Item<'a> {
    Switch {
        /// The bridges that it is, from the top down.
        bridges: Vec<&'a Function>,
        inside: Vec<Item<'a>>,
    },
    Leaf {
        ports: Vec<&'a Function>,
        device: &'a Device,
    },
}

impl<'a> Item<'a> {
    fn new(branch: &'a Branch, inventory: &'a Inventory) -> Self {
        match branch {
            Branch::Device(device) => Self::Leaf {
                ports: Vec::new(),
                device,
            },
            Branch::Bridge { bdf, below } => {
                let here = inventory.function(*bdf);
                if let [only] = below.as_slice() {
                    // A bridge with one thing below it is a port on the way to it.
                    let mut item = Self::new(only, inventory);
                    let (Self::Switch { bridges: way, .. } | Self::Leaf { ports: way, .. }) =
                        &mut item;
                    way.splice(0..0, here);
                    return item;
                }
                Self::Switch {
                    bridges: here.into_iter().collect(),
                    inside: below
                        .iter()
                        .map(|branch| Self::new(branch, inventory))
                        .collect(),
                }
            }
        }
    }

    fn size(&self) -> (f64, f64) {
        match self {
            Self::Leaf { .. } => LEAF,
            Self::Switch { inside, .. } => {
                let (width, height) = row(inside);
                (width.max(200.0), SWITCH + WIRE + height)
            }
        }
    }

    /// The ports on the line from above: of a switch those above it.
    fn ways(&self) -> &[&'a Function] {
        match self {
            Self::Switch { bridges, .. } => bridges.split_last().map_or(&[], |(_, above)| above),
            Self::Leaf { ports, .. } => ports,
        }
    }
}

/// The room that items need beside each other.
fn row(items: &[Item<'_>]) -> (f64, f64) {
    let sizes: Vec<(f64, f64)> = items.iter().map(Item::size).collect();
    let width: f64 =
        sizes.iter().map(|size| size.0).sum::<f64>() + GAP * (sizes.len().saturating_sub(1)) as f64;
    let height = sizes.iter().map(|size| size.1).fold(0.0, f64::max);
    (width, height)
}

/// A picture of the node: an SVG element of its own size. Ports whose ACS redirects what peers
/// send each other, and links that lack lanes, are red.
pub fn svg(inventory: &Inventory) -> String {
    let mut body = String::new();
    let (mut y, mut width) = (GAP, 420.0_f64);
    if let Some(shape) = Shape::new(inventory) {
        for node in &shape.nodes {
            let (w, h) = numa(&mut body, node, inventory, GAP, y);
            width = width.max(w);
            y += h + GAP;
        }
    }
    if body.is_empty() {
        text(
            &mut body,
            GAP,
            y + 16.0,
            "n",
            "No GPU and no RDMA NIC is known.",
        );
        y += 30.0;
    }
    let (w, h) = distances(&mut body, inventory, GAP, y);
    width = width.max(w);
    y += h;
    let (width, height) = (width + 2.0 * GAP, y + GAP);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"PCI topology\">\n\
         <style>{STYLE}</style>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{body}</svg>\n"
    )
}

// Writing to a string never fails, here and below.

fn text(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>",
        Escaped(words)
    );
}

fn middle(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let _ = writeln!(
        out,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\" text-anchor=\"middle\">{}</text>",
        Escaped(words)
    );
}

fn rect(out: &mut String, (x, y): (f64, f64), (w, h): (f64, f64), class: &str) {
    let _ = writeln!(
        out,
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"6\" \
         class=\"{class}\"/>"
    );
}

fn numa(out: &mut String, node: &NumaShape, inventory: &Inventory, x: f64, y: f64) -> (f64, f64) {
    let mut inside = String::new();
    let (mut across, mut down) = (x + GAP, y + HEAD + 8.0);
    let (mut widest, mut tallest) = (0.0_f64, 0.0_f64);
    for shape in &node.roots {
        let items: Vec<Item<'_>> = (shape.branches.iter())
            .map(|branch| Item::new(branch, inventory))
            .collect();
        let (w, h) = room(&items);
        if across > x + GAP && across + w > x + ROW {
            across = x + GAP;
            down += tallest + GAP;
            tallest = 0.0;
        }
        root(&mut inside, shape, &items, inventory, across, down);
        across += w + GAP;
        widest = widest.max(across - x);
        tallest = tallest.max(h);
    }
    let size = (widest.max(260.0), down + tallest + GAP - y);
    rect(out, (x, y), size, "numa");
    let title = match node.node {
        Some(node) => format!("NUMA node {node}"),
        None => "no NUMA node (firmware does not say)".to_owned(),
    };
    text(out, x + GAP, y + 22.0, "h", &title);
    out.push_str(&inside);
    size
}

/// The room that a host bridge needs.
fn room(items: &[Item<'_>]) -> (f64, f64) {
    let (width, height) = row(items);
    (width.max(120.0) + 2.0 * GAP, HEAD + WIRE + height + GAP)
}

fn root(
    out: &mut String,
    shape: &RootShape,
    items: &[Item<'_>],
    inventory: &Inventory,
    x: f64,
    y: f64,
) {
    let size = room(items);
    rect(out, (x, y), size, "root");
    text(out, x + 10.0, y + 18.0, "m", &shape.root.to_string());
    let from = (x + size.0 / 2.0, y + HEAD);
    beside(out, items, inventory, x + GAP, y + HEAD + WIRE, from);
}

/// Draws items in a row, each with its line from above.
fn beside(
    out: &mut String,
    items: &[Item<'_>],
    inventory: &Inventory,
    x: f64,
    y: f64,
    from: (f64, f64),
) {
    let mut across = x;
    for item in items {
        let (w, _) = item.size();
        let centre = across + w / 2.0;
        wire(out, item.ways(), from, (centre, y));
        draw(out, item, inventory, across, y);
        across += w + GAP;
    }
}

fn wire(out: &mut String, ways: &[&Function], from: (f64, f64), to: (f64, f64)) {
    let redirecting = ways.iter().find_map(|port| redirects(port));
    let bend = from.1 + 7.0;
    let class = if redirecting.is_some() { "wbad" } else { "w" };
    let _ = writeln!(
        out,
        "<path class=\"{class}\" d=\"M{:.1} {:.1} V{bend:.1} H{:.1} V{:.1}\"/>",
        from.0, from.1, to.0, to.1
    );
    let Some(port) = ways.last() else {
        return;
    };
    middle(out, to.0, to.1 - 16.0, "m p", &port.bdf.to_string());
    let (class, words) = match redirecting {
        Some(_) => ("s p bad", "ACS redirects".to_owned()),
        None => ("s p", link(port).unwrap_or_default()),
    };
    middle(out, to.0, to.1 - 5.0, class, &words);
}

fn draw(out: &mut String, item: &Item<'_>, inventory: &Inventory, x: f64, y: f64) {
    let (width, _) = item.size();
    match item {
        Item::Switch { bridges, inside } => {
            rect(out, (x, y), (width, SWITCH), "sw");
            let words = match bridges.last() {
                Some(top) => format!("switch {}", top.bdf),
                None => "switch".to_owned(),
            };
            middle(out, x + width / 2.0, y + 15.0, "m", &words);
            let up = bridges.last().and_then(|top| link(top)).unwrap_or_default();
            middle(out, x + width / 2.0, y + 29.0, "s", &up);
            let (row_width, _) = row(inside);
            let left = x + (width - row_width) / 2.0;
            let from = (x + width / 2.0, y + SWITCH);
            beside(out, inside, inventory, left, y + SWITCH + WIRE, from);
        }
        Item::Leaf { device, .. } => leaf(out, device, inventory, x, y),
    }
}

fn leaf(out: &mut String, device: &Device, inventory: &Inventory, x: f64, y: f64) {
    let class = match device.kind {
        DeviceKind::Gpu => "gpu",
        DeviceKind::Nic => "nic",
    };
    rect(out, (x, y), LEAF, class);
    let centre = x + LEAF.0 / 2.0;
    let function = inventory.function(device.bdf);
    if let Some(name) = function.and_then(|function| function.identity.name.as_ref()) {
        let _ = writeln!(out, "<title>{}</title>", Escaped(name));
    }
    middle(out, centre, y + 20.0, "n", &device.name);
    if device.name != device.bdf.to_string() {
        middle(out, centre, y + 36.0, "m", &device.bdf.to_string());
    }
    let Some(function) = function else {
        return;
    };
    let lanes = match (function.link.present(), function.link_capable.present()) {
        (Some(now), Some(best)) => now.width < best.width,
        _ => false,
    };
    let class = if lanes { "s bad" } else { "s" };
    middle(
        out,
        centre,
        y + 52.0,
        class,
        &link(function).unwrap_or_default(),
    );
}

/// The colour of a class, from near to far.
fn colour(word: &str) -> &'static str {
    match word {
        "PIX" => "#b7e1a1",
        "PXB" => "#d5edb9",
        "PHB" => "#fdf0b3",
        "NODE" => "#fbd9a6",
        "SYS" => "#f7b7b0",
        _ if word.starts_with("NV") => "#8fd18f",
        _ => "#f0f2f4",
    }
}

/// The distances between each GPU and all devices, as a table of colours.
fn distances(out: &mut String, inventory: &Inventory, x: f64, y: f64) -> (f64, f64) {
    let cells = Cells::new(inventory, Vocabulary::Smi);
    let gpus = (cells.devices.iter())
        .take_while(|device| device.kind == DeviceKind::Gpu)
        .count();
    if gpus == 0 || cells.devices.len() < 2 {
        return (0.0, 0.0);
    }
    text(out, x, y + 22.0, "h", "Distances (as nvidia-smi topo -m)");
    let (left, top) = (x + 64.0, y + 36.0);
    for (column, device) in cells.devices.iter().enumerate() {
        let centre = left + (column as f64 + 0.5) * CELL.0;
        middle(out, centre, top + 15.0, "s", &short(&device.name));
    }
    for (line, (device, words)) in cells
        .devices
        .iter()
        .zip(&cells.words)
        .take(gpus)
        .enumerate()
    {
        let at = top + (line as f64 + 1.0) * CELL.1;
        text(out, x, at + 15.0, "s", &short(&device.name));
        for (column, word) in words.iter().enumerate() {
            let from = left + column as f64 * CELL.0;
            let _ = writeln!(
                out,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\"/>",
                from + 1.0,
                at + 1.0,
                CELL.0 - 2.0,
                CELL.1 - 2.0,
                colour(word)
            );
            middle(out, from + CELL.0 / 2.0, at + 15.0, "m", word);
        }
    }
    let bottom = top + (gpus as f64 + 1.0) * CELL.1 + 22.0;
    text(
        out,
        x,
        bottom,
        "s",
        "NV# NVLinks, PIX one switch, PXB several switches, PHB one host bridge, NODE one NUMA \
         node, SYS across NUMA nodes.",
    );
    let width = 64.0 + cells.devices.len() as f64 * CELL.0;
    (width.max(640.0), bottom - y + 10.0)
}

/// A name that fits a column: an address loses its domain.
fn short(name: &str) -> String {
    if name.chars().count() <= 9 {
        return name.to_owned();
    }
    match name.split_once(':') {
        Some((_, rest)) if rest.contains(':') => rest.to_owned(),
        _ => name.chars().take(8).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemorySource, example};

    #[test]
    fn every_device_is_drawn_once_and_faults_are_red() {
        let node = example::node();
        let picture = svg(&Inventory::read(&node));
        for bdf in example::GPUS.iter().chain(&example::NICS) {
            assert_eq!(picture.matches(&format!(">{bdf}<")).count(), 1, "{bdf}");
        }
        assert!(picture.contains("bad\" text-anchor=\"middle\">ACS redirects<"));
        assert!(picture.contains("wbad"));
        roxmltree::Document::parse(&picture).unwrap();
    }

    #[test]
    fn a_node_without_devices_has_a_picture_too() {
        let picture = svg(&Inventory::read(&MemorySource::partial()));
        assert!(picture.contains("No GPU and no RDMA NIC"));
        roxmltree::Document::parse(&picture).unwrap();
    }
}
