//! `gdr nics`: which MAC address, interface, RDMA device, PCI function and GPU belong together.

use anyhow::Result;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{ContentArrangement, Table};
use gdr_node::{Bdf, Datum, Inventory, Netdev, RdmaDevice, RdmaPort, Source};
use gdr_perf::report::Schema;
use serde::Serialize;

use crate::args::Global;
use crate::exit::{EXIT_STATUS, Exit};
use crate::node::Which;
use crate::output::Output;

const EXAMPLES: &str = "\
Examples:
  gdr nics               which MAC, interface, RDMA device, slot and GPU belong together
  gdr nics --json        for a program
  gdr nics --from node.tar.gz";

/// List the NICs: MAC, interface, RDMA device and port, PCI function, slot, link, nearest GPU
///
/// What takes `ip`, `ethtool`, `ibdev2netdev`, `lspci` and a matrix to put together. Interfaces
/// that are no PCI function are left out.
#[derive(Debug, clap::Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}"))]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    nics: Vec<Nic>,
}

/// A NIC's port. What is not known is absent.
#[derive(Debug, Serialize)]
struct Nic {
    mac: Option<String>,
    netdev: Option<String>,
    rdma: Option<String>,
    port: Option<u32>,
    pci: String,
    numa: Option<u32>,
    slot: Option<String>,
    driver: Option<String>,
    firmware: Option<String>,
    link_layer: Option<String>,
    state: Option<String>,
    rate: Option<String>,
    mtu: Option<u32>,
    /// The nearest ones.
    gpu: Option<String>,
    gpu_class: Option<String>,
}

pub(crate) fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    let node = options.which.open()?;
    let nics = rows(node.source.as_ref(), &node.inventory);
    let exit = if nics.is_empty() && node.inventory.rdma.is_unknown() {
        Exit::Undecided
    } else {
        Exit::Fine
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.nics"),
            nics,
        })?;
        return Ok(exit);
    }
    if nics.is_empty() {
        output.line("There is no NIC that is a PCI function.")?;
        return Ok(exit);
    }
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header([
        "MAC", "netdev", "RDMA", "PCI", "NUMA", "slot", "driver", "firmware", "link", "GPU",
    ]);
    for nic in &nics {
        let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
        let rdma = match (&nic.rdma, nic.port) {
            (Some(name), Some(port)) => format!("{name}/{port}"),
            (name, _) => text(name),
        };
        let link: Vec<String> = [&nic.link_layer, &nic.state, &nic.rate]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let gpu = match (&nic.gpu, &nic.gpu_class) {
            (Some(gpu), Some(class)) => format!("{gpu} ({class})"),
            _ => "-".to_owned(),
        };
        table.add_row([
            text(&nic.mac),
            text(&nic.netdev),
            rdma,
            nic.pci.clone(),
            nic.numa.map_or_else(|| "-".to_owned(), |n| n.to_string()),
            text(&nic.slot),
            text(&nic.driver),
            text(&nic.firmware),
            if link.is_empty() {
                "-".to_owned()
            } else {
                link.join(" ")
            },
            gpu,
        ]);
    }
    output.line(&table)?;
    Ok(exit)
}

fn rows(source: &dyn Source, inventory: &Inventory) -> Vec<Nic> {
    let netdevs: &[Netdev] = inventory.netdevs.present().map_or(&[], Vec::as_slice);
    let mut rows = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for (device, bdf) in inventory.rdma_functions() {
        let own = device.netdevs(netdevs);
        seen.extend(own.iter().map(|netdev| netdev.name.as_str()));
        if device.ports.is_empty() {
            rows.push(row(source, inventory, bdf, Some(device), None, None));
        }
        for port in &device.ports {
            // Interfaces count ports from 0, RDMA devices from 1.
            let netdev = own.iter().find(|netdev| {
                (netdev.port.present()).is_none_or(|number| number + 1 == port.number)
            });
            rows.push(row(
                source,
                inventory,
                bdf,
                Some(device),
                Some(port),
                netdev.copied(),
            ));
        }
    }
    for netdev in netdevs {
        if let Some(bdf) = netdev.function.present()
            && !seen.contains(&netdev.name.as_str())
        {
            rows.push(row(source, inventory, *bdf, None, None, Some(netdev)));
        }
    }
    if rows.is_empty() {
        for nic in inventory.nics() {
            rows.push(row(source, inventory, nic.bdf, None, None, None));
        }
    }
    rows
}

fn row(
    source: &dyn Source,
    inventory: &Inventory,
    bdf: Bdf,
    rdma: Option<&RdmaDevice>,
    port: Option<&RdmaPort>,
    netdev: Option<&Netdev>,
) -> Nic {
    let function = inventory.function(bdf);
    let (gpu, gpu_class) = nearest_gpus(inventory, bdf);
    let state = port
        .map(|port| &port.state)
        .or_else(|| Some(&netdev?.state));
    Nic {
        mac: netdev.and_then(|netdev| known(&netdev.address)),
        netdev: netdev.map(|netdev| netdev.name.clone()),
        rdma: rdma.map(|device| device.name.clone()),
        port: port.map(|port| port.number),
        pci: bdf.to_string(),
        numa: function.and_then(|function| function.numa.present().map(|node| node.0)),
        slot: slot(source, bdf),
        driver: function.and_then(|function| known(&function.driver)),
        firmware: rdma.and_then(|device| known(&device.firmware)),
        link_layer: port.and_then(|port| known(&port.link_layer)),
        state: state.and_then(known),
        rate: port.and_then(|port| known(&port.rate)),
        mtu: netdev.and_then(|netdev| netdev.mtu.present().copied()),
        gpu,
        gpu_class,
    }
}

fn known(datum: &Datum<String>) -> Option<String> {
    datum.present().filter(|text| !text.is_empty()).cloned()
}

/// The slot that firmware names for a device: `/sys/bus/pci/slots/*/address` has it without the
/// function.
fn slot(source: &dyn Source, bdf: Bdf) -> Option<String> {
    let device = bdf.to_string();
    let device = device.rsplit_once('.')?.0;
    let slots = source.list("/sys/bus/pci/slots").into_present()?;
    slots.into_iter().find(|slot| {
        source
            .text(&format!("/sys/bus/pci/slots/{slot}/address"))
            .into_present()
            .is_some_and(|address| address == device)
    })
}

/// The GPUs that are nearest to a NIC, and how near.
fn nearest_gpus(inventory: &Inventory, nic: Bdf) -> (Option<String>, Option<String>) {
    let Some(topology) = inventory.topology() else {
        return (None, None);
    };
    let classes: Vec<_> = inventory
        .gpus
        .iter()
        .filter_map(|gpu| Some((topology.relation(gpu.bdf, nic).ok()?.smi, gpu)))
        .collect();
    let Some(best) = classes.iter().map(|(class, _)| *class).min() else {
        return (None, None);
    };
    let names: Vec<String> = classes
        .iter()
        .filter(|(class, _)| *class == best)
        .map(|(_, gpu)| gpu.index.to_string())
        .collect();
    (Some(names.join(", ")), Some(best.to_string()))
}

#[cfg(test)]
mod tests {
    use gdr_node::example;

    use super::*;

    #[test]
    fn every_port_has_one_line_with_its_gpu() {
        let node = example::node();
        let rows = rows(&node, &Inventory::read(&node));
        let of = |name: &str| {
            let found: Vec<&Nic> = rows
                .iter()
                .filter(|row| row.rdma.as_deref() == Some(name))
                .collect();
            assert_eq!(found.len(), 1, "{name}");
            found[0]
        };
        let nic = of("mlx5_1");
        assert_eq!(nic.pci, example::NICS[1]);
        assert_eq!(nic.gpu.as_deref(), Some("GPU0, GPU1"));
        assert_eq!(nic.gpu_class.as_deref(), Some("PIX"));
        assert!(of("mlx5_0").mac.is_some());
    }
}
