//! `gdr topo why`: explains the path between two devices.

use anyhow::Result;
use gdr_node::render::without_tree;
use gdr_node::topology::{Place, Relation, RelationError, SmiClass};
use gdr_node::{Absence, DatumExt, Device, Inventory};
use gdr_perf::report::Schema;
use owo_colors::OwoColorize;
use serde::Serialize;

use super::distances::Distances;
use super::report::Pair;
use crate::exit::{Exit, UsageError};
use crate::global::Global;
use crate::node_args::{Known, Node, Which};
use crate::output::Output;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    #[serde(flatten)]
    pair: Pair,
    /// What others measured between a GPU and a NIC at this distance, over 100 Gb/s.
    measured_elsewhere: Vec<Rate>,
    hops: Vec<Hop>,
}

/// GPUDirect RDMA rates by distance, measured by others: 100 Gb/s RoCE in the tutorial "How to properly setup GPUDirect
/// RDMA" (2023). The capacity of a link is an upper bound; these are the rates that were achieved.
const RATES: [(SmiClass, f64, &str); 5] = [
    (SmiClass::Pix, 10.0, "2x Xeon 4112, V100"),
    (SmiClass::Phb, 10.0, "EPYC 7763, A100"),
    (SmiClass::Sys, 2.0, "2x Xeon 4112, V100"),
    (SmiClass::Sys, 6.0, "EPYC 7763, A100"),
    (SmiClass::Sys, 0.3, "2x Xeon E5-2630 v4, P100"),
];

/// A rate that others measured at a distance of a GPU and a NIC, and where.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Rate {
    /// The distance there.
    at: String,
    gb_per_s: f64,
    machine: &'static str,
}

/// Returns the rates at a distance. PXB counts as PIX with more switches, and NODE as SYS within one socket.
pub(super) fn rates(class: SmiClass) -> Vec<Rate> {
    let class = match class {
        SmiClass::Pxb => SmiClass::Pix,
        SmiClass::Node => SmiClass::Sys,
        class => class,
    };
    let measured = RATES.iter().filter(|(at, ..)| *at == class);
    measured
        .map(|&(at, gb_per_s, machine)| Rate {
            at: at.to_string(),
            gb_per_s,
            machine,
        })
        .collect()
}

/// Writes what others measured at a distance, if anything was.
pub(super) fn show_rates(measured: &[Rate], output: &mut Output) -> Result<()> {
    let Some(first) = measured.first() else {
        return Ok(());
    };
    let list: Vec<String> = (measured.iter())
        .map(|rate| format!("{} GB/s ({})", rate.gb_per_s, rate.machine))
        .collect();
    let text = format!(
        "{}; `gdr perf write-bw --gpu` measures yours",
        list.join(", ")
    );
    let title = format!("measured elsewhere at {} (100 Gb/s RoCE, 2023): ", first.at);
    Ok(output.paragraph(&title, "    ", &text)?)
}

#[derive(Serialize)]
struct Hop {
    place: String,
    /// `root port` and the like; absent if it is not a PCI function.
    port: Option<String>,
    link: Option<String>,
    link_capable: Option<String>,
    /// For ports on the path: the enabled ACS bits, or why they are unknown.
    acs: Option<String>,
    /// Those that redirect peers.
    acs_redirects: Option<String>,
    iommu_group: Option<u32>,
}

pub(super) fn run(
    global: &Global,
    which: &Which,
    (a, b): (&str, &str),
    output: &mut Output,
) -> Result<Exit> {
    let node = match which.look()? {
        Known::Node(node) => node,
        Known::Devices(inventory) => Node::of_devices(inventory),
        Known::Distances(matrices, nccl, _) => {
            return Distances::new(&matrices, &nccl).why((a, b), global.json, output);
        }
    };
    let inventory = &node.inventory;
    let named = |name: &str| {
        inventory
            .device(name)
            .map_err(|error| UsageError(error.to_string()))
    };
    let (a, b) = (named(a)?, named(b)?);
    let topology =
        (inventory.topology()).map_err(|absence| anyhow::anyhow!(without_tree(absence)))?;
    let relation = match topology.relation(a.bdf, b.bdf) {
        Ok(relation) => relation,
        Err(error @ RelationError::Severed(..)) if !global.json => {
            output.line(format_args!("{} - {}: ?", a.name, b.name))?;
            output.line(format_args!("    {error}"))?;
            return Ok(Exit::Undecided);
        }
        Err(error) => return Err(error.into()),
    };
    let hops: Vec<Hop> = (relation.steps.iter())
        .map(|step| hop(inventory, &relation, step))
        .collect();
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.topo-why"),
            pair: Pair::new(&a, &b, &relation),
            measured_elsewhere: between(&a, &b, &relation),
            hops,
        })?;
        return Ok(Exit::Fine);
    }
    show(&a, &b, &relation, &hops, output)?;
    Ok(Exit::Fine)
}

fn between(a: &Device, b: &Device, relation: &Relation) -> Vec<Rate> {
    match a.kind == b.kind {
        true => Vec::new(),
        false => rates(relation.smi),
    }
}

fn hop(inventory: &Inventory, relation: &Relation, step: &gdr_node::topology::Step) -> Hop {
    let function = match step.place {
        Place::Function(bdf) => inventory.function(bdf),
        Place::Root(_) | Place::Node(_) => None,
    };
    let on_way = matches!(step.place, Place::Function(bdf) if relation.ports.contains(&bdf));
    let acs = function.filter(|_| on_way).map(|function| &function.acs);
    Hop {
        place: step.place.to_string(),
        port: function
            .and_then(|function| function.express.as_ref().ok())
            .map(|express| express.port.to_string()),
        link: step.link.map(|link| link.to_string()),
        link_capable: step.capable.map(|link| link.to_string()),
        acs: acs.map(|acs| match acs {
            Ok(acs) => acs.control.to_string(),
            Err(Absence::Missing) => "not present".to_owned(),
            unknown => unknown.by_ref().map(|_| "").shown().to_string(),
        }),
        acs_redirects: acs
            .and_then(|acs| acs.as_ref().ok())
            .map(|acs| acs.redirecting())
            .filter(|bits| !bits.is_empty())
            .map(|bits| bits.to_string()),
        iommu_group: function.and_then(|function| function.iommu_group.as_ref().ok().copied()),
    }
}

fn show(
    a: &Device,
    b: &Device,
    relation: &Relation,
    hops: &[Hop],
    output: &mut Output,
) -> Result<()> {
    output.line(format_args!(
        "{} - {}: {}",
        a.name,
        b.name,
        relation.smi.to_string().bold()
    ))?;
    output.line(format_args!("    {}", relation.why))?;
    for note in &relation.notes {
        output.line(format_args!("    note: {note}"))?;
    }
    let bandwidth = match relation.ucx.bandwidth {
        Some(bandwidth) => format!("assumes {bandwidth}"),
        None => "assumes no limit".to_owned(),
    };
    output.line(format_args!("NCCL:  {}", relation.nccl))?;
    output.line(format_args!("UCX:   {} ({bandwidth})", relation.ucx.class))?;
    if a.kind != b.kind {
        output.line(if relation.nccl.is_gdr_by_default() {
            "NCCL uses GPUDirect RDMA here by default"
        } else {
            "NCCL does not use GPUDirect RDMA here by default; NCCL_NET_GDR_LEVEL=PHB or SYS \
             changes that"
        })?;
    }
    show_rates(&between(a, b, relation), output)?;
    output.line("\nthe path:")?;
    for hop in hops {
        let mut line = hop.place.to_string();
        for word in [&hop.port, &hop.link].into_iter().flatten() {
            line.push_str(&format!("  {word}"));
        }
        if let (Some(now), Some(best)) = (&hop.link, &hop.link_capable)
            && now != best
        {
            line.push_str(&format!(" (could be {best})"));
        }
        if let Some(group) = hop.iommu_group {
            line.push_str(&format!("  IOMMU group {group}"));
        }
        if let Some(acs) = &hop.acs {
            line.push_str(&format!("  ACS: {acs}"));
        }
        output.paragraph("  ", "      ", &line)?;
        if let Some(bits) = &hop.acs_redirects {
            output.line(format_args!(
                "      {} redirects peer-to-peer requests to the root complex",
                bits.red().bold()
            ))?;
        }
    }
    for (word, found) in [("now", relation.current), ("at best", relation.capable)] {
        if let Some((bandwidth, place)) = found {
            output.line(format_args!("narrowest {word}: {bandwidth} at {place}"))?;
        }
    }
    Ok(())
}
