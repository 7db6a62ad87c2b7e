use super::*;
use crate::example;
use crate::pci::AcsBits;
use crate::source::{MemorySource, Source};

fn facts(node: &MemorySource) -> Facts {
    Facts::read(node)
}

fn names(found: &[Outliers]) -> Vec<String> {
    found
        .iter()
        .map(|outliers| outliers.key.to_string())
        .collect()
}

#[test]
fn a_node_does_not_differ_from_itself() {
    let found = differences(&facts(&example::node()), &facts(&example::node()));
    assert_eq!((found.differ.len(), found.unknown.len()), (0, 0));
    assert!(found.compared > 500, "{}", found.compared);
}

#[test]
fn an_unreadable_fact_is_unknown_and_not_a_difference() {
    let node = example::edit(example::healthy(), example::GPU_PORTS[0], |port| {
        port.header_only();
    });
    let found = differences(&facts(&example::healthy()), &facts(&node));
    assert!(found.differ.is_empty(), "{:?}", found.differ);
    let unknown: Vec<String> = found.unknown.iter().map(|d| d.key.to_string()).collect();
    assert!(
        unknown.contains(&format!("{} ACS", example::GPU_PORTS[0])),
        "{unknown:?}"
    );
}

#[test]
fn a_missing_device_is_one_difference() {
    let node = example::healthy().without("/sys/class/infiniband/mlx5_9");
    let found = differences(&facts(&example::healthy()), &facts(&node));
    let differ: Vec<String> = found
        .differ
        .iter()
        .filter(|difference| difference.key.category == Category::Nics)
        .map(|difference| difference.key.to_string())
        .collect();
    assert_eq!(differ, ["mlx5_9"]);
}

#[test]
fn versions_modules_limits_and_arguments_are_compared() {
    let node = example::healthy()
        .file("/sys/module/mlx5_core/version", "23.10-1.1.9\n")
        .file("/sys/class/infiniband/mlx5_1/fw_ver", "28.39.1002\n")
        .file("/proc/cmdline", "root=/dev/sda ro intel_iommu=on\n")
        .file(
            "@limits/sshd",
            "Max locked memory  8388608  8388608  bytes\n",
        )
        .file("/sys/class/dmi/id/bios_version", "2.2.0\n");
    let found = differences(&facts(&example::healthy()), &facts(&node));
    let differ: Vec<String> = found.differ.iter().map(|d| d.key.to_string()).collect();
    assert_eq!(
        differ,
        [
            "BIOS",
            "argument iommu",
            "mlx5_core version",
            "mlx5_1 firmware",
            "sshd memlock"
        ]
    );
}

#[test]
fn names_of_a_node_are_not_compared() {
    let node = example::healthy()
        .file("/proc/sys/kernel/hostname", "another\n")
        .file(
            "/sys/class/infiniband/mlx5_1/node_guid",
            "1111:2222:3333:4444\n",
        );
    assert_eq!(facts(&node), facts(&example::healthy()));
}

#[test]
fn the_node_that_most_differ_from_is_the_outlier() {
    let good = facts(&example::healthy());
    let odd = facts(&example::edit(
        example::healthy(),
        example::GPU_PORTS[3],
        |port| {
            port.acs_control(AcsBits::REQUEST_REDIRECT);
        },
    ));
    let found = outliers(&[&good, &good, &odd, &good]);
    assert_eq!(names(&found), [format!("{} ACS", example::GPU_PORTS[3])]);
    assert_eq!((found[0].usual_count, found[0].known), (3, 4));
    assert_eq!(found[0].others[0].1, [2]);
    assert_eq!(found[0].others[0].0, Ok("ReqRedir".to_owned()));
    assert_eq!(suspects(&found), [(2, 1)]);
}

#[test]
fn without_a_majority_there_is_no_outlier() {
    let of =
        |version: &str| facts(&example::healthy().file("/sys/class/dmi/id/bios_version", version));
    let (a, b) = (of("1"), of("2"));
    let found = outliers(&[&a, &b]);
    assert_eq!(found[0].usual, None);
    assert_eq!(found[0].others.len(), 2);
    assert!(suspects(&found).is_empty());
}

#[test]
fn a_node_of_which_a_fact_is_unknown_has_no_vote() {
    let bios = "/sys/class/dmi/id/bios_version";
    let good = facts(&example::healthy());
    let denied = facts(&example::healthy().denied(bios));
    assert!(outliers(&[&good, &denied, &denied]).is_empty());
}

#[test]
fn words_for_init_are_no_kernel_arguments() {
    let node = example::healthy();
    let line = node.text("/proc/cmdline").unwrap();
    let more = node.file("/proc/cmdline", format!("{line} -- single iommu=off\n"));
    assert_eq!(facts(&more), facts(&example::healthy()));
}
