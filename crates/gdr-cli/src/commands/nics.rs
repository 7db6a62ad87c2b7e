//! `gdr nics`: shows each NIC's MAC address, interface, RDMA device, PCI function and nearest GPU.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use gdr_node::pci::Function;
use gdr_node::render::without_tree;
use gdr_node::topology::SmiClass;
use gdr_node::{Bdf, Datum, DatumExt, Inventory, Netdev, RdmaDevice, RdmaPort, Source};
use gdr_perf::report::Schema;
use gdr_render::Table;
use serde::Serialize;

use super::diff::printable;
use super::layout::Layout;
use crate::command::{CommandSpec, Group, Run};
use crate::counted::Counted;
use crate::exit::{Exit, INPUT, Statuses};
use crate::global::Global;
use crate::node_args::Which;
use crate::output::Output;

/// Maximum number of GPUs to name as the nearest to one NIC.
const MOST_NEAREST: usize = 16;

/// List the NICs: interface, RDMA device and port, PCI function, link, nearest GPU
///
/// One table shows what otherwise takes `ip`, `ethtool`, `ibdev2netdev`, `lspci` and a distance matrix.
/// Interfaces that are not PCI functions and virtual functions without an interface are left out.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    layout: Layout,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    schema: Schema,
    nics: Vec<Nic>,
    /// Virtual functions with neither an interface nor an RDMA device here.
    virtual_functions_left_out: usize,
}

/// A port of a NIC. Unknown values are `null`.
#[derive(Debug, Default, Serialize)]
struct Nic {
    mac: Option<String>,
    netdev: Option<String>,
    rdma: Option<String>,
    port: Option<u32>,
    pci: String,
    model: Option<String>,
    numa: Option<u32>,
    slot: Option<String>,
    driver: Option<String>,
    firmware: Option<String>,
    link_layer: Option<String>,
    state: Option<String>,
    /// In the kernel's format: `400 Gb/sec (4X NDR)`.
    rate: Option<String>,
    rate_bits_per_second: Option<u64>,
    mtu: Option<u32>,
    /// Up to 16 of the nearest GPUs.
    gpu: Vec<String>,
    gpu_left_out: usize,
    gpu_class: Option<String>,
}

impl CommandSpec for Options {
    const GROUP: Group = Group::Diagnose;
    const STATUSES: Statuses = &[
        (Exit::Fine, "listed"),
        (Exit::Failure, "the NICs could not be read"),
        (
            Exit::Undecided,
            "no NIC was found, or standard output was closed",
        ),
        (Exit::Input, INPUT),
    ];
    const EXAMPLES: &'static str = "\
Examples:
  gdr nics               show which interface, RDMA device and GPU belong together
  gdr nics --wide        show MAC address, MTU, slot, driver and firmware too
  gdr nics --csv         print CSV, for a spreadsheet
  gdr nics --json        print JSON, for a program
  gdr nics --from node.tar.gz";
    const RUN: Run<Self> = run;
}

fn run(global: &Global, options: &Options, output: &mut Output) -> Result<Exit> {
    options.layout.check(global)?;
    let node = options.which.open()?;
    let (nics, left_out) = Rows::new(node.source.as_ref(), &node.inventory).all();
    let unknown = node.inventory.rdma.is_unknown() || node.inventory.tree.is_err();
    let exit = if nics.is_empty() && unknown {
        Exit::Undecided
    } else {
        Exit::Fine
    };
    if global.json {
        output.json(&Report {
            schema: Schema::first("gdr.nics"),
            nics,
            virtual_functions_left_out: left_out,
        })?;
        return Ok(exit);
    }
    if nics.is_empty() && !options.layout.is_csv() {
        match &node.inventory.tree {
            Ok(_) => output.line("No NIC was found among the PCI functions.")?,
            Err(absence) => output.line(without_tree(*absence))?,
        }
    } else {
        let table = table(&nics, options.layout.is_whole());
        options.layout.show(&table, output)?;
    }
    if left_out > 0 && !options.layout.is_csv() {
        output.line(format_args!(
            "\nleft out: {} without an interface",
            Counted(left_out, "virtual function")
        ))?;
    }
    Ok(exit)
}

fn table(nics: &[Nic], whole: bool) -> Table {
    let text = |value: &Option<String>| value.as_deref().map(printable).unwrap_or_default();
    let number = |value: Option<u32>| value.map(|n| n.to_string()).unwrap_or_default();
    let rdma = |nic: &Nic| match (&nic.rdma, nic.port) {
        (Some(name), Some(port)) => printable(&format!("{name}/{port}")),
        (name, _) => text(name),
    };
    let link = |nic: &Nic| {
        let words = [&nic.link_layer, &nic.state, &nic.rate].map(text);
        let words: Vec<String> = words.into_iter().filter(|word| !word.is_empty()).collect();
        words.join(" ")
    };
    let gpu = |nic: &Nic| match &nic.gpu_class {
        Some(class) => {
            let more = match nic.gpu_left_out {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            format!("{}{more} ({class})", nic.gpu.join(", "))
        }
        None => String::new(),
    };
    let mut table = if whole {
        Table::new(&[
            "RDMA", "netdev", "PCI", "NUMA", "link", "GPU", "model", "MAC", "MTU", "slot",
            "driver", "firmware",
        ])
    } else {
        Table::new(&["RDMA", "netdev", "PCI", "NUMA", "link", "GPU", "model"])
            .keep_whole(&[0, 1, 2, 3])
    };
    for nic in nics {
        let mut cells = vec![
            rdma(nic),
            text(&nic.netdev),
            nic.pci.clone(),
            number(nic.numa),
            link(nic),
            gpu(nic),
            text(&nic.model),
        ];
        if whole {
            cells.extend([
                nic.mac.as_deref().map(short_address).unwrap_or_default(),
                number(nic.mtu),
                text(&nic.slot),
                text(&nic.driver),
                text(&nic.firmware),
            ]);
        }
        table.row(cells);
    }
    table
}

/// Formats a hardware address. Of the 20 bytes of IP over InfiniBand, shows only the last eight, which identify the
/// port.
fn short_address(address: &str) -> String {
    let bytes: Vec<&str> = address.split(':').collect();
    match bytes.len() {
        20 => format!("..:{}", printable(&bytes[12..].join(":"))),
        _ => printable(address),
    }
}

/// Facts from which the rows are made.
struct Rows<'a> {
    inventory: &'a Inventory,
    slots: BTreeMap<String, String>,
}

impl<'a> Rows<'a> {
    fn new(source: &dyn Source, inventory: &'a Inventory) -> Self {
        // `/sys/bus/pci/slots/*/address` contains the address without the function.
        const SLOTS: &str = "/sys/bus/pci/slots";
        let names = source.list(SLOTS).ok().unwrap_or_default();
        let slot = |slot: String| {
            let address = source.text(&format!("{SLOTS}/{slot}/address"));
            Some((address.ok()?, slot))
        };
        Self {
            inventory,
            slots: names.into_iter().filter_map(slot).collect(),
        }
    }

    /// Returns a row for each port, and the number of virtual functions without one.
    fn all(&self) -> (Vec<Nic>, usize) {
        let netdevs: &[Netdev] = self
            .inventory
            .netdevs
            .as_ref()
            .ok()
            .map_or(&[], Vec::as_slice);
        let mut rows = Vec::new();
        let mut seen: BTreeSet<&str> = BTreeSet::new();
        let mut places: Vec<Bdf> = Vec::new();
        let mut put = |bdf: Bdf, nic: Nic| {
            places.push(bdf);
            rows.push(nic);
        };
        for (device, bdf) in self.inventory.rdma_functions() {
            let own = device.netdevs(netdevs);
            seen.extend(own.iter().map(|netdev| netdev.name.as_str()));
            if device.ports.is_empty() {
                put(bdf, self.row(bdf, Some(device), None, own.first().copied()));
            }
            for port in &device.ports {
                // Interfaces count ports from 0, RDMA devices from 1.
                let netdev = own.iter().find(|netdev| {
                    (netdev.port.as_ref().ok()).is_none_or(|number| number + 1 == port.number)
                });
                put(
                    bdf,
                    self.row(bdf, Some(device), Some(port), netdev.copied()),
                );
            }
        }
        for netdev in netdevs {
            if let Some(bdf) = netdev.function.as_ref().ok()
                && !seen.contains(netdev.name.as_str())
            {
                put(*bdf, self.row(*bdf, None, None, Some(netdev)));
            }
        }
        let known: BTreeSet<Bdf> = places.iter().copied().collect();
        let mut left_out = 0;
        let functions = self.inventory.tree.as_ref().ok();
        let functions = functions.into_iter().flat_map(|tree| tree.functions());
        for function in functions.filter(|function| function.identity.is_network()) {
            if known.contains(&function.bdf) {
                continue;
            }
            if is_virtual(function) {
                left_out += 1;
            } else {
                places.push(function.bdf);
                rows.push(self.row(function.bdf, None, None, None));
            }
        }
        self.add_gpus(&mut rows, &places);
        (rows, left_out)
    }

    fn row(
        &self,
        bdf: Bdf,
        rdma: Option<&RdmaDevice>,
        port: Option<&RdmaPort>,
        netdev: Option<&Netdev>,
    ) -> Nic {
        let function = self.inventory.function(bdf);
        let state = match port {
            Some(port) => port.state.as_ref().ok().map(ToString::to_string),
            None => netdev.and_then(|netdev| known(&netdev.state)),
        };
        let rate = port.and_then(|port| known(&port.rate));
        let device = bdf.to_string();
        let device = device
            .rsplit_once('.')
            .map_or(&*device, |(device, _)| device);
        Nic {
            mac: netdev.and_then(|netdev| known(&netdev.address)),
            netdev: netdev.map(|netdev| netdev.name.clone()),
            rdma: rdma.map(|device| device.name.clone()),
            port: port.map(|port| port.number),
            pci: bdf.to_string(),
            model: function.and_then(|function| {
                let model = function.identity.model().map(str::to_owned);
                model.or_else(|| function.identity.name.clone())
            }),
            numa: function.and_then(|function| function.numa.as_ref().ok().map(|node| node.0)),
            slot: self.slots.get(device).cloned(),
            driver: (function.and_then(|function| known(&function.driver)))
                .or_else(|| netdev.and_then(|netdev| known(&netdev.driver))),
            firmware: (rdma.and_then(|device| known(&device.firmware)))
                .or_else(|| netdev.and_then(|netdev| known(&netdev.firmware))),
            link_layer: port.and_then(|port| known(&port.link_layer)),
            state,
            rate_bits_per_second: rate.as_deref().and_then(bits_per_second),
            rate,
            mtu: netdev.and_then(|netdev| netdev.mtu.as_ref().ok().copied()),
            ..Nic::default()
        }
    }

    /// Adds the nearest GPUs to the rows with these indices.
    fn add_gpus(&self, rows: &mut [Nic], places: &[Bdf]) {
        let Ok(topology) = self.inventory.topology() else {
            return;
        };
        let gpus = &self.inventory.gpus;
        let all = gpus.iter().map(|gpu| gpu.bdf).chain(places.iter().copied());
        let distances = topology.distances(all);
        for ((row, at), nic) in rows.iter_mut().zip(places).zip(gpus.len()..) {
            if !self.inventory.carries_data(*at) {
                continue;
            }
            let class = |gpu: usize| distances.smi(gpu, nic);
            let best: Option<SmiClass> = (0..gpus.len()).filter_map(class).min();
            let mut nearest = (0..gpus.len()).filter(|gpu| best.is_some() && class(*gpu) == best);
            row.gpu = (nearest.by_ref().take(MOST_NEAREST))
                .map(|gpu| gpus[gpu].index.to_string())
                .collect();
            row.gpu_left_out = nearest.count();
            row.gpu_class = best.map(|class| class.to_string());
        }
    }
}

/// Returns whether a function is virtual, by sysfs or by its name in lspci.
fn is_virtual(function: &Function) -> bool {
    let name = function.identity.name.as_deref().unwrap_or_default();
    function.is_virtual() || name.contains("Virtual Function")
}

/// Parses a rate in the kernel's format: `400 Gb/sec (4X NDR)`.
pub(super) fn bits_per_second(rate: &str) -> Option<u64> {
    let (number, unit) = rate.split_once(' ')?;
    let number: f64 = number
        .parse()
        .ok()
        .filter(|n: &f64| (0.0..1e6).contains(n))?;
    unit.starts_with("Gb/sec").then_some((number * 1e9) as u64)
}

fn known(datum: &Datum<String>) -> Option<String> {
    datum.as_ref().ok().filter(|text| !text.is_empty()).cloned()
}

#[cfg(test)]
mod tests {
    use gdr_node::example;

    use super::*;

    #[test]
    fn every_port_has_one_line_with_its_gpu() {
        let node = example::node();
        let (rows, _) = rows(&node);
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
        assert_eq!(nic.gpu, ["GPU0", "GPU1"]);
        assert_eq!(nic.gpu_class.as_deref(), Some("PIX"));
        assert!(
            nic.rate_bits_per_second
                .is_some_and(|rate| rate >= 100_000_000_000)
        );
        assert!(of("mlx5_0").mac.is_some());
    }

    #[test]
    fn the_table_of_a_node_fits_100_columns_and_is_plain_text() {
        let (nics, _) = rows(&example::node());
        for line in table(&nics, false).lines(100) {
            assert!(line.len() <= 100 && line.is_ascii(), "{line}");
            assert!(!line.contains(" - "), "{line}");
        }
        let text = table(&nics, false).lines(100).join("\n");
        for nic in &nics {
            assert!(text.contains(&nic.pci), "{text}");
        }
    }

    #[test]
    fn an_address_of_ip_over_infiniband_is_shortened_to_its_port() {
        let long = "00:00:10:49:fe:80:00:00:00:00:00:00:b8:ce:f6:03:00:d4:6e:5a";
        assert_eq!(short_address(long), "..:b8:ce:f6:03:00:d4:6e:5a");
        assert_eq!(short_address("b8:ce:f6:d4:6e:5a"), "b8:ce:f6:d4:6e:5a");
        assert_eq!(
            bits_per_second("400 Gb/sec (4X NDR)"),
            Some(400_000_000_000)
        );
        assert_eq!(bits_per_second("fast"), None);
    }

    #[test]
    fn every_network_function_is_a_nic_whatever_its_maker_and_whatever_was_collected() {
        let listing = "\
00:00.0 Host bridge: Intel Corporation Device 1
00:05.0 Ethernet controller [0200]: Intel Corporation E810-C [8086:1592]
00:06.0 Ethernet controller [0200]: Broadcom BCM57508 [14e4:1750]
00:07.0 Ethernet controller [0200]: Mellanox ConnectX Virtual Function [15b3:101e]
";
        let tree = gdr_node::import::lspci::read(listing).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), gdr_node::NumaLayout::of_nodes(1));
        let source = gdr_node::MemorySource::partial();
        let (rows, left_out) = Rows::new(&source, &inventory).all();
        assert_eq!((rows.len(), left_out), (2, 1));
        assert!(
            rows[0]
                .model
                .as_deref()
                .is_some_and(|model| model.contains("E810"))
        );
        let listing =
            "00:07.0 Ethernet controller [0200]: Mellanox MT27800 [ConnectX-5] [15b3:1017]\n";
        let tree = gdr_node::import::lspci::read(listing).unwrap().into_tree();
        let inventory = Inventory::of_tree(Ok(tree), gdr_node::NumaLayout::of_nodes(1));
        let (rows, _) = Rows::new(&source, &inventory).all();
        assert_eq!(rows[0].model.as_deref(), Some("ConnectX-5"));
    }

    fn rows(node: &gdr_node::MemorySource) -> (Vec<Nic>, usize) {
        Rows::new(node, &Inventory::read(node)).all()
    }
}
