//! What holds together of the checks of PCI Express, the host, the network and the kernel's log:
//! of nodes that are well, that were not read, that only a user looked at, and of captures of real
//! machines where they lie beside the workspace.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod findings;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use gdr_doctor::fix::{self, Plan};
use gdr_doctor::{Context, Diagnosis, Group, Selection, Verdict, diagnose};
use gdr_node::import::lspci;
use gdr_node::pci::{LinkSpeed, LinkWidth};
use gdr_node::{Inventory, LiveRoot, MemorySource, NumaLayout, Source, example, virtual_path};
use snapshot::assert_contains;
use tempfile::TempDir;

use findings::{bad, lines};

const GROUPS: [Group; 4] = [Group::Pcie, Group::Host, Group::Network, Group::KernelLog];

fn diagnosis(node: &dyn Source) -> Diagnosis {
    let inventory = Inventory::read(node);
    let selection = Selection::all().groups(GROUPS);
    diagnose(&Context::new(node, &inventory), &selection)
}

fn of(diagnosis: &Diagnosis, check: &str) -> Vec<Verdict> {
    (diagnosis.findings.iter())
        .filter(|judged| judged.check.id.0 == check)
        .map(|judged| judged.finding.verdict)
        .collect()
}

#[test]
fn the_example_has_one_root_cause_among_its_links() {
    let diagnosis = diagnosis(&example::node());
    let causes = diagnosis.root_causes();
    assert_eq!(causes.len(), 1, "{:#?}", bad(&diagnosis));
    let (_, cause) = causes[0];
    assert_eq!(cause.check.id.0, "link.width");
    assert_eq!(cause.finding.subject.to_string(), "mlx5_7");
}

#[test]
fn every_bad_finding_says_what_to_do_and_what_it_rests_on() {
    let nodes = [
        example::node(),
        MemorySource::new(),
        MemorySource::new().directory("/sys/bus/pci/devices"),
        example::healthy().without("/sys/class/infiniband_verbs"),
        example::healthy()
            .without("/dev")
            .without(virtual_path::DEVICE_NODES),
        example::healthy().without("/sys/class/net"),
    ];
    for node in nodes {
        for judged in &diagnosis(&node).findings {
            let finding = &judged.finding;
            assert!(
                !finding.verdict.is_bad()
                    || !(finding.fixes.is_empty() || finding.evidence.is_empty()),
                "{} {}",
                judged.check.id,
                finding.summary
            );
        }
    }
}

/// Returns a node with many wrong settings, which fixes can all mend.
fn misset() -> MemorySource {
    let little = "Max locked memory         8388608              8388608              bytes\n";
    let nodes = example::healthy()
        .text(virtual_path::DEVICE_NODES)
        .ok()
        .unwrap();
    let nodes: Vec<&str> = (nodes.lines())
        .filter(|line| !line.ends_with("uverbs4"))
        .collect();
    example::edit(example::healthy(), example::NICS[1], |nic| {
        nic.read_request(512);
    })
    .file(virtual_path::LIMITS_SELF, little)
    .file(
        "/proc/self/status",
        "CapEff:\t0000000000000000\nCpus_allowed_list:\t0-191\n",
    )
    .file("@limits/slurmd", little)
    .file("/sys/class/net/enp6s0np0/mtu", "1500\n")
    .file(virtual_path::DEVICE_NODES, nodes.join("\n"))
}

#[test]
fn settings_that_are_wrong_become_a_script() {
    let diagnosis = diagnosis(&misset());
    let script = fix::script(&Plan::new(&diagnosis, &[]));
    for line in [
        "setpci -s 0000:19:00.0 CAP_EXP+8.w=5000:7000",
        "# undo: setpci -s 0000:19:00.0 CAP_EXP+8.w=2000:7000",
        "cat > /etc/security/limits.d/90-gdr-memlock.conf",
        "cat > /etc/systemd/system/slurmd.service.d/90-memlock.conf",
        "LimitMEMLOCK=infinity",
        "ip link set dev enp6s0np0 mtu 9000",
        "modprobe ib_uverbs",
    ] {
        assert_contains!(script, line, "no {line} in\n");
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("fix.sh");
    fs::write(&path, &script).unwrap();
    match Command::new("shellcheck").arg(&path).output() {
        Ok(output) => assert!(
            output.status.success(),
            "{}\n{script}",
            String::from_utf8_lossy(&output.stdout)
        ),
        Err(error) => eprintln!("skipped: no shellcheck: {error}"),
    }
}

#[test]
fn of_a_pair_that_was_asked_about_other_devices_are_not_reported() {
    let log = "[    1.0] NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n\
               [    2.0] mlx5_core 0000:9b:00.0: High temperature\n\
               [    3.0] mlx5_core 0000:9b:00.0: Detected insufficient power on the PCIe slot\n";
    let node = example::node().file(virtual_path::KERNEL_LOG, log);
    let inventory = Inventory::read(&node);
    let ends = [example::GPUS[0], example::NICS[1]].map(|bdf| bdf.parse().unwrap());
    let context = Context::new(&node, &inventory).between(ends[0], ends[1]);
    let diagnosis = diagnose(&context, &Selection::all().groups(GROUPS));
    assert!(bad(&diagnosis).is_empty(), "{:#?}", bad(&diagnosis));
    assert_eq!(of(&diagnosis, "port.state"), [Verdict::Pass]);
    assert_eq!(of(&diagnosis, "dev.nodes"), [Verdict::Pass]);
}

/// What a user sees who is not root: headers of config space, no log, no limits of daemons.
#[test]
fn what_only_root_may_read_is_unknown_and_fails_nothing() {
    let mut node = example::healthy();
    let places: Vec<String> = node
        .paths()
        .filter_map(|path| path.strip_suffix("/config"))
        .filter_map(|path| path.rsplit('/').next())
        .map(str::to_owned)
        .collect();
    for bdf in &places {
        node = example::edit(node, bdf, |space| {
            space.header_only();
        });
    }
    let node = node
        .denied(virtual_path::KERNEL_LOG)
        .denied("@limits/slurmd");
    let diagnosis = diagnosis(&node);
    assert!(bad(&diagnosis).is_empty(), "{:#?}", bad(&diagnosis));
    for check in ["pci.mrrs", "pci.ro", "pci.mps", "pci.aspm", "klog.xid"] {
        let verdicts = of(&diagnosis, check);
        assert!(verdicts.iter().all(|it| *it == Verdict::Unknown), "{check}");
    }
    // Speeds and widths of links are readable by every user.
    assert!(
        of(&diagnosis, "link.width")
            .iter()
            .all(|it| *it == Verdict::Pass)
    );
}

/// As on every machine whose GPUs have nothing to do.
#[test]
fn idle_gpus_at_the_lowest_speed_are_no_fault() {
    let node = (example::GPUS.iter().zip(example::GPU_PORTS)).fold(
        example::healthy(),
        |node, (gpu, port)| {
            [*gpu, port].iter().fold(node, |node, bdf| {
                example::edit(node, bdf, |end| {
                    end.link(LinkSpeed::GEN1, LinkWidth(16));
                })
            })
        },
    );
    let diagnosis = diagnosis(&node);
    assert!(bad(&diagnosis).is_empty(), "{:#?}", bad(&diagnosis));
    let reported = of(&diagnosis, "link.speed");
    assert_eq!(
        reported.iter().filter(|it| **it == Verdict::Info).count(),
        8
    );
}

#[test]
fn a_node_without_anything_is_judged_without_panic() {
    let _ = diagnosis(&MemorySource::new());
    // Every path reads as garbage.
    let node = example::healthy();
    let paths: Vec<String> = node
        .paths()
        .filter(|path| node.read(path).is_ok())
        .map(str::to_owned)
        .collect();
    for garbage in [
        "\u{0} 99999999999999999999 : ; [ garbage\n",
        "18446744073709551615\n",
        "4294967295 Gb/sec (4X NDR)\n",
        "[Sun Feb 99999999999 99999999999:9999999:9 2025] NVRM: Xid (PCI:0000:18:00): 79\n",
        "Max locked memory 18446744073709551615 18446744073709551615 bytes\n",
        "size 18446744073709551615\nHugePages_Total: 18446744073709551615\n",
    ] {
        let node = (paths.iter()).fold(node.clone(), |node, path| node.file(path, garbage));
        let _ = diagnosis(&node);
        // The same where devices can still be found.
        let kept = ["/vendor", "/class", "/config", "/state", "/link_layer"];
        let changed = paths
            .iter()
            .filter(|path| !kept.iter().any(|end| path.ends_with(end)));
        let node = changed.fold(example::healthy(), |node, path| node.file(path, garbage));
        let _ = diagnosis(&node);
    }
}

/// Returns the tables of docs/checks.md, a group each.
fn tables() -> String {
    let tables = Group::ALL.map(|group| {
        let rows = gdr_doctor::all().filter(|check| check.group == group);
        let rows: String = (rows.map(|it| format!("| `{}` | {} |\n", it.id, it.title))).collect();
        format!(
            "### {}\n\n| check | fine when |\n|---|---|\n{rows}",
            group.title()
        )
    });
    tables.join("\n")
}

/// `cargo xtask docs` sets `GDR_WRITE_DOCS`, which writes the tables in place of checking them.
#[test]
fn the_documentation_lists_every_check() {
    const HEADING: &str = "## Every check\n\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/checks.md");
    let text = fs::read_to_string(&path).unwrap();
    let (head, listed) = text.split_once(HEADING).unwrap();
    let tables = tables();
    if std::env::var_os("GDR_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{head}{HEADING}{tables}")).unwrap();
        return;
    }
    assert!(
        listed == tables,
        "docs/checks.md is old: run `cargo xtask docs`"
    );
}

fn shared(name: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../../shared/data")
        .join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: no capture {}", path.display());
    None
}

/// Returns what a compressed or a plain capture holds.
fn text(name: &str) -> Option<String> {
    let path = shared(name)?;
    if !name.ends_with(".gz") {
        return Some(String::from_utf8_lossy(&fs::read(path).unwrap()).into_owned());
    }
    match Command::new("gzip").arg("-dc").arg(&path).output() {
        Ok(output) if output.status.success() => {
            Some(String::from_utf8_lossy(&output.stdout).into_owned())
        }
        other => {
            eprintln!(
                "skipped: gzip does not unpack {}: {other:?}",
                path.display()
            );
            None
        }
    }
}

/// Returns a listing by lspci, and nothing else.
fn listed(name: &str, nodes: u32) -> Option<Diagnosis> {
    let tree = lspci::read(&text(name)?).unwrap().into_tree();
    let inventory = Inventory::of_tree(Ok(tree), NumaLayout::of_nodes(nodes));
    let nothing = MemorySource::partial();
    let selection = Selection::all().groups(GROUPS);
    Some(diagnose(&Context::new(&nothing, &inventory), &selection))
}

#[test]
fn listings_of_real_machines_show_the_faults_that_are_there() {
    let small = "warn pci.mrrs 0000:21:00.0: it reads only 512 bytes per request, which slows down \
                 sending from a GPU";
    for (name, nodes, expected) in [
        ("pairs/asus-esc8000a-e13p/lspci_full.log", 2, &[][..]),
        (
            "pairs/stelline/puget-threadripper-pro-wrx90.md",
            1,
            &[small],
        ),
        ("lspci/gpud-lspci.nn.a100.txt", 2, &[]),
        ("lspci/gpud-lspci.nn.a10.txt", 2, &[]),
    ] {
        if let Some(diagnosis) = listed(name, nodes) {
            assert_eq!(bad(&diagnosis), expected, "{name}");
        }
    }
}

#[test]
fn the_idle_gpus_of_a_real_machine_are_reported() {
    let Some(diagnosis) = listed("pairs/asus-esc8000a-e13p/lspci_full.log", 2) else {
        return;
    };
    let reported = of(&diagnosis, "link.speed");
    assert_eq!(
        reported.iter().filter(|it| **it == Verdict::Info).count(),
        8
    );
    assert_eq!(of(&diagnosis, "bar1.size"), [Verdict::Pass; 8]);
    assert!(
        of(&diagnosis, "link.width")
            .iter()
            .all(|it| *it == Verdict::Pass)
    );
}

/// Returns the log of a node, and nothing else.
fn logged(name: &str) -> Option<Diagnosis> {
    let node = MemorySource::partial().file(virtual_path::KERNEL_LOG, text(name)?);
    let inventory = Inventory::read(&node);
    let selection = Selection::all().groups([Group::KernelLog]);
    Some(diagnose(&Context::new(&node, &inventory), &selection))
}

#[test]
fn real_logs_say_what_happened_and_no_more() {
    for (name, expected) in [
        // NVIDIA calls these messages harmless, and the log does not have an old driver.
        ("dmesg/gpud-kmsg.2.peermem.log.gz", &[][..]),
        (
            "dmesg/gpud-dmesg-with-xid-119.log.gz",
            &[
                "fail klog.xid 0000:9b:00.0: Xid 119: the GPU's system processor (GSP) did not \
               answer (5 times)",
            ],
        ),
        ("pairs/asus-esc8000a-e13p/dmesg.log.gz", &[]),
    ] {
        if let Some(diagnosis) = logged(name) {
            assert_eq!(bad(&diagnosis), expected, "{name}");
        }
    }
}

#[test]
fn ports_of_a_real_machine_are_judged_without_gids_and_without_pci() {
    let Some(archive) = shared("ib-sysfs/gpud-sys-class-infiniband-h100.tar.gz") else {
        return;
    };
    let dir = TempDir::new().unwrap();
    let tar = Command::new("tar")
        .arg("xf")
        .arg(&archive)
        .arg("-C")
        .arg(dir.path())
        .output();
    if !tar.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: tar does not unpack {}", archive.display());
        return;
    }
    let class = dir.path().join("sys/class");
    fs::create_dir_all(&class).unwrap();
    let inside = dir.path().join(
        "components/accelerator/nvidia/infiniband/class/testdata/sys-class-infiniband-h100.0",
    );
    fs::rename(inside, class.join("infiniband")).unwrap();
    let diagnosis = diagnosis(&LiveRoot::at(dir.path()));
    let network = lines(&diagnosis, |judged| {
        judged.check.group == Group::Network && judged.finding.verdict.is_bad()
    });
    assert!(network.is_empty(), "{network:#?}");
    assert_eq!(of(&diagnosis, "port.state"), [Verdict::Pass; 9]);
    // The management card has a kind of its own, and no sibling to be slower than.
    let rates = of(&diagnosis, "port.rate");
    assert_eq!(rates.iter().filter(|it| **it == Verdict::Pass).count(), 8);
    assert_eq!(of(&diagnosis, "bond"), [Verdict::Info]);
    assert_eq!(of(&diagnosis, "mgmt.nic"), [Verdict::Info]);
    assert_eq!(of(&diagnosis, "roce.gid"), [Verdict::Unknown]);
}
