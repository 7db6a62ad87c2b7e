//! What programs read of gdr, as a whole: JSON documents, names of errors, columns, the verdicts
//! of the example node.
//!
//! The snapshots are in `tests/snapshots`; `UPDATE_SNAPSHOTS=1 cargo test -p gdr-cli` writes them.
//! `fix --apply`, `fix --undo`, `peermem load`, `unload`, `enable` and `disable` change the machine
//! and are not run; what a real GPU adds (`driver`, BAR sizes, comparisons with CUDA) is not seen.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::ExitStatus;

use fake_ibverbs::{DeviceSpec, PortSpec};
use rustix::process::Signal;
use serde_json::Value;
use snapshot::assert_snapshot;

use super::devices::with;
use super::objects::{Background, Owner};
use super::shape::Shape;
use super::*;

/// A node's capture in a form that can be changed.
pub(super) struct Captures {
    folder: tempfile::TempDir,
}

impl Captures {
    /// Creates the archive of the example node, `node.tar.gz`.
    pub(super) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let captures = Self { folder };
        let output = captures.gdr("collect --example -o node.tar.gz");
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        captures
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `gdr` in the folder.
    pub(super) fn gdr(&self, line: &str) -> Output {
        clean(cargo_bin_cmd!("gdr"))
            .current_dir(self.folder.path())
            .args(line.split_whitespace())
            .output()
            .unwrap()
    }

    /// Unpacks the archive's files into a directory that is laid out like the node's root.
    pub(super) fn unpack(&self, name: &str) -> PathBuf {
        let file = fs::File::open(self.path("node.tar.gz")).unwrap();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(file));
        archive.unpack(self.path(name)).unwrap();
        self.path(name).join("root")
    }
}

/// Returns one section of a snapshot: the command line, its status and the shape of its document.
pub(super) fn section(line: &str, output: &Output, free: &[&str]) -> (String, String) {
    let text = stdout(output);
    let document: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{line}: {error}: {text}{}", stderr(output)));
    let mut free = free.to_vec();
    // Whatever machine this is.
    free.extend(["gdr", "time"]);
    let shape = Shape::of(&document).lines(&free);
    let schema = document["schema"].as_str().unwrap().to_owned();
    let version = &document["version"];
    let status = code(output);
    (
        schema.clone(),
        format!("== gdr {line}\nschema {schema} version {version}, status {status}\n{shape}\n"),
    )
}

/// Compares one file a schema with the sections that have it.
fn assert_schemas(sections: impl IntoIterator<Item = (String, String)>) {
    let mut schemas = BTreeMap::<String, String>::new();
    for (schema, section) in sections {
        schemas.entry(schema).or_default().push_str(&section);
    }
    for (schema, text) in schemas {
        assert_snapshot!(&format!("json/{schema}.txt"), &text);
    }
}

#[test]
fn documents_about_a_captured_node_keep_their_shape() {
    let captures = Captures::new();
    let root = captures.unpack("other");
    fs::write(root.join("proc/cmdline"), "quiet iommu=pt\n").unwrap();
    fs::remove_dir_all(root.join("sys/class/infiniband/mlx5_4")).unwrap();
    let matrix = stdout(&captures.gdr("topo --example"));
    fs::write(captures.path("matrix.txt"), &matrix).unwrap();
    fs::write(captures.path("wrong.txt"), matrix.replacen("PIX", "PHB", 1)).unwrap();
    let log = "[  1.0] nvidia_peermem: disagrees about version of symbol \
               ib_register_peer_memory_client\n";
    fs::write(captures.path("log.txt"), log).unwrap();
    let lines = [
        "doctor --example",
        "doctor --from node.tar.gz --for nccl",
        "doctor --from other/root",
        "doctor --example --pair GPU3,mlx5_3",
        "doctor list",
        "doctor show acs.path",
        "explain --list",
        "explain --example log.txt",
        "explain --offline log.txt",
        "explain --offline nothing that is known",
        "fix --example",
        "fix --from other/root",
        "peermem status --example",
        "peermem status --from other/root",
        "collect --example -o again.tar.gz",
        "diff node.tar.gz other/root",
        "fleet node.tar.gz node.tar.gz other/root",
        "topo --example",
        "topo --from matrix.txt",
        "topo why --example GPU3 mlx5_4",
        "topo why --from matrix.txt GPU3 mlx5_4",
        "topo check --example --matrix matrix.txt",
        "topo check --example --matrix wrong.txt",
        "nics --example",
        "nics --from other/root",
        "env --example",
        "env --for ucx --gpu 3 --from other/root",
        "devices --example",
        "devices --from node.tar.gz",
        "devices --from other/root",
    ];
    assert_schemas(lines.map(|line| {
        let output = captures.gdr(&format!("{line} --json"));
        section(line, &output, &["file"])
    }));
}

#[test]
fn documents_of_the_simulated_gpu_keep_their_shape() {
    let lines = [
        "version",
        "info --simulate",
        "sanity -l",
        "sanity --simulate -t attributes_sanity -t basic_v2_forcepci_cumemalloc",
        "copybw --simulate -s 4K -w 10 -r 10",
        "copylat --simulate -s 64K -w 10 -r 10",
        "copylat --simulate --sweep -s 4 --threads 2",
        "plan --simulate 4K --threads 2",
        "tune --simulate -s 4 --threads 2 --dry-run",
        "apiperf --simulate -s 64K -n 5",
        "pplat --simulate -t 10",
        "loopback --simulate --udp-port 14861 --size 4K --iterations 1",
        "loopback --simulate --udp-port 14866 --all --size 4K --iterations 1",
        "loopback --simulate --udp-port 14862 --size 4K --iterations 1 --staged",
        "loopback --simulate --udp-port 14863 --sweep --size 4 --iterations 5",
        // One size: which way is faster by a model of several depends on the machine.
        "compare --simulate --udp-port 14898 --smallest 16 --size 16 --iterations 5",
    ];
    // What this CPU can do, and from where this was built.
    let free = [
        "commit",
        "copy_routine",
        "copy_routines[]",
        "cpu",
        "measured.cpu",
        "routine",
        "measured.routine",
        "choices[].best",
    ];
    assert_schemas(lines.map(|line| {
        let output = gdr(line.split(' ').chain(["--json"]));
        section(line, &output, &free)
    }));
}

#[test]
fn documents_about_rdma_devices_keep_their_shape() {
    let address = |number| Ipv4Addr::new(10, 0, 0, number);
    let mut closed = DeviceSpec::roce("mlx5_1", address(3));
    closed.refusals.insert("ibv_open_device".to_owned(), 13);
    let devices = [
        DeviceSpec {
            ports: vec![PortSpec::ethernet(address(1)), PortSpec::infiniband(9)],
            ..DeviceSpec::roce("mlx5_0", address(1))
        },
        DeviceSpec::rxe("rxe0", address(2)),
        closed,
    ];
    // The interfaces of this machine.
    let free = ["soft[].name"];
    let listed = with(&devices, &["devices", "--json"]);
    let line = "loopback --simulate --size 4K --iterations 1 --from mlx5_0 --to mlx5_0";
    let moved = with(
        &devices,
        &format!("{line} --json").split(' ').collect::<Vec<_>>(),
    );
    let bare = gdr(["devices", "--json"]);
    assert_snapshot!(
        "json/verbs.txt",
        &[
            section("devices", &listed, &free).1,
            section("devices (no library)", &bare, &free).1,
            section(line, &moved, &free).1,
        ]
        .concat()
    );
}

#[test]
fn documents_about_objects_keep_their_shape() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w").to_str().unwrap().to_owned();
    fs::write(&file, [7; 8]).unwrap();
    let specs = "--object name=w,gpu=0,shape=2x1,element=f32,access=read-write \
                 --object name=r,size=1,mode=ring:2";
    let mut owner = Owner::start(&format!("{specs} --metrics 127.0.0.1:0"));
    let mut watch = owner.watch("w", &["--get", "--count", "1"]);
    let free = [
        "owner",
        "generation",
        "address",
        "rdma_address",
        "device",
        "metrics",
    ];
    let mut sections = vec![];
    for (command, name, rest) in [
        ("put", "w", vec![file.as_str(), "--json"]),
        ("get", "w", vec!["-o", &file, "--json"]),
        ("ls", "", vec!["--json"]),
    ] {
        let output = owner.peer(command, name, &rest);
        sections.push(section(command, &output, &free));
    }
    let mut lines = |process: &mut Background, line: &str| {
        let first = process.first.clone();
        for event in std::iter::once(first).chain(process.rest()) {
            let output = Output {
                status: ExitStatus::default(),
                stdout: event.to_string().into_bytes(),
                stderr: Vec::new(),
            };
            let what = format!("{line}: {}", event["event"].as_str().unwrap());
            sections.push(section(&what, &output, &free));
        }
    };
    lines(&mut watch, "watch --get");
    owner.process.signal(Signal::TERM);
    lines(&mut owner.process, "serve");
    assert_schemas(sections);
}

#[test]
fn errors_keep_their_names_and_statuses() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    file("garbage", b"hello\n");
    fs::create_dir_all(folder.path().join("empty/sys/bus/pci/devices")).unwrap();
    let short = file("short-key", b"short\n");
    let readable = file("readable-key", b"sixteen bytes or more\n");
    for (path, mode) in [(&short, 0o600), (&readable, 0o644)] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(path, mode).unwrap();
    }
    let library = file("libcuda.so.1", b"not a library");
    let taken = UdpSocket::bind("127.0.0.1:14864").unwrap();
    let listening = TcpListener::bind("127.0.0.1:14865").unwrap();
    let [none, lib, sim] = [
        None,
        Some(("GDR_LIBCUDA", library.to_str().unwrap())),
        Some(("GDR_BACKEND", "nonsense")),
    ];
    let cases = [
        ("frobnicate", none),
        ("sanity --simulate -t no_such_check", none),
        ("copybw --simulate -o 128K", none),
        ("copybw --simulate -s 1x", none),
        ("copybw --simulate --gpu 7", none),
        ("copybw --simulate -M cache", none),
        ("copybw -s 4K", sim),
        ("copybw -s 4K", lib),
        ("info", lib),
        ("loopback --size 4K", lib),
        ("doctor --from no-such-file", none),
        ("doctor --from garbage", none),
        ("doctor --example --pair GPU0,GPU99", none),
        ("doctor show no.such", none),
        ("topo why --example GPU3 mlx5_44", none),
        ("topo check --example --matrix garbage", none),
        ("nics --from garbage", none),
        ("env --example --gpu 9", none),
        ("env --from empty", none),
        ("diff garbage garbage", none),
        ("fleet garbage garbage", none),
        ("collect --example -o no/such/folder.tar.gz", none),
        ("collect --example -o garbage", none),
        ("loopback --simulate --udp-port 14864 --to 127.0.0.1", none),
        ("loopback --simulate --from 192.0.2.1", none),
        ("loopback --simulate --from 127.0.0.2 --to ::1", none),
        ("loopback --simulate --from mlx5_0", none),
        ("loopback --simulate --insecure", none),
        ("serve --object name=w,size=0", none),
        ("serve --object name=w", none),
        ("serve --object name=w,size=4,gpu=9 --simulate", none),
        ("serve --object name=w --publish-from no-such-file", none),
        ("ls 10.255.255.1", none),
        ("get 127.0.0.1/a,b", none),
        ("get 127.0.0.1/w", none),
        ("get 127.0.0.1:1/w -o w", none),
        ("put 127.0.0.1:1/w garbage", none),
        ("watch 127.0.0.1:1/w --provider soft", none),
        ("loopback --simulate --listen 10.255.255.1", none),
        ("loopback --simulate --connect 10.255.255.1", none),
        (
            "loopback --simulate --listen 127.0.0.1:14865 --udp-port 0",
            none,
        ),
        (
            "loopback --simulate --listen 127.0.0.1:0 --udp-port 0 --wait 1",
            none,
        ),
        (
            "loopback --simulate --connect 127.0.0.1:1 --udp-port 0",
            none,
        ),
        (
            "loopback --simulate --connect 127.0.0.1 --key-file short-key",
            none,
        ),
        (
            "loopback --simulate --connect 127.0.0.1 --key-file readable-key",
            none,
        ),
    ];
    let mut text = String::new();
    let mut shape = None;
    for (line, variable) in cases {
        let output = clean(cargo_bin_cmd!("gdr"))
            .current_dir(folder.path())
            .env_remove("GDR_LIBCUDA")
            .envs(variable)
            .args(line.split_whitespace())
            .arg("--json")
            .output()
            .unwrap();
        let fault: Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{line}: {error}: {}", stderr(&output)));
        assert_eq!(fault["schema"], "gdr.error", "{line}");
        assert_eq!(fault["exit"], code(&output), "{line}");
        let with = variable.map_or(String::new(), |(name, _)| format!("{name}=... "));
        let name = fault["error"]["name"].as_str().unwrap();
        writeln!(text, "{} {name}: {with}gdr {line}", code(&output)).unwrap();
        let (_, lines) = section(line, &output, &["error.name"]);
        let (_, lines) = lines.split_once('\n').unwrap();
        let lines = lines.split_once(',').map(|(schema, rest)| {
            let (_, lines) = rest.split_once('\n').unwrap();
            format!("{schema}\n{lines}")
        });
        let first = shape.get_or_insert_with(|| lines.clone());
        assert_eq!(first, &lines, "{line}");
    }
    drop((taken, listening));
    let shape = shape.flatten().unwrap();
    assert_snapshot!("json/gdr.error.txt", &format!("{shape}\n{text}"));
}
