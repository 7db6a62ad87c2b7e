//! Real nodes, from captures beside the workspace in `../shared/data`: an archive gives the same answers as its node. A
//! test whose capture is missing says so and passes.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::path::Path;
use std::process::Command;

use gdr_node::archive::{Archive, Origin};
use gdr_node::compare::{Facts, differences};
use gdr_node::{Inventory, LiveRoot, collect};

/// Collects the node in an hwloc capture, and compares the archive's answers with the node's.
fn replay(name: &str) {
    let capture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data/hwloc")
        .join(format!("{name}.tar.bz2"));
    if !capture.exists() {
        eprintln!("skipped: no capture {}", capture.display());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let tar = Command::new("tar")
        .arg("xf")
        .arg(&capture)
        .arg("-C")
        .arg(dir.path())
        .output();
    if !tar.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!(
            "skipped: tar does not unpack {}: {tar:?}",
            capture.display()
        );
        return;
    }
    // hwloc's archives contain one directory.
    let inside = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap();
    let node = LiveRoot::at(inside.path());
    let collected = collect::collect(&node, Origin::default(), |_| {});
    let mut bytes = Vec::new();
    collected.write(&mut bytes).unwrap();
    let archive = Archive::read(bytes.as_slice()).unwrap();
    assert_eq!(Inventory::read(&archive), Inventory::read(&node), "{name}");
    assert_eq!(Facts::read(&archive), Facts::read(&node), "{name}");
    let redacted = archive.redact(&[]).unwrap();
    let found = differences(&Facts::read(&redacted), &Facts::read(&node));
    assert!(found.differ.is_empty(), "{name}: {:?}", found.differ);
    assert!(found.compared > 0, "{name}");
}

#[test]
fn archives_of_real_nodes_say_what_the_nodes_say() {
    for name in [
        "32em64t-2n8c+dax+nvme+mic+dimms",
        "32intel64-2p8co2t+8ve",
        "2pa-pcidomain32bits",
    ] {
        replay(name);
    }
}
