use super::*;
use crate::example;
use crate::source::{Absence, Errno, MemorySource};

fn of(node: &MemorySource) -> Archive {
    collect(node, Origin::default(), |_| {})
}

#[test]
fn an_inventory_of_the_archive_is_that_of_the_node() {
    for node in [example::node(), example::healthy(), MemorySource::new()] {
        assert_eq!(Inventory::read(&of(&node)), Inventory::read(&node));
    }
}

#[test]
fn every_file_of_the_example_is_collected() {
    let node = example::node();
    let archive = of(&node);
    for path in node.paths() {
        if node.read(path).is_ok() {
            assert_eq!(archive.read(path), node.read(path), "{path}");
        }
    }
}

#[test]
fn refusals_and_failures_are_kept_as_they_were() {
    let path = "/sys/bus/pci/devices/0000:18:00.0";
    let node = example::node()
        .denied("@kmsg")
        .denied(&format!("{path}/config"))
        .failing(&format!("{path}/current_link_speed"), Errno(5))
        .not_collected("/proc/meminfo")
        .without("/sys/module/gdrdrv");
    let archive = of(&node);
    assert_eq!(archive.read("@kmsg"), Err(Absence::Denied));
    assert_eq!(
        archive.read(&format!("{path}/config")),
        Err(Absence::Denied)
    );
    assert_eq!(
        archive.read(&format!("{path}/current_link_speed")),
        Err(Absence::Failed(Errno(5)))
    );
    assert_eq!(archive.read("/proc/meminfo"), Err(Absence::NotCollected));
    assert_eq!(
        archive.read("/sys/module/gdrdrv/version"),
        Err(Absence::Missing)
    );
    assert_eq!(
        archive.read("/var/log/messages"),
        Err(Absence::NotCollected)
    );
    assert_eq!(Inventory::read(&archive), Inventory::read(&node));
    let denied = archive.denied();
    assert_eq!(denied.len(), 2, "{denied:?}");
}

#[test]
fn another_reader_of_the_recorder_adds_to_the_archive() {
    let node = example::node().file("/opt/thing", "1");
    let recorder = Recorder::new(&node);
    read_all(&recorder, |_| {});
    assert_eq!(recorder.text("/opt/thing"), Ok("1".to_owned()));
    assert_eq!(recorder.read("/opt/other"), Err(Absence::Missing));
    let archive = recorder.finish(Origin::default());
    assert_eq!(archive.text("/opt/thing"), Ok("1".to_owned()));
    assert_eq!(archive.read("/opt/other"), Err(Absence::Missing));
    assert_eq!(archive.read("/opt/third"), Err(Absence::NotCollected));
}

#[test]
fn patterns_match_the_names_that_are_listed() {
    let node = MemorySource::new()
        .file("/a/one1/x", "")
        .file("/a/one2/x", "")
        .file("/a/two1/x", "")
        .link_to("/b", "a");
    assert_eq!(expand(&node, "/b/one*/x"), ["/b/one1/x", "/b/one2/x"]);
    assert_eq!(expand(&node, "/a/*1"), ["/a/one1", "/a/two1"]);
    assert_eq!(expand(&node, "/c/*/x"), Vec::<String>::new());
}

#[test]
fn the_steps_are_reported_in_order() {
    let mut steps = Vec::new();
    collect(&example::node(), Origin::default(), |progress| {
        steps.push(progress)
    });
    assert_eq!(steps.len(), steps[0].total);
    assert!(steps.iter().enumerate().all(|(n, step)| step.done == n));
    assert_eq!(steps[0].step, "devices");
}

#[test]
fn the_origin_is_read_from_the_node() {
    let node = example::node();
    let origin = Origin::of(&node, "0.1.0", 7);
    assert_eq!(
        (origin.host.as_str(), origin.machine.as_str()),
        ("example-node", "x86_64")
    );
    assert!(origin.root && !origin.redacted);
    assert!(!Origin::of(&MemorySource::new(), "0.1.0", 7).root);
}
