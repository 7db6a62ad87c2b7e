//! What holds of the checks together: of nodes that are well, that were not read, that only a
//! user looked at, and of captures of real machines where they lie beside the workspace.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod findings;

use std::fs;
use std::path::Path;

use gdr_doctor::{Context, Diagnosis, Group, Outcome, Selection, Verdict, diagnose, find};
use gdr_node::import::{Assembled, Assembly, lspci};
use gdr_node::pci::AcsBits;
use gdr_node::{Errno, Inventory, MemorySource, NumaLayout, Source, example, virtual_path};
use proptest::prelude::*;
use snapshot::assert_contains;

use findings::{bad, lines};

fn diagnosis(node: &MemorySource) -> Diagnosis {
    let inventory = Inventory::read(node);
    diagnose(&Context::new(node, &inventory), &Selection::all())
}

#[test]
fn on_the_healthy_node_nothing_is_bad_and_nothing_is_left_open() {
    let diagnosis = diagnosis(&example::healthy());
    let open = lines(&diagnosis, |judged| {
        judged.finding.verdict >= Verdict::Unknown
    });
    assert!(open.is_empty(), "{open:#?}");
    assert_eq!(diagnosis.outcome(), Outcome::Healthy);
}

#[test]
fn of_a_node_that_was_not_read_nothing_is_claimed() {
    let diagnosis = diagnosis(&MemorySource::partial());
    let claimed = lines(&diagnosis, |judged| {
        judged.finding.verdict != Verdict::Unknown
    });
    assert!(claimed.is_empty(), "{claimed:#?}");
    assert_eq!(diagnosis.outcome(), Outcome::Undecided);
}

#[test]
fn without_sysfs_no_device_is_missed_and_the_mount_is_named() {
    let diagnosis = diagnosis(&MemorySource::new());
    assert_eq!(diagnosis.outcome(), Outcome::Undecided);
    let present = lines(&diagnosis, |judged| {
        judged.check.id.to_string().ends_with(".present")
    });
    assert_eq!(present.len(), 2);
    for line in present {
        assert_contains!(line, "sysfs is not mounted at /sys");
    }
}

#[test]
fn without_a_gpu_and_a_nic_what_is_about_them_does_not_apply() {
    let bare = MemorySource::new().directory("/sys/bus/pci/devices");
    for node in [bare.clone(), bare.directory("/sys/class/infiniband")] {
        let diagnosis = diagnosis(&node);
        let others: Vec<String> = (diagnosis.findings.iter())
            .filter(|judged| judged.check.group != Group::KernelLog)
            .filter(|judged| judged.finding.verdict != Verdict::Skip)
            .map(|judged| format!("{} {}", judged.finding.verdict, judged.check.id))
            .collect();
        let of_the_host = [
            "fail gpu.present",
            "fail nic.present",
            "pass modules.lockdown",
            "info gdrdrv",
            "unknown memlock.self",
            "unknown memlock.container",
            "unknown shm",
            "unknown hugepages",
            "unknown virt",
            "unknown vm.topology",
        ];
        assert_eq!(others, of_the_host);
    }
}

#[test]
fn the_example_has_two_root_causes() {
    let diagnosis = diagnosis(&example::node());
    let causes: Vec<String> = (diagnosis.root_causes().iter())
        .map(|(_, cause)| format!("{} {}", cause.check.id, cause.finding.subject))
        .collect();
    assert_eq!(causes, ["acs.path GPU3", "link.width mlx5_7"]);
}

/// Returns what a user sees who is not root: headers of config space, no log, no symbols.
fn seen_by_a_user(node: MemorySource) -> MemorySource {
    let places: Vec<String> = node
        .paths()
        .filter_map(|path| path.strip_suffix("/config"))
        .filter_map(|path| path.rsplit('/').next())
        .map(str::to_owned)
        .collect();
    places
        .iter()
        .fold(node, |node, bdf| {
            example::edit(node, bdf, |space| {
                space.header_only();
            })
        })
        .denied(virtual_path::KERNEL_LOG)
        .denied(virtual_path::SYMBOLS)
}

#[test]
fn what_only_root_may_read_is_unknown_and_never_off_or_on() {
    for node in [example::healthy(), example::node()] {
        let diagnosis = diagnosis(&seen_by_a_user(node));
        // The width of a link is readable by every user.
        let bad = lines(&diagnosis, |judged| {
            judged.finding.verdict.is_bad() && !judged.check.id.0.starts_with("link.")
        });
        assert!(bad.is_empty(), "{bad:#?}");
        let unknown = lines(&diagnosis, |judged| {
            judged.check.id.0 == "acs.path" && judged.finding.verdict == Verdict::Unknown
        });
        assert_eq!(unknown.len(), 1, "{unknown:?}");
    }
}

/// As on an EPYC Turin machine with PEX890xx: 38 of 40 ports with SrcValid and UpstreamFwd.
#[test]
fn ports_that_validate_and_forward_only_are_no_finding() {
    let on = AcsBits::SOURCE_VALIDATION | AcsBits::UPSTREAM_FORWARDING;
    let ports = (example::GPU_PORTS.iter())
        .chain(&example::NIC_PORTS)
        .chain(&example::ROOT_PORTS);
    let node = ports.fold(example::healthy(), |node, port| {
        example::edit(node, port, |space| {
            space.acs_control(on);
        })
    });
    assert!(bad(&diagnosis(&node)).is_empty());
}

/// As on an eight-GPU machine whose ports to the chipset, to storage and to the management NICs
/// redirect: a checker that looks for any `+` anywhere cries wolf.
#[test]
fn ports_that_redirect_off_every_way_are_no_finding() {
    let on = AcsBits::SOURCE_VALIDATION
        | AcsBits::REQUEST_REDIRECT
        | AcsBits::COMPLETION_REDIRECT
        | AcsBits::UPSTREAM_FORWARDING;
    let off_the_ways = [example::NIC_PORTS[0], example::NIC_PORTS[5]];
    let node =
        (off_the_ways.iter().chain(&example::ROOT_PORTS)).fold(example::healthy(), |node, port| {
            example::edit(node, port, |space| {
                space.acs_control(on);
            })
        });
    assert!(bad(&diagnosis(&node)).is_empty());
}

/// Returns a port as `lspci -vvv` prints it, with these buses behind it and these services on.
fn listed_port(bdf: &str, kind: &str, buses: (u8, u8), on: &str) -> String {
    let bit = |name: &str| format!("{name}{}", if on.contains(name) { '+' } else { '-' });
    let names = [
        "SrcValid",
        "TransBlk",
        "ReqRedir",
        "CmpltRedir",
        "UpstreamFwd",
        "EgressCtrl",
    ];
    let control: Vec<String> = names.into_iter().map(bit).collect();
    format!(
        "{bdf} PCI bridge [0604]: Broadcom / LSI PEX890xx [1000:c030]\n\
         \tBus: primary=00, secondary={:02x}, subordinate={:02x}, sec-latency=0\n\
         \tNUMA node: 0\n\
         \tCapabilities: [68] Express (v2) {kind}, MSI 00\n\
         \tCapabilities: [f24 v1] Access Control Services\n\
         \t\tACSCap:\tSrcValid+ TransBlk+ ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl+ DirectTrans+\n\
         \t\tACSCtl:\t{} DirectTrans-\n",
        buses.0,
        buses.1,
        control.join(" "),
    )
}

/// Eight GPUs with a NIC each below nested switches, and on each of 55 ports ACS; on at 6.
fn eight_gpus(on_at: impl Fn(&str) -> bool) -> (String, usize) {
    let mut text = String::new();
    let mut ports = 0;
    let mut port = |bdf: String, kind: &str, buses: (u8, u8)| {
        ports += 1;
        let on = if on_at(&bdf) {
            "SrcValid ReqRedir CmpltRedir UpstreamFwd"
        } else {
            ""
        };
        listed_port(&bdf, kind, buses, on)
    };
    for unit in 0..8_u8 {
        // Root port, switch, inner switch with the GPU; the NIC hangs on the outer one.
        let bus = unit * 0x20;
        text += &port(
            format!("{bus:02x}:01.0"),
            "Root Port (Slot-)",
            (bus + 1, bus + 9),
        );
        text += &port(
            format!("{:02x}:00.0", bus + 1),
            "Upstream Port",
            (bus + 2, bus + 9),
        );
        text += &port(
            format!("{:02x}:00.0", bus + 2),
            "Downstream Port (Slot+)",
            (bus + 3, bus + 5),
        );
        text += &port(
            format!("{:02x}:01.0", bus + 2),
            "Downstream Port (Slot+)",
            (bus + 6, bus + 6),
        );
        text += &port(
            format!("{:02x}:00.0", bus + 3),
            "Upstream Port",
            (bus + 4, bus + 5),
        );
        text += &port(
            format!("{:02x}:00.0", bus + 4),
            "Downstream Port (Slot+)",
            (bus + 5, bus + 5),
        );
        text += &format!(
            "{:02x}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5] [10de:2330]\n\
             \tNUMA node: 0\n",
            bus + 5
        );
        text += &format!(
            "{:02x}:00.0 Infiniband controller [0207]: Mellanox Technologies MT2910 [15b3:1021]\n\
             \tNUMA node: 0\n\tCapabilities: [60] Express (v2) Endpoint, MSI 00\n",
            bus + 6
        );
        if unit < 7 {
            // A root port to storage.
            text += &port(
                format!("{bus:02x}:02.0"),
                "Root Port (Slot+)",
                (bus + 0xa, bus + 0xa),
            );
        }
    }
    (text, ports)
}

/// Returns what acs.path says of a listing.
fn redirected(text: &str) -> Vec<String> {
    let tree = lspci::read(text).unwrap().into_tree();
    let inventory = Inventory::of_tree(Ok(tree), NumaLayout::of_nodes(2));
    let nothing = MemorySource::partial();
    let only = Selection::all().only([find("acs.path").unwrap().id]);
    bad(&diagnose(&Context::new(&nothing, &inventory), &only))
}

#[test]
fn six_of_fifty_five_ports_that_redirect_do_not_matter_off_the_ways() {
    let storage = |bdf: &str| bdf.ends_with(":02.0") && !bdf.starts_with("c0");
    let (text, ports) = eight_gpus(storage);
    assert_eq!(ports, 55);
    assert_eq!(
        text.matches("ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl-")
            .count(),
        6
    );
    assert_eq!(redirected(&text), [""; 0]);
}

#[test]
fn each_port_of_both_legs_matters_and_none_above_the_common_switch() {
    // Unit 1: the root port, the upstream port, then the ports towards GPU and NIC.
    for (port, matters) in [
        ("20:01.0", false),
        ("21:00.0", false),
        ("22:00.0", true),
        ("22:01.0", true),
        ("24:00.0", true),
    ] {
        let (text, _) = eight_gpus(|bdf| bdf == port);
        let found = redirected(&text);
        assert_eq!(found.len(), usize::from(matters), "{port}: {found:?}");
        assert!(
            found
                .iter()
                .all(|line| line.contains(port) && line.starts_with("fail"))
        );
    }
}

#[test]
fn symptoms_go_under_their_cause() {
    // The driver is not loaded: no dma-buf, no peer-memory module.
    let node = example::healthy()
        .without("/proc/driver/nvidia")
        .without(virtual_path::CUDA_DEVICES)
        .without("/sys/module/nvidia_peermem")
        .without(virtual_path::MODULE_FILES)
        .file("/proc/modules", "ib_core 1 0 - Live 0x0\n");
    let diagnosis = diagnosis(&node);
    let causes: Vec<&str> = (diagnosis.root_causes().iter())
        .map(|(_, judged)| judged.check.id.0)
        .collect();
    assert_eq!(causes, ["nvidia.version"], "{:#?}", bad(&diagnosis));
    assert!(bad(&diagnosis).len() > 1);
}

#[test]
fn every_bad_finding_of_these_says_what_to_do() {
    let nodes = [
        example::node(),
        MemorySource::new().directory("/sys/bus/pci/devices"),
        example::healthy().without("/proc/driver/nvidia"),
        example::healthy().without("/sys/class/infiniband"),
    ];
    for node in nodes {
        for judged in &diagnosis(&node).findings {
            let finding = &judged.finding;
            assert!(
                !finding.verdict.is_bad() || !finding.fixes.is_empty(),
                "{} {}",
                judged.check.id,
                finding.summary
            );
        }
    }
}

fn capture(name: &str) -> Option<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data")
        .join(name);
    match fs::read(&path) {
        Ok(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Err(_) => {
            eprintln!("skipped: no capture {}", path.display());
            None
        }
    }
}

/// Returns a listing by lspci, and nothing else.
fn listed(name: &str, nodes: u32) -> Option<Diagnosis> {
    let tree = lspci::read(&capture(name)?).unwrap().into_tree();
    let inventory = Inventory::of_tree(Ok(tree), NumaLayout::of_nodes(nodes));
    let nothing = MemorySource::partial();
    Some(diagnose(
        &Context::new(&nothing, &inventory),
        &Selection::all(),
    ))
}

#[test]
fn a_turin_machine_has_no_fault_in_its_topology() {
    let Some(diagnosis) = listed("pairs/asus-esc8000a-e13p/lspci_full.log", 2) else {
        return;
    };
    assert!(bad(&diagnosis).is_empty(), "{:#?}", bad(&diagnosis));
    // Its network cards come from other makers: no listing says whether they do RDMA.
    let nic = (diagnosis.findings.iter()).find(|judged| judged.check.id.0 == "nic.present");
    assert_eq!(nic.unwrap().finding.verdict, Verdict::Unknown);
}

#[test]
fn a_workstation_with_its_cards_on_other_host_bridges_has_warnings_and_no_failure() {
    let Some(diagnosis) = listed("pairs/stelline/puget-threadripper-pro-wrx90.md", 1) else {
        return;
    };
    // Its card does read 512 bytes at a time, and is below another host bridge than the GPUs.
    let wrong = lines(&diagnosis, |judged| {
        judged.finding.verdict.is_bad() && !["pci.mrrs", "topo.pair"].contains(&judged.check.id.0)
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    let failed = lines(&diagnosis, |judged| judged.finding.verdict == Verdict::Fail);
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_driver_that_another_keeps_out_is_blamed_on_the_other() {
    let node = (example::GPUS.iter()).fold(example::healthy(), |node, gpu| {
        node.link_to(
            &format!("/sys/bus/pci/devices/{gpu}/driver"),
            "../../../../bus/pci/drivers/nouveau",
        )
    });
    let node = node
        .without("/proc/driver/nvidia")
        .without(virtual_path::CUDA_DEVICES);
    let diagnosis = diagnosis(&node);
    let causes: Vec<&str> = (diagnosis.root_causes().iter())
        .map(|(_, judged)| judged.check.id.0)
        .collect();
    assert_eq!(causes, ["gpu.driver"], "{:#?}", bad(&diagnosis));
}

#[test]
fn a_question_about_one_pair_is_answered_about_that_pair() {
    let node = example::node();
    let inventory = Inventory::read(&node);
    let (gpu, nic) = (
        example::GPUS[0].parse().unwrap(),
        example::NICS[1].parse().unwrap(),
    );
    let diagnosis = diagnose(
        &Context::new(&node, &inventory).between(gpu, nic),
        &Selection::all(),
    );
    assert!(bad(&diagnosis).is_empty(), "{:#?}", bad(&diagnosis));
    let others = ["GPU1", "GPU3", "mlx5_2", "mlx5_0"];
    let about_others = lines(&diagnosis, |judged| {
        let subject = judged.finding.subject.to_string();
        others.iter().any(|other| subject.contains(other))
    });
    assert!(about_others.is_empty(), "{about_others:#?}");
}

/// Returns the example with some of its files turned into something else, by a number that says which.
fn changed(
    one_in: u64,
    seed: u64,
    change: impl Fn(MemorySource, &str) -> MemorySource,
) -> MemorySource {
    let whole = example::healthy();
    let files: Vec<String> = (whole.paths())
        .filter(|path| whole.link(path).is_err())
        .map(str::to_owned)
        .collect();
    // Knuth's multiplicative hash, which is enough to pick by.
    let picked = |place: u64| {
        let mixed = (place ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        mixed.is_multiple_of(one_in)
    };
    (0_u64..)
        .zip(&files)
        .filter(|(place, _)| picked(*place))
        .fold(whole.clone(), |node, (_, path)| change(node, path))
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(16)
    })]

    #[test]
    fn to_know_less_of_a_healthy_node_makes_nothing_bad(seed: u64, one_in in 2_u64..40) {
        for node in [
            changed(one_in, seed, |node, path| node.not_collected(path)),
            changed(one_in, seed, |node, path| node.denied(path)),
            changed(one_in, seed, |node, path| node.failing(path, Errno(5))),
        ] {
            let bad = lines(&diagnosis(&node), |judged| {
                judged.finding.verdict.is_bad()
            });
            prop_assert!(bad.is_empty(), "{bad:#?}");
        }
    }

    #[test]
    fn what_makes_no_sense_breaks_no_check(seed: u64, one_in in 2_u64..40, garbage: Vec<u8>) {
        let node = changed(one_in, seed, |node, path| node.file(path, &garbage));
        prop_assert!(!diagnosis(&node).findings.is_empty());
    }
}

/// A function of a machine: address, class by name and number, names and numbers of maker and
/// product.
type Listed = (
    &'static str,
    [&'static str; 2],
    [&'static str; 2],
    [&'static str; 2],
);

/// A machine as lspci shows it.
const MACHINE: [Listed; 9] = [
    (
        "00:00.0",
        ["Host bridge", "0600"],
        ["Intel Corporation", "8086"],
        ["Device 09a2", "09a2"],
    ),
    (
        "00:02.0",
        ["USB controller", "0c03"],
        ["Intel Corporation", "8086"],
        ["Device 1bcd", "1bcd"],
    ),
    (
        "00:03.0",
        ["Ethernet controller", "0200"],
        ["Intel Corporation", "8086"],
        ["I350", "1521"],
    ),
    (
        "40:00.0",
        ["Host bridge", "0600"],
        ["Intel Corporation", "8086"],
        ["Device 09a2", "09a2"],
    ),
    (
        "40:05.0",
        ["3D controller", "0302"],
        ["NVIDIA Corporation", "10de"],
        ["GH100 [H100]", "2330"],
    ),
    (
        "40:06.0",
        ["Bridge", "0680"],
        ["NVIDIA Corporation", "10de"],
        ["Device 22a3", "22a3"],
    ),
    (
        "40:07.0",
        ["Infiniband controller", "0207"],
        ["Mellanox Technologies", "15b3"],
        ["MT2910 Family [ConnectX-7]", "1021"],
    ),
    (
        "40:08.0",
        ["Ethernet controller", "0200"],
        ["Amazon.com, Inc.", "1d0f"],
        ["Elastic Fabric Adapter (EFA)", "efa2"],
    ),
    (
        "40:09.0",
        ["Non-Volatile memory controller", "0108"],
        ["Amazon.com, Inc.", "1d0f"],
        ["NVMe EBS Controller", "8061"],
    ),
];

/// Returns the functions of the machine that a mask selects, in one of the forms of lspci.
fn in_form(form: usize, mask: u16, has_names: bool) -> String {
    let chosen = (MACHINE.iter().enumerate()).filter(|(place, _)| mask >> place & 1 == 1);
    let lines: Vec<String> = chosen
        .map(|(place, (at, class, maker, product))| {
            let device = if has_names {
                product[0].to_owned()
            } else {
                format!("Device {}", product[1])
            };
            let ids = format!("{}:{}", maker[1], product[1]);
            match form {
                0 => format!("{at} {}: {} {device}", class[0], maker[0]),
                1 => format!(
                    "{at} {} [{}]: {} {device} [{ids}]",
                    class[0], class[1], maker[0]
                ),
                2 => format!("{at} {}: {ids}", class[1]),
                3 => format!(
                    r#"{at} "{}" "{}" "{device}" -r01 "" """#,
                    class[0], maker[0]
                ),
                4 => format!(r#"{at} "{}" "{}" "{}""#, class[1], maker[1], product[1]),
                5 => format!(
                    "Slot:\t{at}\nClass:\t{}\nVendor:\t{}\nDevice:\t{device}\n",
                    class[0], maker[0]
                ),
                _ => {
                    let (bus, at) = at.split_once(':').unwrap();
                    let name = match form {
                        6 => format!("{} {device}", maker[0]),
                        7 => format!("{} {device} [{ids}]", maker[0]),
                        _ => ids,
                    };
                    let start = if place < 3 { "-+-" } else { " +-" };
                    format!("{start}[0000:{bus}]---{at}  {name}")
                }
            }
        })
        .collect();
    lines.join("\n") + "\n"
}

fn of_listing(text: &str) -> Option<Diagnosis> {
    let mut assembly = Assembly::default();
    assembly.add("listing", text.as_bytes()).ok()?;
    let Ok(Assembled::Node {
        source, inventory, ..
    }) = assembly.finish()
    else {
        return None;
    };
    let context = Context::new(source.as_ref(), &inventory);
    Some(diagnose(&context, &Selection::all()))
}

proptest! {
    #[test]
    fn a_part_of_a_listing_in_any_form_never_says_that_there_is_none(
        form in 0_usize..9,
        mask in 1_u16..512,
        has_names: bool,
    ) {
        let text = in_form(form, mask, has_names);
        let diagnosis = of_listing(&text);
        let failed: Vec<String> = (diagnosis.iter().flat_map(|it| &it.findings))
            .filter(|judged| judged.finding.verdict == Verdict::Fail)
            .map(|judged| format!("{} {}", judged.check.id, judged.finding.summary))
            .collect();
        prop_assert!(failed.is_empty(), "{failed:#?} of\n{text}");
    }
}

#[test]
fn every_form_of_a_listing_has_the_same_devices() {
    for form in 0..9 {
        for has_names in [true, false] {
            let text = in_form(form, 0x1ff, has_names);
            let listing = lspci::read(&text).unwrap();
            let inventory = Inventory::of_tree(Ok(listing.into_tree()), NumaLayout::unknown());
            let found: Vec<String> = (inventory.devices().iter())
                .map(|device| device.bdf.to_string())
                .collect();
            let expected = ["0000:40:05.0", "0000:40:07.0", "0000:40:08.0"];
            assert_eq!(found, expected, "{text}");
        }
    }
}

/// A capture that claims what no machine has: 400 GPUs, 400 NICs, as many DMA functions, all
/// handed to guests or not.
#[test]
fn a_capture_that_claims_what_no_machine_has_is_judged_up_to_a_bound() {
    let kinds = [
        ("0x10de", "0x2330", "0x030200"),
        ("0x15b3", "0x1021", "0x020700"),
    ];
    let kinds = kinds.into_iter().chain([("0x15b3", "0x2100", "0x080100")]);
    let mut node = MemorySource::new().file("/sys/class/iommu/dmar0/x", "");
    for (kind, (vendor, device, class)) in (1..).zip(kinds) {
        for number in 0..400_u32 {
            let bdf = format!(
                "{kind:04x}:{:02x}:{:02x}.{}",
                number >> 8,
                number >> 3 & 31,
                number & 7
            );
            let path = format!("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/{bdf}");
            node = node
                .link_to(
                    &format!("/sys/bus/pci/devices/{bdf}"),
                    &format!("../../../{}", &path[5..]),
                )
                .file(&format!("{path}/vendor"), vendor)
                .file(&format!("{path}/device"), device)
                .file(&format!("{path}/class"), class)
                .link_to(
                    &format!("{path}/iommu_group"),
                    "../../../../../kernel/iommu_groups/7",
                );
            if number % 2 == 0 {
                node = node.link_to(
                    &format!("{path}/driver"),
                    "../../../../bus/pci/drivers/vfio-pci",
                );
            } else if kind == 2 {
                let name = format!("/sys/class/infiniband/mlx5_{number}");
                node = node.link_to(
                    &format!("{name}/device"),
                    &format!("../../../{}", &path[5..]),
                );
            }
        }
    }
    let inventory = Inventory::read(&node);
    let context = Context::new(&node, &inventory);
    assert_eq!(context.pairs().len(), 1 << 13);
    assert!(!diagnosis(&node).findings.is_empty());
}
