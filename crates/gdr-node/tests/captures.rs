//! Captures of real machines, if present beside the workspace in `../shared/data`. They cannot be redistributed; a test
//! whose capture is missing says so and passes.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::{Path, PathBuf};

use gdr_node::import::{Capture, lspci, nccl_xml, topo_matrix};
use gdr_node::pci::{Function, Tree};
use gdr_node::topology::{NcclClass, NcclGraph, SmiClass, Topology};
use gdr_node::{Bdf, Inventory, NumaLayout};

/// Returns the capture with this name. If it is missing, prints that and returns `None`.
fn capture(name: &str) -> Option<String> {
    let path = root().join(name);
    let text = fs::read(&path)
        .ok()
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    if text.is_none() {
        eprintln!("skipped: no capture {}", path.display());
    }
    text
}

fn captures_in(name: &str) -> Vec<(String, String)> {
    let path = root().join(name);
    let Ok(entries) = fs::read_dir(&path) else {
        eprintln!("skipped: no captures in {}", path.display());
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|e| format!("{name}/{}", e.file_name().to_string_lossy()))
        .collect();
    names.sort();
    names
        .into_iter()
        .filter_map(|name| Some((name.clone(), capture(&name)?)))
        .collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data")
}

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

/// Returns the GPUs in the order of nvidia-smi, which orders by address.
fn gpus(tree: &Tree) -> Vec<Bdf> {
    tree.functions()
        .filter(|f| f.identity.is_nvidia_gpu())
        .map(|f| f.bdf)
        .collect()
}

/// Compares each cell of the matrix with the rule.
fn compare(
    matrix: &topo_matrix::TopoMatrix,
    topology: &Topology<'_>,
    devices: &[(&str, Bdf)],
) -> usize {
    let mut cells = 0;
    for (a, a_bdf) in devices {
        for (b, b_bdf) in devices {
            let printed = matrix.class(a, b).unwrap();
            let relation = topology.relation(*a_bdf, *b_bdf).unwrap();
            assert_eq!(relation.smi, printed, "{a} {b}: {}", relation.why);
            cells += 1;
        }
    }
    cells
}

#[test]
fn the_matrix_of_eight_gpus_on_two_turin_sockets_follows_from_their_tree() {
    let (Some(listing), Some(matrix)) = (
        capture("pairs/asus-esc8000a-e13p/lspci_full.log"),
        capture("pairs/asus-esc8000a-e13p/nvidia_topo.log"),
    ) else {
        return;
    };
    let listing = lspci::read(&listing).unwrap();
    assert_eq!((listing.functions.len(), listing.skipped_lines), (202, 0));
    let tree = listing.into_tree();
    let names: Vec<String> = (0..8).map(|n| format!("GPU{n}")).collect();
    let gpus = gpus(&tree);
    let devices: Vec<(&str, Bdf)> = names.iter().map(String::as_str).zip(gpus).collect();
    assert_eq!(devices.len(), 8);
    let matrix = topo_matrix::read_all(&matrix).unwrap().remove(0);
    let numa = NumaLayout::of_nodes(2);
    assert_eq!(compare(&matrix, &Topology::new(&tree, &numa), &devices), 64);
}

#[test]
fn the_ports_between_two_gpus_of_one_switch_redirect_nothing() {
    let Some(listing) = capture("pairs/asus-esc8000a-e13p/lspci_full.log") else {
        return;
    };
    let tree = lspci::read(&listing).unwrap().into_tree();
    let gpus = gpus(&tree);
    let numa = NumaLayout::of_nodes(2);
    let relation = Topology::new(&tree, &numa)
        .relation(gpus[0], gpus[1])
        .unwrap();
    assert_eq!(relation.ports.len(), 2);
    for port in relation.ports {
        let acs = tree.get(port).unwrap().acs.as_ref().ok().copied().unwrap();
        assert!(
            !acs.control.is_empty() && acs.redirecting().is_empty(),
            "{port}: {acs:?}"
        );
    }
    // An idle GPU lowers its speed, but not its capability.
    assert_eq!(relation.capable.unwrap().0.to_string(), "63.0 GB/s");
}

#[test]
fn the_matrix_of_a_threadripper_without_proximity_follows_from_its_tree() {
    let Some(notes) = capture("pairs/stelline/puget-threadripper-pro-wrx90.md") else {
        return;
    };
    let devices = lspci::read(&notes).unwrap().functions;
    // The notes list a few functions in full and draw the tree; this reproduces the drawing above those functions.
    let bridge = |at: &str, bus: u8| {
        let mut bridge = Function::new(bdf(at));
        bridge.bridge = Some(gdr_node::pci::BusRange {
            secondary: bus,
            subordinate: bus,
        });
        bridge
    };
    let ports = [
        bridge("20:01.1", 0x21),
        bridge("c0:01.1", 0xc1),
        bridge("c0:03.1", 0xc2),
    ];
    for drawn in [
        "20",
        "-01.1-[21]--+-00.0",
        "c0",
        "-01.1-[c1]--+-00.0",
        "-03.1-[c2]--+-00.0",
    ] {
        assert!(notes.contains(drawn), "{drawn}");
    }
    let second_port = Function::new(bdf("21:00.1"));
    let tree = Tree::from_bus_numbers(devices.into_iter().chain(ports).chain([second_port]));
    let matrix = topo_matrix::read_all(&notes).unwrap().remove(0);
    let numa = NumaLayout::of_nodes(1);
    let named = [
        ("GPU0", "c1:00.0"),
        ("GPU1", "c2:00.0"),
        ("NIC0", "21:00.0"),
        ("NIC1", "21:00.1"),
    ];
    let named = named.map(|(name, at)| (name, bdf(at)));
    assert_eq!(compare(&matrix, &Topology::new(&tree, &numa), &named), 16);
}

#[test]
fn every_matrix_is_read_whole() {
    let mut matrices = 0;
    for (name, text) in captures_in("topo-m") {
        if name.ends_with(".numa.txt") {
            continue;
        }
        for matrix in topo_matrix::read_all(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
        {
            matrices += 1;
            // Two of the files are truncated within a matrix.
            if !name.contains(".partial") && !name.contains("stas00") {
                assert_eq!(matrix.rows.len(), matrix.devices.len(), "{name}");
            }
            for row in &matrix.rows {
                assert!(row.classes.iter().all(Option::is_some), "{name}: {row:?}");
                assert_eq!(
                    matrix.class(&row.device, &row.device),
                    Some(SmiClass::Same),
                    "{name}"
                );
            }
        }
    }
    assert!(matrices == 0 || matrices >= 24, "{matrices}");
}

#[test]
fn every_raw_dump_of_config_space_is_read() {
    for (name, text) in captures_in("lspci") {
        let listing = lspci::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
        if !name.contains("pciutils-") {
            continue;
        }
        for function in &listing.functions {
            assert!(function.identity.class.is_some(), "{name}: {function:?}");
        }
        // Where both exist, the bytes agree with lspci's text.
        if name.contains("cap-exp-lnkcap2") {
            let in_words: String = text
                .lines()
                .filter(|line| !line.contains(": ") || line.len() < 4 || !is_row(line))
                .map(|line| format!("{line}\n"))
                .collect();
            let words = lspci::read(&in_words).unwrap().functions;
            for (words, bytes) in words.iter().zip(&listing.functions) {
                assert_eq!(words.express, bytes.express, "{name}");
                assert_eq!(words.acs, bytes.acs, "{name}");
                assert_eq!(words.aer, bytes.aer, "{name}");
                assert_eq!(words.bridge, bytes.bridge, "{name}");
            }
        }
    }
}

fn is_row(line: &str) -> bool {
    line.split_once(": ")
        .is_some_and(|(at, _)| u16::from_str_radix(at, 16).is_ok())
}

#[test]
fn a_broken_extended_chain_ends_without_a_capability() {
    let Some(text) = capture("lspci/pciutils-broken-ecaps.txt") else {
        return;
    };
    let function = lspci::read(&text).unwrap().functions.remove(0);
    assert!(
        function.acs.is_err() && function.ats.is_err(),
        "{function:?}"
    );
}

fn nccl(name: &str) -> Option<NcclGraph> {
    let topology = nccl_xml::read(&capture(name)?).unwrap();
    assert_eq!(topology.skipped_elements, 0, "{name}");
    Some(NcclGraph::from_topology(&topology))
}

#[test]
fn every_topology_of_nccl_is_read_and_joins_all_of_its_devices() {
    for folder in ["nccl-xml/azure", "nccl-xml/aws", "nccl-xml/rccl"] {
        for (name, text) in captures_in(folder) {
            if name.contains("graph") {
                assert!(nccl_xml::read(&text).is_err(), "{name}");
                continue;
            }
            let topology = nccl_xml::read(&text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let graph = NcclGraph::from_topology(&topology);
            let devices: Vec<Bdf> = graph.gpus().chain(graph.nics()).collect();
            for a in &devices {
                for b in &devices {
                    let (forth, back) = (graph.class(*a, *b), graph.class(*b, *a));
                    assert!(
                        forth.is_some_and(|class| class < NcclClass::Net),
                        "{name} {a} {b}"
                    );
                    assert_eq!(forth, back, "{name} {a} {b}");
                }
            }
        }
    }
}

#[test]
fn the_graph_that_nccl_searched_on_ncv4_has_its_distance() {
    // `typeintra="SYS"`: the worst path between two GPUs that NCCL used.
    let (Some(graph), Some(searched)) = (
        nccl("nccl-xml/azure/ncv4-topo.xml"),
        capture("nccl-xml/azure/ncv4-graph.xml"),
    ) else {
        return;
    };
    assert!(searched.contains(r#"typeintra="SYS""#) && !searched.contains(r#"typeintra="PHB""#));
    let gpus: Vec<Bdf> = graph.gpus().collect();
    assert_eq!(gpus.len(), 4);
    for a in &gpus {
        for b in gpus.iter().filter(|b| *b != a) {
            assert_eq!(graph.class(*a, *b), Some(NcclClass::Sys), "{a} {b}");
        }
    }
}

#[test]
fn each_gpu_of_ndv5_has_its_own_nic_and_reaches_the_others_over_the_cpus() {
    let Some(graph) = nccl("nccl-xml/azure/ndv5-topo.xml") else {
        return;
    };
    let (gpus, nics): (Vec<Bdf>, Vec<Bdf>) = (graph.gpus().collect(), graph.nics().collect());
    assert_eq!((gpus.len(), nics.len()), (8, 8));
    for (g, gpu) in gpus.iter().enumerate() {
        for (n, nic) in nics.iter().enumerate() {
            let expected = match (g == n, g / 4 == n / 4) {
                (true, _) => NcclClass::Pix,
                (false, true) => NcclClass::Phb,
                (false, false) => NcclClass::Sys,
            };
            assert_eq!(graph.class(*gpu, *nic), Some(expected), "{gpu} {nic}");
        }
    }
}

#[test]
fn two_gpus_of_p4d_share_a_nic() {
    for name in [
        "nccl-xml/aws/p4d-24xl-topo.xml",
        "nccl-xml/aws/p4de-24xl-topo.xml",
    ] {
        let Some(graph) = nccl(name) else { continue };
        for (g, gpu) in graph.gpus().enumerate() {
            for (n, nic) in graph.nics().enumerate() {
                let expected = match (g / 2 == n, g / 4 == n / 2) {
                    (true, _) => NcclClass::Pix,
                    (false, true) => NcclClass::Phb,
                    (false, false) => NcclClass::Sys,
                };
                assert_eq!(graph.class(gpu, nic), Some(expected), "{name} {gpu} {nic}");
            }
        }
    }
}

#[test]
fn a_nested_switch_is_pxb_and_xgmi_counts_as_nvlink() {
    let Some(graph) = nccl("nccl-xml/rccl/topo_4p2h_2nic.xml") else {
        return;
    };
    let class = |a: &str, b: &str| graph.class(bdf(a), bdf(b)).unwrap();
    assert_eq!(class("1d:00.0", "1a:00.0"), NcclClass::Pxb);
    assert_eq!(class("3f:00.0", "1a:00.0"), NcclClass::Phb);
    assert_eq!(class("1d:00.0", "20:00.0"), NcclClass::Nvl);
    assert_eq!(class("1d:00.0", "26:00.0"), NcclClass::Nvb);
    assert_eq!(class("1d:00.0", "3f:00.0"), NcclClass::Phb);
    let net = graph.path_to_net(bdf("49:00.0"), "mlx5_1").unwrap();
    assert_eq!(
        (net.class, net.bandwidth.to_string().as_str()),
        (NcclClass::Pxb, "12.0 GB/s")
    );
}

/// Reads a capture as a file of unknown kind.
fn of_unknown_kind(name: &str) -> Option<Capture> {
    let path = root().join(name);
    let Ok(bytes) = fs::read(&path) else {
        eprintln!("skipped: no capture {}", path.display());
        return None;
    };
    Some(Capture::read(&bytes).unwrap_or_else(|error| panic!("{name}: {error}")))
}

#[test]
fn archives_of_hwloc_are_read_as_they_are() {
    for (name, functions) in [
        ("32em64t-2n8c+dax+nvme+mic+dimms", 137),
        ("2pa-pcidomain32bits", 0),
        ("32intel64-2p8co2t+8ve", 0),
    ] {
        let Some(capture) = of_unknown_kind(&format!("hwloc/{name}.tar.bz2")) else {
            continue;
        };
        let Capture::Files(node) = capture else {
            panic!("{name} is files");
        };
        let inventory = Inventory::read(node.as_ref());
        let tree = inventory.tree.as_ref().unwrap();
        assert!(!tree.is_empty() && tree.len() >= functions, "{name}");
    }
}

#[test]
fn the_switches_of_a_dgx_2_are_read_from_the_xml_of_hwloc() {
    let Some(Capture::Devices(inventory)) = of_unknown_kind("hwloc/nvidiaDGX2.xml") else {
        return;
    };
    assert_eq!(inventory.gpus.len(), 16);
    assert_eq!(inventory.nvswitches().count(), 11);
    let topology = inventory.topology().unwrap();
    let class = |a: usize, b: usize| {
        let (a, b) = (inventory.gpus[a].bdf, inventory.gpus[b].bdf);
        topology.relation(a, b).unwrap().smi
    };
    assert_eq!(class(0, 1), SmiClass::Pix);
    assert_eq!(class(0, 2), SmiClass::Pxb);
    assert_eq!(class(0, 15), SmiClass::Sys);
}

#[test]
fn notes_with_a_drawing_and_a_list_give_the_matrix_in_them() {
    let name = "pairs/stelline/puget-threadripper-pro-wrx90.md";
    let (Some(Capture::Devices(inventory)), Some(text)) = (of_unknown_kind(name), capture(name))
    else {
        return;
    };
    let matrix = topo_matrix::read_all(&text).unwrap().remove(0);
    let (gpus, nics) = (&inventory.gpus, inventory.nics());
    let devices = [
        ("GPU0", gpus[0].bdf),
        ("GPU1", gpus[1].bdf),
        ("NIC0", nics[0].bdf),
        ("NIC1", nics[1].bdf),
    ];
    let topology = inventory.topology().unwrap();
    assert_eq!(compare(&matrix, &topology, &devices), 16);
}

#[test]
fn each_capture_is_taken_for_what_it_is() {
    for (name, _) in captures_in("topo-m") {
        // Some matrices are accompanied by numactl's output.
        if !name.contains(".numa.") {
            let capture = of_unknown_kind(&name).unwrap();
            assert!(matches!(capture, Capture::Matrices(_)), "{name}");
        }
    }
    for maker in ["aws", "azure", "rccl"] {
        for (name, _) in captures_in(&format!("nccl-xml/{maker}")) {
            // NCCL's graphs are a different kind of file.
            if !name.contains("graph") {
                let capture = of_unknown_kind(&name).unwrap();
                assert!(matches!(capture, Capture::Nccl(_)), "{name}");
            }
        }
    }
}
