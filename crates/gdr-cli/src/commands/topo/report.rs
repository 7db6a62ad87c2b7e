//! Topology as JSON, and the nearest NICs.

use std::collections::BTreeMap;
use std::fmt::Write;

use gdr_node::topology::{Relation, SmiClass};
use gdr_node::{Absence, Bdf, Device, DeviceKind, Inventory};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::exit::Exit;

/// Maximum number of pairs with sentences. A server with forty devices has 780 pairs.
const MOST_PAIRS: usize = 1 << 16;

/// Maximum number of NICs to name as the nearest to one GPU.
const MOST_NEAREST: usize = 16;

/// All pairs of a node.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    schema: Schema,
    devices: Vec<Item>,
    /// Bridges above the devices, by address.
    bridges: Vec<Bridge>,
    nvswitches: Vec<String>,
    nvlinks: Vec<NvLink>,
    pairs: Vec<Pair>,
    /// Number of pairs beyond the first 65536. Pairs with a GPU come first.
    pairs_left_out: usize,
    nearest: Vec<Nearest>,
    /// Parts of the capture that were not read.
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct Item {
    name: String,
    kind: &'static str,
    pci: String,
    /// Absent if firmware does not report it.
    numa: Option<u32>,
    model: Option<String>,
    /// Root bus above it.
    root: Option<String>,
    /// Bridges above it, from the root down.
    above: Vec<String>,
    #[serde(flatten)]
    link: Links,
    iommu_group: Option<u32>,
}

/// Current and best state of a link, if known.
#[derive(Serialize)]
struct Links {
    link: Option<String>,
    link_capable: Option<String>,
}

/// A port of a switch or of the root complex.
#[derive(Serialize)]
struct Bridge {
    pci: String,
    /// `root port` and the like; absent if unknown.
    port: Option<String>,
    /// Bridge or root bus above it.
    above: Option<String>,
    #[serde(flatten)]
    link: Links,
    /// Enabled ACS bits; absent if unknown.
    acs: Option<String>,
    /// Enabled ACS bits that redirect peer-to-peer traffic to the root.
    acs_redirects: Option<String>,
    iommu_group: Option<u32>,
}

#[derive(Serialize)]
struct NvLink {
    a: String,
    b: String,
    count: u8,
}

/// A pair of devices.
#[derive(Serialize)]
pub(super) struct Pair {
    a: String,
    b: String,
    nvidia_smi: String,
    nccl: String,
    ucx: String,
    /// Whether NCCL uses GPUDirect RDMA over it by default; absent for two GPUs.
    nccl_gdr_by_default: Option<bool>,
    ancestor: String,
    why: String,
    notes: Vec<String>,
    /// Bytes per second of the narrowest link in its current state. An idle GPU lowers its link speed.
    bytes_per_second: Option<u64>,
    /// The same with the links at their best.
    bytes_per_second_capable: Option<u64>,
}

impl Pair {
    pub(super) fn new(a: &Device, b: &Device, relation: &Relation) -> Self {
        let mixed = a.kind != b.kind;
        Self {
            a: a.name.clone(),
            b: b.name.clone(),
            nvidia_smi: relation.smi.to_string(),
            nccl: relation.nccl.to_string(),
            ucx: relation.ucx.class.to_string(),
            nccl_gdr_by_default: mixed.then(|| relation.nccl.is_gdr_by_default()),
            ancestor: relation.ancestor.to_string(),
            why: relation.why.clone(),
            notes: relation.notes.iter().map(ToString::to_string).collect(),
            bytes_per_second: relation.current.map(|(bandwidth, _)| bandwidth.0),
            bytes_per_second_capable: relation.capable.map(|(bandwidth, _)| bandwidth.0),
        }
    }
}

/// NICs next to a GPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Nearest {
    gpu: String,
    class: String,
    /// Up to 16 of them.
    nics: Vec<String>,
    nics_left_out: usize,
}

impl Report {
    pub(super) fn new(inventory: &Inventory) -> Self {
        let devices = inventory.devices();
        let (pairs, pairs_left_out) = pairs(inventory, &devices);
        Self {
            schema: Schema::first("gdr.topo"),
            bridges: bridges(inventory, &devices),
            devices: (devices.iter())
                .map(|device| item(inventory, device))
                .collect(),
            nvswitches: (inventory.nvswitches())
                .map(|switch| switch.bdf.to_string())
                .collect(),
            nvlinks: (inventory.nvlinks.iter())
                .map(|links| NvLink {
                    a: links.a.to_string(),
                    b: links.b.to_string(),
                    count: links.count,
                })
                .collect(),
            pairs,
            pairs_left_out,
            nearest: nearest(inventory),
            left_out: inventory.left_out.iter().map(ToString::to_string).collect(),
        }
    }
}

/// Returns the pairs with a GPU, then pairs of two NICs, and how many pairs are left out.
fn pairs(inventory: &Inventory, devices: &[Device]) -> (Vec<Pair>, usize) {
    let Ok(topology) = inventory.topology() else {
        return (Vec::new(), 0);
    };
    let count = devices.len();
    let with_gpu = devices.partition_point(|device| device.kind == DeviceKind::Gpu);
    let rows = (0..with_gpu).chain(with_gpu..count);
    let pairs: Vec<Pair> = rows
        .flat_map(|a| (a + 1..count).map(move |b| (&devices[a], &devices[b])))
        .filter_map(|(a, b)| {
            let relation = topology.relation(a.bdf, b.bdf).ok()?;
            Some(Pair::new(a, b, &relation))
        })
        .take(MOST_PAIRS)
        .collect();
    let left_out = if pairs.len() == MOST_PAIRS {
        (count * (count - 1) / 2).saturating_sub(MOST_PAIRS)
    } else {
        0
    };
    (pairs, left_out)
}

fn item(inventory: &Inventory, device: &Device) -> Item {
    let function = inventory.function(device.bdf);
    let tree = inventory.tree.as_ref().ok();
    let chain = tree.and_then(|tree| tree.chain(device.bdf));
    let (root, above) = match chain {
        Some((root, above)) => (Some(root.to_string()), above),
        None => (None, Vec::new()),
    };
    Item {
        name: device.name.clone(),
        kind: match device.kind {
            DeviceKind::Gpu => "gpu",
            DeviceKind::Nic => "nic",
        },
        pci: device.bdf.to_string(),
        numa: function.and_then(|function| function.numa.as_ref().ok().map(|node| node.0)),
        model: function.and_then(|function| {
            let name = function.identity.name.clone();
            name.or_else(|| function.identity.model().map(str::to_owned))
        }),
        root,
        above: above.iter().map(ToString::to_string).collect(),
        link: links(inventory, device.bdf),
        iommu_group: function.and_then(|function| function.iommu_group.as_ref().ok().copied()),
    }
}

fn links(inventory: &Inventory, bdf: Bdf) -> Links {
    let function = inventory.function(bdf);
    let words = |link: Option<&gdr_node::pci::Link>| link.map(ToString::to_string);
    Links {
        link: words(function.and_then(|function| function.link.as_ref().ok())),
        link_capable: words(function.and_then(|function| function.link_capable.as_ref().ok())),
    }
}

fn bridges(inventory: &Inventory, devices: &[Device]) -> Vec<Bridge> {
    let Some(tree) = inventory.tree.as_ref().ok() else {
        return Vec::new();
    };
    let mut above: BTreeMap<Bdf, String> = BTreeMap::new();
    for device in devices {
        let Some((root, chain)) = tree.chain(device.bdf) else {
            continue;
        };
        let mut upper = root.to_string();
        for bridge in chain {
            let next = bridge.to_string();
            above.insert(bridge, std::mem::replace(&mut upper, next));
        }
    }
    (above.into_iter())
        .filter_map(|(bdf, above)| Some((tree.get(bdf)?, above)))
        .map(|(bridge, above)| {
            let acs = bridge.acs.as_ref().ok();
            let redirecting = acs.map(|acs| acs.redirecting());
            Bridge {
                pci: bridge.bdf.to_string(),
                port: (bridge.express.as_ref().ok()).map(|express| express.port.to_string()),
                above: Some(above),
                link: links(inventory, bridge.bdf),
                acs: acs.map(|acs| acs.control.to_string()),
                acs_redirects: redirecting
                    .filter(|bits| !bits.is_empty())
                    .map(|bits| bits.to_string()),
                iommu_group: bridge.iommu_group.as_ref().ok().copied(),
            }
        })
        .collect()
}

fn nearest(inventory: &Inventory) -> Vec<Nearest> {
    let Ok(topology) = inventory.topology() else {
        return Vec::new();
    };
    let (gpus, nics) = (&inventory.gpus, inventory.nics());
    let all = gpus.iter().map(|gpu| gpu.bdf);
    let distances = topology.distances(all.chain(nics.iter().map(|nic| nic.bdf)));
    (gpus.iter().enumerate())
        .filter_map(|(row, gpu)| {
            let class = |nic: usize| distances.smi(row, gpus.len() + nic);
            let best: SmiClass = (0..nics.len()).filter_map(class).min()?;
            let mut found = (0..nics.len()).filter(|nic| class(*nic) == Some(best));
            Some(Nearest {
                gpu: gpu.index.to_string(),
                class: best.to_string(),
                nics: (found.by_ref().take(MOST_NEAREST))
                    .map(|nic| nics[nic].name.clone())
                    .collect(),
                nics_left_out: found.count(),
            })
        })
        .collect()
}

/// Joins names, and says how many more there are.
pub(super) fn names(names: &[String], left_out: usize) -> String {
    let names = names.join(", ");
    match left_out {
        0 => names,
        more => format!("{names} and {more} more"),
    }
}

/// Returns the nearest NICs of each GPU, and how evenly they are spread, as text.
pub(super) fn advice(inventory: &Inventory) -> String {
    let mut out = String::new();
    let devices = inventory.devices();
    let function = |device: &Device| inventory.function(device.bdf);
    let is_unplaced = |device: &Device| {
        function(device).is_some_and(|function| function.numa == Err(Absence::NotCollected))
    };
    if inventory.numa.only_node().is_none() && devices.iter().any(is_unplaced) {
        out.push_str(
            "\nThe capture lacks the NUMA nodes of some devices, so SYS may really be NODE.\n",
        );
    }
    let tree = inventory.tree.as_ref().ok();
    let is_severed = |device: &Device| {
        let chain = tree.and_then(|tree| Some((tree, tree.chain(device.bdf)?.0)));
        chain.is_some_and(|(tree, root)| tree.is_severed(root))
    };
    if devices.iter().any(is_severed) {
        out.push_str(
            "\nThe capture lacks the bridges above some devices; distances that depend on them are `?`.\n\
             `lspci -D -nn -vvv` of the whole machine shows them.\n",
        );
    }
    let nearest = nearest(inventory);
    if nearest.is_empty() {
        return out;
    }
    out.push_str("\nNearest NICs:\n\n");
    for it in &nearest {
        let nics = names(&it.nics, it.nics_left_out);
        // Writing to a string never fails.
        let _ = writeln!(out, "  {}: {nics} ({})", it.gpu, it.class);
    }
    // If all NICs are equally near to a GPU, none of them is crowded.
    if nearest.iter().any(|it| it.nics_left_out > 0) {
        return out;
    }
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    for it in &nearest {
        for nic in &it.nics {
            *shares.entry(nic).or_default() += 1.0 / it.nics.len() as f64;
        }
    }
    let crowded: Vec<&str> = shares
        .iter()
        .filter(|(_, share)| **share > 1.0)
        .map(|(nic, _)| *nic)
        .collect();
    let far: Vec<String> = (devices.into_iter())
        .filter(|device| device.kind == DeviceKind::Nic)
        .map(|nic| nic.name)
        .filter(|name| !shares.contains_key(name.as_str()))
        .collect();
    if !crowded.is_empty() {
        let _ = writeln!(
            out,
            "\n{} {} nearest to more than one GPU each.",
            crowded.join(", "),
            if crowded.len() == 1 { "is" } else { "are" }
        );
    }
    if !far.is_empty() {
        let shown = far.len().min(MOST_NEAREST);
        let _ = writeln!(
            out,
            "{}{} {} nearest to no GPU.",
            if crowded.is_empty() { "\n" } else { "" },
            names(&far[..shown], far.len() - shown),
            if far.len() == 1 { "is" } else { "are" }
        );
    }
    out
}

/// Returns success if the node has a topology.
pub(super) fn exit(inventory: &Inventory) -> Exit {
    if inventory.devices().is_empty() {
        Exit::Undecided
    } else {
        Exit::Fine
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::{NumaLayout, example, import::lspci};

    use super::*;

    fn json(inventory: &Inventory) -> serde_json::Value {
        serde_json::to_value(Report::new(inventory)).unwrap()
    }

    #[test]
    fn the_document_has_links_bridges_and_acs() {
        let document = json(&Inventory::read(&example::node()));
        let bridges = document["bridges"].as_array().unwrap();
        let bridge = |at: &str| bridges.iter().find(|it| it["pci"] == at).unwrap();
        let port = bridge(example::REDIRECTING_PORT);
        assert!(port["acs_redirects"].as_str().unwrap().contains("ReqRedir"));
        assert!(port["link"].as_str().unwrap().contains("GT/s"));
        let gpu = &document["devices"][0];
        let above = gpu["above"].as_array().unwrap();
        assert_eq!(above.last().unwrap(), example::GPU_PORTS[0]);
        assert_eq!(
            bridge(example::GPU_PORTS[0])["above"],
            above[above.len() - 2]
        );
        assert_eq!(document["pairs"].as_array().unwrap().len(), 18 * 17 / 2);
    }

    fn of_listing(text: &str) -> Inventory {
        let tree = lspci::read(text).unwrap().into_tree();
        Inventory::of_tree(Ok(tree), NumaLayout::of_nodes(1))
    }

    #[test]
    fn of_more_pairs_than_are_kept_those_with_a_gpu_come_first_and_the_rest_is_counted() {
        let mut listing = "0000:00:00.0 Host bridge: Intel\n0000:00:01.0 3D controller: NVIDIA Corporation GH100\n".to_owned();
        for n in 1..500 {
            listing += &format!("{n:04x}:00:00.0 Infiniband controller: Mellanox Technologies X\n");
        }
        let inventory = of_listing(&listing);
        let document = json(&inventory);
        let pairs = document["pairs"].as_array().unwrap();
        assert_eq!(pairs.len(), MOST_PAIRS);
        assert!(pairs[..499].iter().all(|pair| pair["a"] == "GPU0"));
        assert_eq!(document["pairs_left_out"], 500 * 499 / 2 - MOST_PAIRS);
        assert!(advice(&inventory).contains(" and 483 more (NODE)"));
    }

    #[test]
    fn end_points_alone_are_shown_with_what_is_missing() {
        let ends = "3b:00.0 3D controller: NVIDIA Corporation GH100\n\
                    5e:00.0 Infiniband controller: Mellanox Technologies MT2910\n";
        let inventory = of_listing(ends);
        assert!(
            inventory
                .topology()
                .unwrap()
                .relation("3b:00.0".parse().unwrap(), "5e:00.0".parse().unwrap())
                .is_err()
        );
        assert!(advice(&inventory).contains("bridges above some devices"));
        assert_eq!(exit(&inventory), Exit::Fine);
    }
}
