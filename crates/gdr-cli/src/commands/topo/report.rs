//! The topology for programs, and the nearest NICs.

use std::collections::BTreeMap;
use std::fmt::Write;

use gdr_node::topology::{Relation, SmiClass};
use gdr_node::{Datum, Device, DeviceKind, Inventory};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::exit::Exit;

/// All pairs of a node.
#[derive(Serialize)]
pub(super) struct Report {
    #[serde(flatten)]
    schema: Schema,
    devices: Vec<Item>,
    pairs: Vec<Pair>,
    nearest: Vec<Nearest>,
}

#[derive(Serialize)]
struct Item {
    name: String,
    kind: &'static str,
    pci: String,
    /// Absent where firmware does not say.
    numa: Option<u32>,
}

/// A pair of devices.
#[derive(Serialize)]
pub(super) struct Pair {
    a: String,
    b: String,
    nvidia_smi: String,
    nccl: String,
    ucx: String,
    /// Whether NCCL uses GPUDirect RDMA over it unless told otherwise; absent for two GPUs.
    nccl_gdr_by_default: Option<bool>,
    ancestor: String,
    why: String,
    notes: Vec<String>,
    /// Bytes a second of the narrowest link as it is now; an idle GPU lowers its speed.
    bytes_per_second: Option<u64>,
    /// The same of the links at their best.
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

/// The NICs next to a GPU.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct Nearest {
    gpu: String,
    class: String,
    nics: Vec<String>,
}

impl Report {
    pub(super) fn new(inventory: &Inventory) -> Self {
        let devices = inventory.devices();
        let mut pairs = Vec::new();
        if let Some(topology) = inventory.topology() {
            for (index, a) in devices.iter().enumerate() {
                for b in &devices[index + 1..] {
                    if let Ok(relation) = topology.relation(a.bdf, b.bdf) {
                        pairs.push(Pair::new(a, b, &relation));
                    }
                }
            }
        }
        Self {
            schema: Schema::first("gdr.topo"),
            devices: devices
                .iter()
                .map(|device| Item {
                    name: device.name.clone(),
                    kind: match device.kind {
                        DeviceKind::Gpu => "gpu",
                        DeviceKind::Nic => "nic",
                    },
                    pci: device.bdf.to_string(),
                    numa: inventory
                        .function(device.bdf)
                        .and_then(|function| function.numa.present().map(|node| node.0)),
                })
                .collect(),
            pairs,
            nearest: nearest(inventory),
        }
    }
}

fn nearest(inventory: &Inventory) -> Vec<Nearest> {
    let Some(topology) = inventory.topology() else {
        return Vec::new();
    };
    let nics = inventory.nics();
    inventory
        .gpus
        .iter()
        .filter_map(|gpu| {
            let classes: Vec<(SmiClass, &Device)> = nics
                .iter()
                .filter_map(|nic| Some((topology.relation(gpu.bdf, nic.bdf).ok()?.smi, nic)))
                .collect();
            let best = classes.iter().map(|(class, _)| *class).min()?;
            Some(Nearest {
                gpu: gpu.index.to_string(),
                class: best.to_string(),
                nics: classes
                    .iter()
                    .filter(|(class, _)| *class == best)
                    .map(|(_, nic)| nic.name.clone())
                    .collect(),
            })
        })
        .collect()
}

/// The nearest NICs of each GPU, and how evenly they are spread, as text.
pub(super) fn advice(inventory: &Inventory) -> String {
    let mut out = String::new();
    let unplaced = |device: &Device| {
        (inventory.function(device.bdf)).is_some_and(|it| it.numa == Datum::NotCollected)
    };
    if inventory.numa.only_node().is_none() && inventory.devices().iter().any(unplaced) {
        out.push_str("\nThe capture does not tell the NUMA nodes of all: SYS may be NODE.\n");
    }
    let nearest = nearest(inventory);
    if nearest.is_empty() {
        return out;
    }
    out.push_str("\nNearest NICs:\n\n");
    for it in &nearest {
        // Writing to a string never fails.
        let _ = writeln!(out, "  {}: {} ({})", it.gpu, it.nics.join(", "), it.class);
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
    let names: Vec<String> = (inventory.nics().into_iter())
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
    if !names.is_empty() {
        let _ = writeln!(
            out,
            "{}{} {} nearest to no GPU.",
            if crowded.is_empty() { "\n" } else { "" },
            names.join(", "),
            if names.len() == 1 { "is" } else { "are" }
        );
    }
    out
}

/// Fine where there is something to show.
pub(super) fn exit(inventory: &Inventory) -> Exit {
    if inventory.tree.is_present() {
        Exit::Fine
    } else {
        Exit::Undecided
    }
}

#[cfg(test)]
mod tests {
    use gdr_node::example;

    use super::*;

    #[test]
    fn the_nearest_nics_are_those_of_the_switch() {
        let node = example::node();
        let inventory = Inventory::read(&node);
        let found = nearest(&inventory);
        assert_eq!(found[0].nics, ["mlx5_1", "mlx5_2"]);
        assert_eq!(found[0].class, "PIX");
        let text = advice(&inventory);
        assert!(
            text.contains("mlx5_0, mlx5_5 are nearest to no GPU."),
            "{text}"
        );
    }
}
