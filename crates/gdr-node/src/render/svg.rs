//! The topology as a picture: NUMA nodes, host bridges, switches and devices, with the distances below.

use gdr_render::svg::{Element, Number};

use super::layout::{Branch, Layout, NumaGroup, RootGroup};
use super::tree::unplaced;
use super::{Cells, Vocabulary, link, redirects};
use crate::devices::{Device, DeviceKind};
use crate::inventory::Inventory;
use crate::pci::{Function, PortType};
use crate::topology::DistanceClass;

/// The maximum width of a row of host bridges, in pixels.
const ROW: f64 = 1300.0;
const GAP: f64 = 14.0;
const LEAF: (f64, f64) = (116.0, 74.0);
const SWITCH: f64 = 36.0;
/// The distance between a bridge and its children, with room for the port's label.
const WIRE: f64 = 40.0;
const HEAD: f64 = 26.0;
const CELL: (f64, f64) = (58.0, 22.0);
/// The most rows and columns of the distance table, and the most NVSwitches in a row, that fit on a screen.
const MOST_ROWS: usize = 64;
const MOST_COLUMNS: usize = 128;
const MOST_SWITCHES: usize = 16;
/// Explains the table's terms.
const LEGEND: [&str; 2] = [
    "NV# NVLinks, PIX one switch, PXB several switches, PHB one host bridge, NODE one NUMA node,",
    "SYS across NUMA nodes. Rows of NICs match the columns.",
];
/// The most characters of a model's name in a box.
const MOST_MODEL: usize = 18;

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

/// The role of a bridge in a picture.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    RootPort,
    /// A switch, by the port that leads to the root.
    Switch,
    /// A port of a switch that leads away from the root.
    Port,
}

impl Role {
    /// Returns a bridge's role by its port type, or else by the number of bridges above it: every second one is a
    /// switch's upstream port.
    fn of(function: Option<&Function>, above: usize) -> Self {
        let express = function.and_then(|function| function.express.as_ref().ok());
        match express.map(|express| express.port) {
            Some(PortType::RootPort) => Self::RootPort,
            Some(PortType::SwitchUpstream) => Self::Switch,
            Some(PortType::SwitchDownstream) => Self::Port,
            _ if above == 0 => Self::RootPort,
            _ if above % 2 == 1 => Self::Switch,
            _ => Self::Port,
        }
    }

    const fn words(self) -> &'static str {
        match self {
            Self::RootPort => "root port",
            Self::Switch => "switch",
            Self::Port => "port",
        }
    }
}

/// An item with space below it: a bridge, or a device with the ports above it.
enum Item<'a> {
    Bridge {
        role: Role,
        bridge: Option<&'a Function>,
        /// The ports on the line from above.
        ports: Vec<&'a Function>,
        inside: Vec<Item<'a>>,
    },
    Leaf {
        ports: Vec<&'a Function>,
        device: &'a Device,
    },
}

impl<'a> Item<'a> {
    fn new(branch: &'a Branch, inventory: &'a Inventory, above: usize) -> Self {
        match branch {
            Branch::Device(device) => Self::Leaf {
                ports: Vec::new(),
                device,
            },
            Branch::Bridge { bdf, below } => {
                let here = inventory.function(*bdf);
                let role = Role::of(here, above);
                // A port with one child is drawn on the line to it. A switch always gets a box, because it counts in
                // every distance.
                if let ([only], true) = (below.as_slice(), role != Role::Switch) {
                    let mut item = Self::new(only, inventory, above + 1);
                    let (Self::Bridge { ports: way, .. } | Self::Leaf { ports: way, .. }) =
                        &mut item;
                    way.splice(0..0, here);
                    return item;
                }
                Self::Bridge {
                    role,
                    bridge: here,
                    ports: Vec::new(),
                    inside: below
                        .iter()
                        .map(|branch| Self::new(branch, inventory, above + 1))
                        .collect(),
                }
            }
        }
    }

    fn size(&self) -> (f64, f64) {
        match self {
            Self::Leaf { .. } => LEAF,
            Self::Bridge { inside, .. } => {
                let (width, height) = row(inside);
                (width.max(140.0), SWITCH + WIRE + height)
            }
        }
    }

    /// Returns the ports on the line from above.
    fn ways(&self) -> &[&'a Function] {
        match self {
            Self::Bridge { ports, .. } | Self::Leaf { ports, .. } => ports,
        }
    }
}

/// Returns the size of items placed side by side.
fn row(items: &[Item<'_>]) -> (f64, f64) {
    let sizes: Vec<(f64, f64)> = items.iter().map(Item::size).collect();
    let width: f64 =
        sizes.iter().map(|size| size.0).sum::<f64>() + GAP * (sizes.len().saturating_sub(1)) as f64;
    let height = sizes.iter().map(|size| size.1).fold(0.0, f64::max);
    (width, height)
}

/// Returns a picture of the node as an SVG element with its size. Ports whose ACS redirects traffic between peers, and
/// links with missing lanes, are red.
pub fn svg(inventory: &Inventory) -> String {
    drawn(inventory, None)
}

/// Returns the same picture below a title, which names the node and the time.
pub fn svg_titled(inventory: &Inventory, title: &str) -> String {
    drawn(inventory, Some(title))
}

fn drawn(inventory: &Inventory, title: Option<&str>) -> String {
    let mut body = String::new();
    let (mut y, mut width) = (GAP, 420.0_f64);
    if let Some(title) = title {
        text(&mut body, GAP, y + 16.0, "h", title);
        // Letters are some 8 pixels wide.
        width = width.max(8.0 * title.chars().count() as f64);
        y += 30.0;
    }
    let nothing = body.len();
    if let Some(layout) = Layout::new(inventory) {
        for node in &layout.nodes {
            let (w, h) = numa(&mut body, node, inventory, GAP, y);
            width = width.max(w);
            y += h + GAP;
        }
    }
    let (w, h) = nvswitches(&mut body, inventory, GAP, y);
    width = width.max(w);
    y += h;
    if body.len() == nothing {
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
    let background = Element::new("rect")
        .with("width", "100%")
        .with("height", "100%");
    let background = background.with("fill", "#fff");
    let root = Element::root((width.round(), height.round()))
        .with("role", "img")
        .with("aria-label", title.unwrap_or("PCI topology"))
        .lines(&format!("<style>{STYLE}</style>\n{background}\n{body}"));
    format!("{root}\n")
}

fn text(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let text = Element::text((x, y), words);
    text.with("class", class).put(out);
}

fn middle(out: &mut String, x: f64, y: f64, class: &str, words: &str) {
    let text = Element::text((x, y), words).with("class", class);
    text.centered().put(out);
}

fn rect(out: &mut String, at: (f64, f64), size: (f64, f64), class: &str) {
    let rect = Element::rect(at, size).with("rx", 6);
    rect.with("class", class).put(out);
}

fn numa(out: &mut String, node: &NumaGroup, inventory: &Inventory, x: f64, y: f64) -> (f64, f64) {
    let mut inside = String::new();
    let (mut across, mut down) = (x + GAP, y + HEAD + 8.0);
    let (mut widest, mut tallest) = (0.0_f64, 0.0_f64);
    for group in &node.roots {
        let items: Vec<Item<'_>> = (group.branches.iter())
            .map(|branch| Item::new(branch, inventory, 0))
            .collect();
        let (w, h) = room(&items);
        if across > x + GAP && across + w > x + ROW {
            across = x + GAP;
            down += tallest + GAP;
            tallest = 0.0;
        }
        root(&mut inside, group, &items, inventory, across, down);
        across += w + GAP;
        widest = widest.max(across - x);
        tallest = tallest.max(h);
    }
    let size = (widest.max(260.0), down + tallest + GAP - y);
    rect(out, (x, y), size, "numa");
    let title = match node.node {
        Some(node) => format!("NUMA node {node}"),
        None => unplaced(inventory).to_owned(),
    };
    text(out, x + GAP, y + 22.0, "h", &title);
    out.push_str(&inside);
    size
}

/// Returns the size of a host bridge.
fn room(items: &[Item<'_>]) -> (f64, f64) {
    let (width, height) = row(items);
    (width.max(120.0) + 2.0 * GAP, HEAD + WIRE + height + GAP)
}

fn root(
    out: &mut String,
    group: &RootGroup,
    items: &[Item<'_>],
    inventory: &Inventory,
    x: f64,
    y: f64,
) {
    let size = room(items);
    rect(out, (x, y), size, "root");
    text(out, x + 10.0, y + 18.0, "m", &group.root.to_string());
    let from = (x + size.0 / 2.0, y + HEAD);
    // Centered, so that the line to a lone card is straight.
    let left = x + (size.0 - row(items).0) / 2.0;
    beside(out, items, inventory, left, y + HEAD + WIRE, from);
}

/// Draws items side by side, each with its line from above.
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
    let [x, y, bend, across, down] = [from.0, from.1, bend, to.0, to.1].map(Number);
    Element::new("path")
        .with("class", class)
        .with("d", format_args!("M{x} {y} V{bend} H{across} V{down}"))
        .put(out);
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
        Item::Bridge {
            role,
            bridge,
            inside,
            ..
        } => {
            rect(out, (x, y), (width, SWITCH), "sw");
            let at = bridge.map_or(String::new(), |bridge| format!(" {}", bridge.bdf));
            let words = format!("{}{at}", role.words());
            middle(out, x + width / 2.0, y + 15.0, "m", &words);
            let up = bridge.and_then(link).unwrap_or_default();
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
        Element::new("title").words(name).put(out);
    }
    middle(out, centre, y + 20.0, "n", &device.name);
    if device.name != device.bdf.to_string() {
        middle(out, centre, y + 36.0, "m", &device.bdf.to_string());
    }
    let Some(function) = function else {
        return;
    };
    let model = model(function).unwrap_or_default();
    middle(out, centre, y + 51.0, "s", &model);
    let lanes = match (
        function.link.as_ref().ok(),
        function.link_capable.as_ref().ok(),
    ) {
        (Some(now), Some(best)) => now.width < best.width,
        _ => false,
    };
    let class = if lanes { "s bad" } else { "s" };
    middle(
        out,
        centre,
        y + 66.0,
        class,
        &link_in_box(function).unwrap_or_default(),
    );
}

/// Returns a device's link in as few letters as fit its box: `2.5 of 32 GT/s x16`.
fn link_in_box(function: &Function) -> Option<String> {
    let words = link(function)?;
    let Some((now, best)) = words
        .split_once(" of ")
        .filter(|(_, best)| best.contains("GT/s"))
    else {
        return Some(words);
    };
    // States the unit once, and also the width if it is the same.
    let (speed, width) = now.split_once(" GT/s ")?;
    Some(match best.ends_with(&format!(" {width}")) {
        true => format!("{speed} of {best}"),
        false => format!("{speed} {width} of {best}"),
    })
}

/// Returns a short model name: the bracketed part of the device's name, or the model of its device ID.
fn model(function: &Function) -> Option<String> {
    let identity = &function.identity;
    let of_name = identity.name.as_deref().and_then(|name| {
        let plain = |text: &&str| !text.contains(':');
        let inside = name.split('[').skip(1).filter_map(|rest| {
            let (inside, _) = rest.split_once(']')?;
            Some(inside).filter(plain)
        });
        inside.last()
    });
    let number = || identity.name.as_deref()?.split(" Device ").nth(1);
    let words = of_name.or_else(|| identity.model()).or_else(number)?;
    let short: String = words.chars().take(MOST_MODEL).collect();
    Some(if short.len() < words.len() {
        format!("{}…", short.trim_end())
    } else {
        short
    })
}

/// Draws the NVSwitches, which are not on the path to the GPUs.
fn nvswitches(out: &mut String, inventory: &Inventory, x: f64, y: f64) -> (f64, f64) {
    let all: Vec<&Function> = inventory.nvswitches().collect();
    if all.is_empty() {
        return (0.0, 0.0);
    }
    text(out, x, y + 18.0, "h", "NVSwitches");
    let mut across = x;
    for switch in all.iter().take(MOST_SWITCHES) {
        rect(out, (across, y + 28.0), (LEAF.0, SWITCH), "sw");
        let centre = across + LEAF.0 / 2.0;
        middle(out, centre, y + 43.0, "s", "NVSwitch");
        middle(out, centre, y + 57.0, "m", &switch.bdf.to_string());
        across += LEAF.0 + GAP;
    }
    if let Some(more) = all.len().checked_sub(MOST_SWITCHES).filter(|n| *n > 0) {
        text(out, across, y + 50.0, "s", &format!("and {more} more"));
        across += LEAF.0;
    }
    (across, 28.0 + SWITCH + GAP)
}

/// Returns the color of a class, from near to far.
fn colour(class: DistanceClass) -> &'static str {
    match class.to_string().as_str() {
        "PIX" => "#b7e1a1",
        "PXB" => "#d5edb9",
        "PHB" => "#fdf0b3",
        "NODE" => "#fbd9a6",
        "SYS" => "#f7b7b0",
        word if word.starts_with("NV") => "#8fd18f",
        _ => "#f0f2f4",
    }
}

/// Draws the distances between each GPU and all devices as a colored table.
fn distances(out: &mut String, inventory: &Inventory, x: f64, y: f64) -> (f64, f64) {
    let cells = Cells::new(inventory, Vocabulary::Smi);
    let gpus = (cells.devices.iter())
        .take_while(|device| device.kind == DeviceKind::Gpu)
        .count();
    if gpus == 0 || cells.devices.len() < 2 {
        return (0.0, 0.0);
    }
    let title = if inventory.nvlinks.is_empty() {
        "Distances over PCI (as nvidia-smi topo -mp)"
    } else {
        "Distances (as nvidia-smi topo -m)"
    };
    text(out, x, y + 22.0, "h", title);
    let (left, top) = (x + 64.0, y + 36.0);
    let columns = cells.devices.len().min(MOST_COLUMNS);
    let rows = gpus.min(MOST_ROWS);
    for (column, device) in cells.devices.iter().take(columns).enumerate() {
        let centre = left + (column as f64 + 0.5) * CELL.0;
        middle(out, centre, top + 15.0, "s", &short(&device.name));
    }
    let lines = cells.devices.iter().zip(&cells.classes).take(rows);
    for (line, (device, classes)) in lines.enumerate() {
        let at = top + (line as f64 + 1.0) * CELL.1;
        text(out, x, at + 15.0, "s", &short(&device.name));
        for (column, class) in classes.iter().take(columns).enumerate() {
            let from = left + column as f64 * CELL.0;
            let cell = Element::rect((from + 1.0, at + 1.0), (CELL.0 - 2.0, CELL.1 - 2.0));
            cell.with("fill", colour(*class)).put(out);
            let word = class.to_string();
            middle(out, from + CELL.0 / 2.0, at + 15.0, "m", &word);
        }
    }
    let mut bottom = top + (rows as f64 + 1.0) * CELL.1 + 22.0;
    for words in LEGEND {
        text(out, x, bottom, "s", words);
        bottom += 16.0;
    }
    bottom -= 16.0;
    let more = (gpus - rows, cells.devices.len() - columns + cells.left_out);
    if more != (0, 0) {
        bottom += 16.0;
        let words = format!(
            "{} more rows and {} more columns are left out; gdr topo has all.",
            more.0, more.1
        );
        text(out, x, bottom, "s", &words);
    }
    let width = 64.0 + columns as f64 * CELL.0;
    (width.max(640.0), bottom - y + 10.0)
}

/// Shortens a name to fit a column: an address loses its domain.
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
    use snapshot::assert_contains;

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

    /// The width of a small letter, in pixels.
    const LETTER: f64 = 5.6;

    #[test]
    fn the_words_of_a_box_fit_it_and_the_legend_fits_the_picture() {
        let link = |bdf: &str, name: &str| format!("/sys/bus/pci/devices/{bdf}/{name}");
        let node = (example::GPUS.iter()).fold(example::node(), |node, bdf| {
            node.file(&link(bdf, "current_link_speed"), "2.5 GT/s PCIe\n")
        });
        let narrow = node.file(&link(example::GPUS[0], "current_link_width"), "8\n");
        let picture = svg(&Inventory::read(&narrow));
        assert_contains!(picture, ">2.5 of 32 GT/s x16<");
        assert_contains!(picture, ">2.5 x8 of 32 GT/s x16<");
        let document = roxmltree::Document::parse(&picture).unwrap();
        assert_eq!(picture.matches(">H100 PCIe<").count(), example::GPUS.len());
        let width: f64 = document
            .root_element()
            .attribute("width")
            .unwrap()
            .parse()
            .unwrap();
        for text in document.descendants().filter(|it| it.has_tag_name("text")) {
            let words = text.text().unwrap_or_default();
            let long = LETTER * words.chars().count() as f64;
            match text.attribute("text-anchor") {
                Some(_) => assert!(long <= LEAF.0 + GAP, "{words}"),
                None => assert!(long <= width, "{words}"),
            }
        }
    }

    #[test]
    fn the_line_to_a_card_alone_is_straight() {
        let listing = "\
-[0000:00]-+-00.0  Intel Corporation Host
           \\-01.0-[01]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
";
        let tree = crate::import::lspci::read(listing).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), crate::NumaLayout::of_nodes(1));
        let picture = svg(&inventory);
        let line = picture.split("d=\"M").nth(1).unwrap();
        let across = |mark: char| line.split(mark).nth(1).unwrap().split(' ').next().unwrap();
        let start = line.split(' ').next().unwrap();
        assert_eq!(start, across('H'), "{line}");
    }

    #[test]
    fn a_node_without_devices_has_a_picture_too() {
        let picture = svg(&Inventory::read(&MemorySource::partial()));
        assert!(picture.contains("No GPU and no RDMA NIC"));
        roxmltree::Document::parse(&picture).unwrap();
    }

    #[test]
    fn the_title_names_the_distances_and_the_node() {
        let node = example::node();
        let mut inventory = Inventory::read(&node);
        let picture = svg_titled(&inventory, "node <17>, 2026-11-22");
        assert!(picture.contains(">node &lt;17&gt;, 2026-11-22<"));
        assert!(picture.contains("Distances over PCI (as nvidia-smi topo -mp)"));
        inventory.nvlinks.push(crate::NvLinks {
            a: inventory.gpus[0].bdf,
            b: inventory.gpus[1].bdf,
            count: 18,
        });
        assert!(svg(&inventory).contains("Distances (as nvidia-smi topo -m)"));
    }

    #[test]
    fn every_switch_on_a_path_has_a_box_and_a_port_is_not_called_a_switch() {
        let listing = "\
-[0000:00]-+-00.0  Intel Corporation Host
           +-01.0-[01-09]----00.0-[02-09]--+-00.0-[03-05]----00.0-[04-05]----00.0-[05]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
           |                               \\-01.0-[06]--+-00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
           |                                            \\-00.1  Mellanox Technologies MT2910 Family [ConnectX-7]
           \\-02.0-[0a]----00.0  NVIDIA Corporation GH100 [NVSwitch]
";
        let tree = crate::import::lspci::read(listing).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), crate::NumaLayout::of_nodes(1));
        let picture = svg(&inventory);
        for words in [
            ">switch 0000:01:00.0<",
            ">switch 0000:03:00.0<",
            ">port 0000:02:01.0<",
            ">ConnectX-7<",
            ">H100 SXM5 80GB<",
            ">0000:0a:00.0<",
        ] {
            assert_contains!(picture, words);
        }
        assert!(!picture.contains("switch 0000:02:01.0"));
        roxmltree::Document::parse(&picture).unwrap();
    }

    #[test]
    fn a_table_of_too_many_devices_names_the_number_that_it_leaves_out() {
        let gpus: String = (0..100)
            .map(|n| format!("{n:04x}:00:00.0 3D controller: NVIDIA Corporation GH100\n"))
            .chain(["0000:00:1f.0 Host bridge: Intel\n".to_owned()])
            .collect();
        let tree = crate::import::lspci::read(&gpus).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), crate::NumaLayout::of_nodes(1));
        let picture = svg(&inventory);
        assert!(picture.contains("36 more rows and 0 more columns are left out"));
    }
}
