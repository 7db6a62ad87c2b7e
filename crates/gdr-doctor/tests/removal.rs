//! To know less of a node makes nothing worse: files and links that a capture left out are
//! unknown, and no check fails for want of them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use gdr_doctor::{Context, Outcome, Selection, Verdict, diagnose};
use gdr_node::{Inventory, LiveRoot, MemorySource, Source, example};

/// Config space holds most of what the other files of a function say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    Kept,
    LeftOut,
}

/// The checks that fail, with what they say.
fn failures(node: &dyn Source) -> BTreeSet<String> {
    let inventory = Inventory::read(node);
    let diagnosis = diagnose(&Context::new(node, &inventory), &Selection::all());
    (diagnosis.findings.iter())
        .filter(|judged| judged.finding.verdict == Verdict::Fail)
        .map(|judged| {
            let finding = &judged.finding;
            format!(
                "{} {}: {}",
                judged.check.id, finding.subject, finding.summary
            )
        })
        .collect()
}

/// A capture of the healthy node without what `left_out` names. The functions themselves stay.
fn capture(config: Config, left_out: impl Fn(&str) -> bool) -> MemorySource {
    let node = example::healthy();
    let dropped = |path: &str| {
        (config == Config::LeftOut && path.ends_with("/config"))
            || (left_out(path) && !path.starts_with("/sys/bus/pci/devices/"))
    };
    (node.paths())
        .filter(|path| !dropped(path))
        .fold(MemorySource::partial(), |capture, path| {
            let (link, bytes) = (node.link(path), node.read(path));
            match (link.ok(), bytes.ok()) {
                (Some(target), _) => capture.link_to(path, &target),
                (None, Some(bytes)) => capture.file(path, bytes),
                (None, None) => capture.directory(path),
            }
        })
}

/// The last name of a path, without its numbers.
fn last_name(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.replace(|c: char| c.is_ascii_digit(), "")
}

#[test]
fn no_kind_of_file_that_was_left_out_makes_a_check_fail() {
    let names: BTreeSet<String> = example::healthy().paths().map(last_name).collect();
    for name in &names {
        let found = failures(&capture(Config::Kept, |path| last_name(path) == *name));
        assert!(found.is_empty(), "without {name}: {found:#?}");
    }
    // Without config space the files beside it say what a function is.
    for name in [
        "vendor",
        "class",
        "device",
        "driver",
        "resource",
        "numa_node",
    ] {
        let found = failures(&capture(Config::LeftOut, |path| last_name(path) == name));
        assert!(found.is_empty(), "without config and {name}: {found:#?}");
    }
}

#[test]
fn no_area_of_a_node_that_was_left_out_makes_a_check_fail() {
    for area in [
        "/proc",
        "/proc/driver",
        "/sys/class",
        "/sys/class/infiniband",
        "/sys/class/net",
        "/sys/kernel",
        "/sys/module",
        "/sys/devices/system",
        "/etc",
        "@",
    ] {
        let found = failures(&capture(Config::Kept, |path| path.starts_with(area)));
        assert!(found.is_empty(), "without {area}: {found:#?}");
    }
}

/// A directory with a copied part of a node's sysfs into, and nothing else.
#[test]
fn a_copied_directory_without_most_of_the_node_fails_nothing() {
    let node = example::healthy();
    let root = tempfile::tempdir().unwrap();
    let wanted = ["vendor", "device", "numa_node"];
    for path in node.paths().filter(|path| path.starts_with("/sys/")) {
        let to = root.path().join(&path[1..]);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        let is_function = path.starts_with("/sys/bus/pci/devices/");
        match (node.link(path), node.read(path)) {
            (Ok(target), _) if is_function => symlink(target, to).unwrap(),
            (_, Ok(bytes)) if wanted.contains(&last_name(path).as_str()) => {
                std::fs::write(&to, bytes).unwrap();
            }
            _ => {}
        }
    }
    let copy = LiveRoot::at(root.path());
    let found = failures(&copy);
    assert!(found.is_empty(), "{found:#?}");
    let inventory = Inventory::read(&copy);
    let diagnosis = diagnose(&Context::new(&copy, &inventory), &Selection::all());
    assert_eq!(diagnosis.outcome(), Outcome::Undecided);
}

/// The same subsets in every run, so that what one run proves the next one does not refute.
#[test]
fn no_subset_of_files_that_was_left_out_makes_a_check_fail() {
    for seed in 0..32_u64 {
        let config = if seed.is_multiple_of(2) {
            Config::Kept
        } else {
            Config::LeftOut
        };
        let one_in = 2 + seed % 15;
        // FNV-1a, which is enough to pick by.
        let picked = |path: &str| {
            let start = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xcbf2_9ce4_8422_2325;
            let hash = path.bytes().fold(start, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            (hash >> 32).is_multiple_of(one_in)
        };
        let found = failures(&capture(config, picked));
        assert!(found.is_empty(), "seed {seed}: {found:#?}");
    }
}
