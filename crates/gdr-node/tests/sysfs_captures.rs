//! Captures of sysfs, if present beside the workspace in `../shared/data`, unpacked by tar. A test whose capture is
//! missing says so and passes.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use gdr_node::pci::{self, Parent, Tree};
use gdr_node::topology::{Place, SmiClass, Topology, UcxClass};
use gdr_node::{Absence, Bdf, LiveRoot, Netdev, NumaLayout, RdmaDevice};
use tempfile::TempDir;

/// Unpacks a capture. If it or tar is missing, prints that and returns `None`.
fn unpacked(name: &str) -> Option<TempDir> {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data")
        .join(name);
    if !archive.exists() {
        eprintln!("skipped: no capture {}", archive.display());
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let tar = Command::new("tar")
        .arg("xf")
        .arg(&archive)
        .arg("-C")
        .arg(dir.path())
        .output();
    match tar {
        Ok(output) if output.status.success() => Some(dir),
        other => {
            eprintln!(
                "skipped: tar does not unpack {}: {other:?}",
                archive.display()
            );
            None
        }
    }
}

/// Returns the node in an hwloc capture, whose archives contain one directory.
fn hwloc(name: &str) -> Option<(TempDir, LiveRoot)> {
    let dir = unpacked(&format!("hwloc/{name}.tar.bz2"))?;
    let inside = fs::read_dir(dir.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    Some((dir, LiveRoot::at(inside)))
}

fn bdf(text: &str) -> Bdf {
    text.parse().unwrap()
}

fn tree(root: &LiveRoot) -> Tree {
    pci::read_functions(root).unwrap()
}

#[test]
fn a_node_of_137_functions_keeps_every_parent_that_its_buses_give() {
    let Some((_dir, root)) = hwloc("32em64t-2n8c+dax+nvme+mic+dimms") else {
        return;
    };
    let tree = tree(&root);
    assert_eq!(tree.len(), 137);
    // The directories of sysfs and the bus numbers in config space describe the same tree.
    let by_buses = Tree::from_bus_numbers(tree.functions().cloned());
    for function in tree.functions() {
        assert_eq!(
            tree.parent(function.bdf),
            by_buses.parent(function.bdf),
            "{}",
            function.bdf
        );
        assert!(
            function.acs.is_err(),
            "64 bytes hold no ACS: {}",
            function.bdf
        );
    }
    let express = tree
        .functions()
        .filter(|function| function.express == Err(Absence::Denied))
        .count();
    assert!(
        express > 0,
        "capabilities beyond the header are not missing"
    );
}

#[test]
fn an_hca_its_interface_and_its_node_are_found() {
    let Some((_dir, root)) = hwloc("32em64t-2n8c+dax+nvme+mic+dimms") else {
        return;
    };
    let devices = RdmaDevice::read_all(&root).unwrap();
    let netdevs = Netdev::read_all(&root).unwrap();
    let hca = devices
        .iter()
        .find(|device| device.name == "mlx4_0")
        .unwrap();
    assert_eq!(hca.function, Ok(bdf("82:00.0")));
    assert_eq!(hca.netdevs(&netdevs).len(), 1);
    assert_eq!(hca.netdevs(&netdevs)[0].name, "ib0");
    let software = devices
        .iter()
        .find(|device| device.name == "scif0")
        .unwrap();
    assert!(software.function.is_err());

    let (tree, numa) = (tree(&root), NumaLayout::read(&root));
    assert_eq!(numa.online.as_ref().unwrap().len(), 2);
    let ethernet = netdevs.iter().find(|netdev| netdev.name == "eth0").unwrap();
    let ethernet = *ethernet.function.as_ref().unwrap();
    let relation = Topology::new(&tree, &numa)
        .relation(bdf("82:00.0"), ethernet)
        .unwrap();
    assert_eq!(
        (relation.smi, relation.ucx.class),
        (SmiClass::Sys, UcxClass::Sys)
    );
    let nodes = relation
        .steps
        .iter()
        .filter(|step| matches!(step.place, Place::Node(_)));
    assert_eq!(nodes.count(), 2);
}

#[test]
fn switches_of_plx_keep_their_ports() {
    let Some((_dir, root)) = hwloc("32intel64-2p8co2t+8ve") else {
        return;
    };
    let tree = tree(&root);
    assert_eq!(tree.len(), 28);
    let (root_bus, chain) = tree.chain(bdf("19:04.0")).unwrap();
    assert_eq!(root_bus.to_string(), "pci0000:17");
    assert_eq!(chain, [bdf("17:00.0"), bdf("18:00.0")]);
    assert!(tree.children(Parent::Bridge(bdf("18:00.0"))).count() >= 3);
}

#[test]
fn domains_wider_than_16_bits_are_read() {
    let Some((_dir, root)) = hwloc("2pa-pcidomain32bits") else {
        return;
    };
    let tree = tree(&root);
    let wide = tree.get(bdf("10000:00:04.0")).unwrap();
    assert_eq!(tree.chain(wide.bdf).unwrap().0.to_string(), "pci10000:00");
    let relation = Topology::new(&tree, &NumaLayout::read(&root))
        .relation(bdf("10000:00:04.0"), bdf("0000:00:03.0"))
        .unwrap();
    assert!(relation.smi >= SmiClass::Node, "{relation:?}");
}

#[test]
fn the_ports_of_an_h100_node_say_their_state_and_rate() {
    let Some(dir) = unpacked("ib-sysfs/gpud-sys-class-infiniband-h100.tar.gz") else {
        return;
    };
    fs::create_dir_all(dir.path().join("sys/class")).unwrap();
    let inside = "../../components/accelerator/nvidia/infiniband/class/testdata";
    symlink(
        format!("{inside}/sys-class-infiniband-h100.0"),
        dir.path().join("sys/class/infiniband"),
    )
    .unwrap();
    let devices = RdmaDevice::read_all(&LiveRoot::at(dir.path()))
        .ok()
        .unwrap();
    assert!(devices.len() >= 9, "{devices:?}");
    let ndr = devices.iter().filter(|device| {
        device.ports.iter().any(|port| {
            port.rate == Ok("400 Gb/sec (4X NDR)".to_owned())
                && port.is_active()
                && port.physical_state == Ok("LinkUp".to_owned())
        })
    });
    assert_eq!(ndr.count(), 8);
    assert!(devices.iter().all(|device| device.firmware.is_ok()));
}
