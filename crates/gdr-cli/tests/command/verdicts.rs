//! The verdict of every check of the doctor on the example node, as it is and as less and less of
//! it can be read, and the other machine-readable outputs about it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use snapshot::assert_snapshot;

use super::snapshots::Captures;
use super::*;

/// Returns every file below a directory, in order.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            let kind = fs::symlink_metadata(&path).unwrap().file_type();
            if kind.is_dir() {
                left.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

/// Returns a number that depends on the file's path below `root` and on `seed` only (FNV-1a).
fn hash(root: &Path, path: &Path, seed: u64) -> u64 {
    let path = path.strip_prefix(root).unwrap().to_str().unwrap();
    let start = 0xcbf2_9ce4_8422_2325 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = path.bytes().fold(start, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mixed >> 17
}

/// The example node as a directory. It is unpacked once, as it has thousands of files; what is changed
/// of it can be put back.
struct Node {
    root: PathBuf,
    files: Vec<PathBuf>,
    /// What was removed or replaced, in order.
    changed: Vec<PathBuf>,
    /// Where the originals of `changed` are, by number.
    aside: PathBuf,
}

impl Node {
    fn unpack(captures: &Captures) -> Self {
        let root = captures.unpack("node");
        let aside = captures.path("aside");
        fs::create_dir(&aside).unwrap();
        Self {
            files: files(&root),
            root,
            changed: Vec::new(),
            aside,
        }
    }

    fn remove(&mut self, path: &Path) {
        fs::rename(path, self.aside.join(self.changed.len().to_string())).unwrap();
        self.changed.push(path.to_owned());
    }

    /// Puts another file in place of one: ext4 writes a file that is truncated and filled again to
    /// the disk at once.
    fn write(&mut self, path: &Path, bytes: impl AsRef<[u8]>) {
        self.remove(path);
        fs::write(path, bytes).unwrap();
    }

    fn restore(&mut self) {
        while let Some(path) = self.changed.pop() {
            if path.exists() {
                fs::remove_file(&path).unwrap();
            }
            fs::rename(self.aside.join(self.changed.len().to_string()), path).unwrap();
        }
    }

    /// Changes one in `one_in` files.
    fn change(&mut self, seed: u64, one_in: u64, change: impl Fn(&mut Self, &Path, u64)) {
        for path in self.files.clone() {
            let hash = hash(&self.root, &path, seed);
            if hash.is_multiple_of(one_in) {
                change(self, &path, hash / one_in);
            }
        }
    }
}

fn remove(node: &mut Node, path: &Path, _: u64) {
    node.remove(path);
}

/// Another number in place of every number, as text; of a binary file, other bytes.
fn misset(node: &mut Node, path: &Path, hash: u64) {
    let bytes = fs::read(path).unwrap();
    let is_text = std::str::from_utf8(&bytes).is_ok() && !path.ends_with("config");
    let changed = if is_text {
        let digit = b'0' + (hash % 10) as u8;
        let other = |byte: u8| if byte.is_ascii_digit() { digit } else { byte };
        bytes.into_iter().map(other).collect::<Vec<_>>()
    } else {
        let at = hash as usize % bytes.len().max(1);
        let mut bytes = bytes;
        bytes
            .iter_mut()
            .skip(at)
            .take(4)
            .for_each(|byte| *byte ^= 0x55);
        bytes
    };
    node.write(path, changed);
}

/// What a user sees who is not root of PCI config space.
fn header_only(node: &mut Node, path: &Path, _: u64) {
    if path.ends_with("config") {
        let bytes = fs::read(path).unwrap();
        node.write(path, &bytes[..bytes.len().min(64)]);
    }
}

/// Text in place of a text of the file that is found by the end of its path.
const FAULTS: [(&str, &str, &str); 31] = [
    ("@kmsg", "[    0.000000] Linux", LOG),
    (
        "@cuda/devices.json",
        "\"gpu_direct_rdma_supported\":true",
        "\"gpu_direct_rdma_supported\":false",
    ),
    (
        "@cuda/devices.json",
        "\"dma_buf_supported\":true",
        "\"dma_buf_supported\":false",
    ),
    (
        "@verbs/devices.json",
        "\"dma_buf\":\"supported\"",
        "\"dma_buf\":\"unsupported\"",
    ),
    (
        "@limits/slurmd",
        "memory         unlimited            unlimited",
        "memory         65536                65536    ",
    ),
    (
        "@limits/self",
        "memory         unlimited            unlimited",
        "memory         65536                65536    ",
    ),
    ("@systemd/manager", "infinity", "65536"),
    (
        "@symbols",
        "ib_register_peer_memory_client",
        "ib_register_other_client",
    ),
    (
        "@kernel/config",
        "CONFIG_PCI_P2PDMA=y",
        "CONFIG_PCI_P2PDMA=n",
    ),
    ("@libraries", "libcuda.so.580.95.05", "libcuda.so.570.86.15"),
    ("proc/modules", "nvidia_peermem 16384 0", "nouveau 16384 0"),
    ("proc/cmdline", "iommu=pt", "iommu=nopt pci=noats"),
    ("proc/cpuinfo", ": fpu", ": hypervisor fpu"),
    ("proc/sys/kernel/numa_balancing", "0", "1"),
    (
        "proc/driver/nvidia/params",
        "EnableStreamMemOPs: 1",
        "EnableStreamMemOPs: 0",
    ),
    (
        "proc/driver/nvidia/params",
        "RegistryDwords: \"\"",
        "RegistryDwords: \"PeerMappingOverride=1;RMForceStaticBar1=1\"",
    ),
    (
        "kernel/security/lockdown",
        "[none] integrity",
        "none [integrity]",
    ),
    (
        "transparent_hugepage/enabled",
        "always [madvise]",
        "[always] madvise",
    ),
    ("module/nvidia_uvm/version", "580", "570"),
    ("parameters/policy", "[default]", "default [powersave]"),
    ("iommu_groups/11/type", "identity", "DMA"),
    ("policy0/scaling_governor", "performance", "powersave"),
    ("0000:18:00.0/power/control", "on", "auto"),
    (
        "0000:19:00.0/aer_dev_nonfatal",
        "TOTAL_ERR_NONFATAL 0",
        "TOTAL_ERR_NONFATAL 9",
    ),
    ("0000:3a:00.0/current_link_speed", "32.0", "2.5"),
    ("0000:b8:00.0/numa_node", "1", "0"),
    ("mlx5_0/ports/1/state", "4: ACTIVE", "1: DOWN"),
    ("mlx5_1/ports/1/lid", "0x15", "0x0"),
    ("mlx5_2/ports/1/pkeys/0", "0xffff", "0x0000"),
    ("mlx5_5/ports/1/gid_attrs/types/3", "RoCE v2", "IB/RoCE v1"),
    ("net/enp134s0np0/mtu", "9000", "1500"),
];

/// What a kernel says of a node with these faults.
const LOG: &str = "\
[   20.0] NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', GPU has fallen off the bus.
[   20.1] NVRM: dma-buf attach failed: PCI topology not supported for dma-buf
[   20.2] mlx5_1: mr_umem_get:812:(pid 77): umem get failed (-14)
[   20.3] mlx5_core 0000:19:00.0: temp_warn:172:(pid 0): High temperature on sensors
[   20.4] nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer
[   20.5] DMAR: [DMA Write NO_PASID] Request device [19:00.0] fault addr 0x3f8000000000
[   20.6] Loading of unsigned module is rejected
[   20.7] nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client
[    0.000000] Linux";

/// Puts every fault of [`FAULTS`] into a node.
fn break_everything(node: &mut Node) {
    for (end, old, new) in FAULTS {
        let files = node.files.iter().filter(|path| path.ends_with(end));
        let found: Vec<_> = files.cloned().collect();
        assert!(!found.is_empty(), "no file {end}");
        for path in found {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(old), "{}: no `{old}`: {text}", path.display());
            node.write(&path, text.replace(old, new));
        }
    }
    for folder in ["sys/module/nvidia_peermem", "sys/kernel/mm/memory_peers"] {
        node.remove(&node.root.join(folder));
    }
}

/// Returns how many subjects have which verdict, by group and check.
fn verdicts(report: &Value) -> BTreeMap<String, String> {
    let mut checks = BTreeMap::<String, BTreeMap<&str, u32>>::new();
    for finding in report["findings"].as_array().unwrap() {
        let text = |key: &str| finding[key].as_str().unwrap();
        let check = format!("{} {}", text("group"), text("check"));
        let verdicts = checks.entry(check).or_default();
        *verdicts.entry(text("verdict")).or_default() += 1;
    }
    let shown = |(check, verdicts): (String, BTreeMap<&str, u32>)| {
        let counts: Vec<_> = verdicts.iter().map(|(v, n)| format!("{v} {n}")).collect();
        (check, counts.join(", "))
    };
    checks.into_iter().map(shown).collect()
}

/// Returns each step of each fix, as a program would take it.
fn fixes(report: &Value) -> String {
    let mut lines = String::new();
    for finding in report["findings"].as_array().unwrap() {
        for fix in finding["fixes"].as_array().unwrap() {
            let [check, subject] = [&finding["check"], &finding["subject"]["name"]];
            let [check, subject] = [check, subject].map(|value| value.as_str().unwrap());
            let properties = ["effect", "persistence", "privilege", "risk"];
            let properties = properties.map(|key| fix[key].as_str().unwrap());
            writeln!(lines, "{check} {subject}: {}", properties.join(" ")).unwrap();
            for action in fix["actions"].as_array().unwrap() {
                // Advice to people is prose.
                match action["kind"].as_str().unwrap() {
                    "manual" => lines.push_str("  manual\n"),
                    _ => writeln!(lines, "  {action}").unwrap(),
                }
            }
        }
    }
    lines
}

#[test]
fn every_check_keeps_its_verdicts_on_the_example_node() {
    let captures = Captures::new();
    let report = |line: &str| -> Value {
        let output = captures.gdr(&format!("{line} --json"));
        let text = stdout(&output);
        serde_json::from_str(&text)
            .unwrap_or_else(|error| panic!("{line}: {error}: {}", stderr(&output)))
    };
    let example = report("doctor --example");
    let usual = verdicts(&example);
    let mut text = String::new();
    let mut add = |name: &str, report: &Value, usual: &BTreeMap<String, String>| {
        writeln!(text, "== {name}: {}", report["outcome"].as_str().unwrap()).unwrap();
        let now = verdicts(report);
        for (check, verdicts) in &now {
            if usual.get(check) != Some(verdicts) {
                writeln!(text, "{check}: {verdicts}").unwrap();
            }
        }
        for check in usual.keys().filter(|check| !now.contains_key(*check)) {
            writeln!(text, "{check}: no finding").unwrap();
        }
        text.push('\n');
    };
    add("the example node", &example, &BTreeMap::new());
    let mut fixed = format!("== the example node\n{}", fixes(&example));
    let mut node = Node::unpack(&captures);
    let mut variant = |name: &str, edit: &dyn Fn(&mut Node)| {
        edit(&mut node);
        let report = report("doctor --from node/root");
        add(&format!("{name}, where it differs"), &report, &usual);
        node.restore();
        report
    };
    variant("as a directory", &|_| ());
    variant("headers of config space", &|node| {
        node.change(0, 1, header_only)
    });
    let broken = variant("with many faults", &break_everything);
    write!(fixed, "\n== with many faults\n{}", fixes(&broken)).unwrap();
    for seed in 1..=4 {
        variant(&format!("fewer files {seed}"), &|node| {
            node.change(seed, 6, remove)
        });
        variant(&format!("other numbers {seed}"), &|node| {
            node.change(seed, 12, misset)
        });
    }
    assert_snapshot!("doctor/verdicts.txt", &text);
    assert_snapshot!("doctor/fixes.txt", &fixed);
}

#[test]
fn of_a_damaged_node_the_devices_are_listed_that_can_be_read() {
    let captures = Captures::new();
    let mut node = Node::unpack(&captures);
    let edits: [fn(&mut Node, u64); 3] = [
        |node, seed| node.change(seed, 6, remove),
        |node, seed| node.change(seed, 2, misset),
        |node, _| break_everything(node),
    ];
    for (number, edit) in edits.into_iter().enumerate() {
        for seed in 1..=4 {
            edit(&mut node, seed);
            let output = captures.gdr("devices --from node/root");
            let text = stdout(&output);
            let said = format!("{number} {seed}: {text}{}", stderr(&output));
            assert!(matches!(code(&output), 0 | 1), "{said}");
            assert!(text.contains("mlx5_0") && text.contains("mlx5_9"), "{said}");
            let fits = |line: &str| line.chars().count() <= 100;
            assert!(text.lines().all(fits), "{said}");
            node.restore();
        }
    }
}

#[test]
fn every_check_keeps_its_id_group_and_uses() {
    let output = gdr(["doctor", "list", "--json"]);
    let list: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let mut text = String::new();
    for check in list["checks"].as_array().unwrap() {
        let [id, group] = [&check["id"], &check["group"]].map(|value| value.as_str().unwrap());
        let uses = check["purposes"].as_array().unwrap().iter();
        let uses: Vec<_> = uses.map(|purpose| purpose.as_str().unwrap()).collect();
        writeln!(text, "{id} ({group}) {}", uses.join(" ")).unwrap();
    }
    assert_snapshot!("doctor/checks.txt", text.as_str());
}

#[test]
fn metrics_topologies_and_columns_keep_their_names() {
    let output = gdr(["doctor", "--example", "--format", "prom"]);
    let help = |line: &&str| !line.starts_with("# HELP");
    let metrics: Vec<_> = stdout(&output)
        .lines()
        .filter(help)
        .map(str::to_owned)
        .collect();
    assert_snapshot!("doctor/metrics.txt", &format!("{}\n", metrics.join("\n")));
    for format in ["nccl-xml", "dot"] {
        let output = gdr(["topo", "--example", "--format", format]);
        assert_snapshot!(&format!("topo/{format}.txt"), &stdout(&output));
    }
    let captures = Captures::new();
    let root = captures.unpack("other");
    fs::write(root.join("proc/cmdline"), "quiet\n").unwrap();
    let mut columns = String::new();
    for line in [
        "copybw --simulate -s 4K -w 10 -r 10",
        "copylat --simulate -s 64K -w 10 -r 10",
        "apiperf --simulate -s 64K -n 5",
        "pplat --simulate -t 10",
        "loopback --simulate --udp-port 14866 --sweep --size 4 --iterations 5",
        "nics --example",
        "diff node.tar.gz other/root",
        "fleet node.tar.gz node.tar.gz other/root",
    ] {
        let text = stdout(&captures.gdr(&format!("{line} --csv")));
        writeln!(columns, "gdr {line}\n  {}", text.lines().next().unwrap()).unwrap();
    }
    assert_snapshot!("columns.txt", &columns);
}
