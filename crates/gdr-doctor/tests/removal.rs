//! To know less of a node makes nothing worse: files and links that a capture left out are
//! unknown, and no check fails for want of them.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use gdr_doctor::{Context, Outcome, Selection, Verdict, diagnose};
use gdr_node::import::{Assembled, Assembly};
use gdr_node::render::nccl_xml;
use gdr_node::{Inventory, LiveRoot, MemorySource, Source, example};

/// Config space holds most of what the other files of a function say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Config {
    Kept,
    LeftOut,
}

/// Returns the checks that fail, with what they say.
fn failures(node: &dyn Source) -> BTreeSet<String> {
    failures_of(node, &Inventory::read(node))
}

fn failures_of(node: &dyn Source, inventory: &Inventory) -> BTreeSet<String> {
    let diagnosis = diagnose(&Context::new(node, inventory), &Selection::all());
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

/// Returns a capture of the healthy node without what `left_out` names. The functions themselves stay.
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

/// Returns the last name of a path, without its numbers.
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

/// What other tools print of a healthy node.
const PRINTED: [(&str, &str); 9] = [
    (
        "lspci -D -nn -vvv",
        "\
0000:00:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (prog-if 00 [Normal decode])
\tBus: primary=00, secondary=01, subordinate=04, sec-latency=0
\tCapabilities: [40] Express (v2) Root Port (Slot+), MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tKernel driver in use: pcieport

0000:01:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (prog-if 00 [Normal decode])
\tBus: primary=01, secondary=02, subordinate=04, sec-latency=0
\tKernel driver in use: pcieport

0000:02:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (prog-if 00 [Normal decode])
\tBus: primary=02, secondary=03, subordinate=03, sec-latency=0
\tCapabilities: [148 v1] Access Control Services
\t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans+
\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-

0000:02:01.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (prog-if 00 [Normal decode])
\tBus: primary=02, secondary=04, subordinate=04, sec-latency=0

0000:03:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)
\tNUMA node: 0
\tRegion 0: Memory at 93042000000 (64-bit, prefetchable) [size=16M]
\tRegion 2: Memory at 92000000000 (64-bit, prefetchable) [size=128G]
\tCapabilities: [40] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tKernel driver in use: nvidia

0000:04:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 Family [ConnectX-7] [15b3:1021]
\tNUMA node: 0
\tRegion 0: Memory at 94000000000 (64-bit, prefetchable) [size=32M]
\tCapabilities: [60] Express (v2) Endpoint, MSI 00
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported
\t\tLnkSta:\tSpeed 32GT/s, Width x16
\tKernel driver in use: mlx5_core
",
    ),
    (
        "lspci -tv",
        "\
-[0000:00]-+-00.0  Intel Corporation Device 09a2
           \\-01.0-[01-04]----00.0-[02-04]--+-00.0-[03]----00.0  NVIDIA Corporation GH100 [H100 SXM5 80GB]
                                           \\-01.0-[04]----00.0  Mellanox Technologies MT2910 Family [ConnectX-7]
",
    ),
    (
        "lspci -mm -nn",
        "\
00:01.0 \"PCI bridge [0604]\" \"Intel Corporation [8086]\" \"Device [352a]\" \"\" \"\"
03:00.0 \"3D controller [0302]\" \"NVIDIA Corporation [10de]\" \"GH100 [H100 SXM5 80GB] [2330]\" -ra1 \"\" \"\"
04:00.0 \"Infiniband controller [0207]\" \"Mellanox Technologies [15b3]\" \"MT2910 Family [ConnectX-7] [1021]\" \"\" \"\"
",
    ),
    (
        "nvidia-smi topo -m",
        "\
\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV18\tPIX\tSYS\t0-31\t0
GPU1\tNV18\t X \tSYS\tPIX\t32-63\t1
NIC0\tPIX\tSYS\t X \tSYS\t\t
NIC1\tSYS\tPIX\tSYS\t X \t\t

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
",
    ),
    (
        "nvidia-smi -q",
        "\
==============NVSMI LOG==============

Driver Version                            : 580.95.05
CUDA Version                              : 13.0

Attached GPUs                             : 1
GPU 00000000:03:00.0
    Product Name                          : NVIDIA H100 80GB HBM3
    Persistence Mode                      : Enabled
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    Compute Mode                          : Default
    ECC Mode
        Current                           : Enabled
        Pending                           : Enabled
",
    ),
    (
        "ibstat",
        "\
CA 'mlx5_0'
\tCA type: MT4129
\tFirmware version: 28.39.1002
\tNode GUID: 0xb83fd20300a1b2c4
\tPort 1:
\t\tState: Active
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tBase lid: 12
\t\tSM lid: 1
\t\tLink layer: InfiniBand
",
    ),
    (
        "ibv_devinfo",
        "\
hca_id:\tmlx5_0
\ttransport:\t\tInfiniBand (0)
\tfw_ver:\t\t28.39.1002
\tnode_guid:\t\tb83f:d203:00a1:b2c4
\t\tport:\t1
\t\t\tstate:\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t4096 (5)
\t\t\tsm_lid:\t\t1
\t\t\tport_lid:\t\t12
\t\t\tlink_layer:\t\tInfiniBand
",
    ),
    (
        "ibdev2netdev -v",
        "0000:04:00.0 mlx5_0 (MT4129 - MCX75310AAS) NVIDIA ConnectX-7 fw 28.39.1002 port 1 (ACTIVE) ==> ib0 (Up)\n",
    ),
    (
        "dmesg",
        "\
[    1.100000] Linux version 6.8.0-60-generic
[    1.200000] Command line: root=/dev/sda1 iommu=pt
[    9.500000] nvidia: loading out-of-tree module taints kernel.
[    9.600000] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build
[    9.700000] mlx5_core 0000:04:00.0: firmware version: 28.39.1002
[    9.800000] mlx5_core 0000:04:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)
[    9.900000] mlx5_core 0000:04:00.0 ib0: Link up
",
    ),
];

/// Returns the failures of the node that these texts describe; none where they describe none.
fn failures_of_texts<'a>(texts: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    let mut assembly = Assembly::default();
    for text in texts {
        // Refuses a text that has too little left.
        let _refused = assembly.add("capture", text.as_bytes());
    }
    match assembly.finish() {
        Ok(Assembled::Node {
            source, inventory, ..
        }) => failures_of(&*source, &inventory),
        Ok(Assembled::Distances {
            source, inventory, ..
        }) => failures_of(&*source, &inventory),
        _ => BTreeSet::new(),
    }
}

/// Returns a text without the lines that `left_out` names by their numbers.
fn without(text: &str, left_out: impl Fn(usize) -> bool) -> String {
    let lines = text.lines().enumerate();
    let kept = lines.filter(|(number, _)| !left_out(*number));
    kept.flat_map(|(_, line)| [line, "\n"]).collect()
}

#[test]
fn no_part_that_is_missing_in_what_other_tools_print_makes_a_check_fail() {
    for (command, text) in PRINTED {
        let whole = failures_of_texts([text]);
        assert!(whole.is_empty(), "{command}: {whole:#?}");
        let lines: Vec<&str> = text.lines().collect();
        let is_indented = |line: &&str| line.starts_with([' ', '\t']);
        for first in 0..lines.len() {
            for end in first + 1..=lines.len() {
                // What is said of a device is not said of the one before it.
                let has_head = !lines[first..end].iter().all(is_indented);
                if has_head && lines.get(end).is_some_and(is_indented) {
                    continue;
                }
                let part = without(text, |line| (first..end).contains(&line));
                let found = failures_of_texts([&*part]);
                assert!(found.is_empty(), "{command}: {found:#?} in\n{part}");
            }
        }
    }
}

#[test]
fn no_text_that_is_missing_beside_others_makes_a_check_fail() {
    // What describes the tree, and each subset of the others beside it.
    let (trees, others) = PRINTED.split_at(3);
    for tree in trees.iter().map(Some).chain([None]) {
        for subset in 0..1_u32 << others.len() {
            let chosen = (others.iter().enumerate()).filter(|(at, _)| subset >> at & 1 == 1);
            let texts = tree.into_iter().chain(chosen.map(|(_, it)| it));
            let names: Vec<&str> = texts.clone().map(|(command, _)| *command).collect();
            let found = failures_of_texts(texts.map(|(_, text)| *text));
            assert!(found.is_empty(), "{names:?}: {found:#?}");
        }
    }
}

/// A node as `lstopo --of xml` describes it, an element in each line.
const HWLOC: &str = r#"<?xml version="1.0"?><!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0"><object type="Machine" nodeset="0x1">
<object type="NUMANode" os_index="0" nodeset="0x1"/>
<object type="Bridge" bridge_type="0-1" bridge_pci="0000:[01-04]">
<object type="Bridge" bridge_pci="0000:[03-04]" pci_busid="0000:01:00.0" pci_type="0604 [1000:c030] [0:0] 04 00">
<object type="PCIDev" pci_busid="0000:03:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1 00"/>
<object type="PCIDev" pci_busid="0000:04:00.0" pci_type="0207 [15b3:1021] [15b3:0001] 00 00">
<object type="OSDev" name="mlx5_0" osdev_type="3"/>
</object>
</object>
</object>
</object></topology>"#;

#[test]
fn no_element_that_is_missing_in_a_file_of_xml_makes_a_check_fail() {
    let node = example::healthy();
    let nccl = nccl_xml(&node, &Inventory::read(&node));
    for xml in [&*nccl, HWLOC] {
        let (mut read, count) = (0, xml.lines().count());
        for at in 0..count {
            let part = without(xml, |line| line == at);
            read += usize::from(Assembly::default().add("capture", part.as_bytes()).is_ok());
            let found = failures_of_texts([&*part]);
            assert!(found.is_empty(), "without line {at}: {found:#?}");
        }
        assert!(read > 0, "{xml}");
    }
}
