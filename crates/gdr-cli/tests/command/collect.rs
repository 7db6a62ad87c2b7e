//! `gdr collect`, `gdr diff`, `gdr fleet`, and what is read `--from` an archive.

use std::fs;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use assert_cmd::cargo::cargo_bin_cmd;
use fake_ibverbs::{DeviceSpec, Fake};
use gdr_node::archive::{Archive, Origin};
use gdr_node::{MemorySource, Source, collect, example};
use serde_json::Value;
use snapshot::assert_contains;
use tempfile::TempDir;

use super::{clean, code, gdr, stderr, stdout};

/// A directory with archives in it.
struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Returns the archive of a node that names itself.
    fn archive(&self, name: &str, node: &MemorySource) -> String {
        let node = node
            .clone()
            .file("/proc/sys/kernel/hostname", format!("{name}\n"));
        let archive = collect::collect(&node, Origin::of(&node, "0.1.0", 1), |_| {});
        let path = self.path(&format!("{name}.tar.gz"));
        archive.write(fs::File::create(&path).unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    }
}

fn json(arguments: &[&str]) -> Value {
    let output = gdr(arguments.iter().copied().chain(["--json"]));
    serde_json::from_str(&stdout(&output)).unwrap_or_else(|_| panic!("{}", stderr(&output)))
}

#[test]
fn this_node_is_collected_and_read_again() {
    let files = Files::new();
    let path = files.path("node.tar.gz");
    let file = path.to_str().unwrap();
    let report = json(&["collect", "-o", file]);
    assert_eq!(report["schema"], "gdr.collect");
    assert!(report["files"].as_u64().unwrap() > 20, "{report}");
    let archive = Archive::open(&path).unwrap();
    assert!(
        archive
            .text("@uname")
            .as_ref()
            .ok()
            .unwrap()
            .contains("release ")
    );
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    let again = gdr(["collect", "-o", file]);
    assert_eq!(code(&again), 2);
    assert_contains!(stderr(&again), "--force");
    let before = fs::read(&path).unwrap();
    assert_eq!(
        code(&gdr(["collect", "--force", "--example", "-o", file])),
        0
    );
    assert_ne!(fs::read(&path).unwrap(), before);
    assert_eq!(fs::read_dir(files.0.path()).unwrap().count(), 1);
    let device = gdr(["collect", "--force", "--example", "-o", "/dev/null"]);
    assert_eq!(code(&device), 2);
    let nowhere = gdr(["collect", "--example", "-o", "/no/such/folder/x"]);
    assert_eq!(code(&nowhere), 2);
    assert!(stderr(&nowhere).contains("/no/such/folder/x"));
}

#[test]
fn what_libibverbs_reports_of_its_devices_is_collected() {
    let files = Files::new();
    let devices = [DeviceSpec::roce("mlx5_0", Ipv4Addr::new(10, 0, 0, 1))];
    fs::write(
        files.path("devices.json"),
        serde_json::to_string(&devices).unwrap(),
    )
    .unwrap();
    let path = files.path("node.tar.gz");
    let output = clean(cargo_bin_cmd!("gdr"))
        .envs(Fake::environment(&files.path("devices.json")))
        .args(["collect", "-o", path.to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    let reported = Archive::open(&path).unwrap().text("@verbs/devices.json");
    let reported: Value = serde_json::from_str(reported.as_ref().unwrap()).unwrap();
    assert_eq!(reported["error"], Value::Null);
    assert_eq!(reported["devices"][0]["name"], "mlx5_0");
    assert_eq!(reported["devices"][0]["dma_buf"], "supported");
    assert_eq!(reported["devices"][0]["ports"][0]["active_mtu"], 4096);
}

#[test]
fn an_archive_can_go_to_standard_output() {
    let output = gdr(["collect", "--example", "-o", "-"]);
    assert_eq!(code(&output), 0);
    let archive = Archive::read(output.stdout.as_slice()).unwrap();
    assert_eq!(archive.origin().host, "example-node");
    assert_contains!(stderr(&output), "example-node");
    assert_eq!(code(&gdr(["collect", "-o", "-", "--json"])), 64);
}

#[test]
fn the_doctor_says_the_same_of_the_archive_as_of_the_node() {
    let files = Files::new();
    let file = files.path("x.tar.gz");
    let file = file.to_str().unwrap();
    assert_eq!(code(&gdr(["collect", "--example", "-o", file])), 0);
    for command in [
        &["doctor"][..],
        &["doctor", "--for", "nccl"],
        &["peermem", "status"],
        &["fix"],
        &["nics"],
        &["topo"],
        &["topo", "why", "GPU0", "mlx5_3"],
    ] {
        let run = |node: &[&str]| {
            let output = gdr([command, node].concat());
            let mut report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            // When and how the report was made is what differs.
            let document = report.as_object_mut().unwrap();
            document.remove("time");
            let about = document.remove("about");
            (report, code(&output), about)
        };
        let (live, status, _) = run(&["--example", "--json"]);
        let (archived, archived_status, about) = run(&["--from", file, "--json"]);
        assert!(archived == live, "{command:?} differs");
        assert_eq!(archived_status, status, "{command:?}");
        if let Some(about) = about {
            assert_eq!(about["capture"]["file"], "x.tar.gz");
            assert!(about["capture"]["collected"].is_string(), "{about}");
        }
    }
}

#[test]
fn a_redacted_archive_is_judged_alike() {
    let files = Files::new();
    let file = files.path("x.tar.gz");
    let file = file.to_str().unwrap();
    assert_eq!(
        code(&gdr(["collect", "--example", "--redact", "-o", file])),
        0
    );
    assert_eq!(Archive::open(file).unwrap().origin().host, "host-1");
    let verdicts = |report: &Value| -> Vec<(Value, Value)> {
        let findings = report["findings"].as_array().unwrap();
        findings
            .iter()
            .map(|finding| (finding["check"].clone(), finding["verdict"].clone()))
            .collect()
    };
    let live = json(&["doctor", "--example"]);
    let redacted = json(&["doctor", "--from", file]);
    assert_eq!(verdicts(&redacted), verdicts(&live));
    assert!(!verdicts(&live).is_empty());
}

#[test]
fn a_directory_laid_out_like_a_root_is_collected() {
    let files = Files::new();
    let root = files.path("root");
    fs::create_dir_all(root.join("proc/sys/kernel")).unwrap();
    fs::write(root.join("proc/sys/kernel/hostname"), "other\n").unwrap();
    let file = files.path("x.tar.gz");
    let (root, file) = (root.to_str().unwrap(), file.to_str().unwrap());
    let output = gdr(["collect", "--from-root", root, "-o", file]);
    assert!(
        stdout(&output).starts_with("other: 1 file in "),
        "{}",
        stdout(&output)
    );
    let missing = gdr(["collect", "--from-root", "/no/such/root"]);
    assert_eq!(code(&missing), 64);
}

#[test]
fn what_differs_is_in_the_table_and_in_the_exit_status() {
    let files = Files::new();
    let good = files.archive("good", &example::healthy());
    let bad = files.archive("bad", &example::node());
    let same = gdr(["diff", &good, &good]);
    assert_eq!(code(&same), 0);
    assert!(stdout(&same).starts_with("0 of "), "{}", stdout(&same));

    let output = gdr(["diff", &good, &bad]);
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    for word in [
        "good",
        "bad",
        "mlx5_7 link width",
        "x16",
        "x8",
        "0000:37:02.0 ACS",
        "3 of ",
    ] {
        assert_contains!(text, word);
    }
    let report = json(&["diff", &good, &bad]);
    assert_eq!(report["schema"], "gdr.diff");
    assert_eq!(report["differ"].as_array().unwrap().len(), 3);
    assert_eq!(report["differ"][0]["a"], "x16");
}

#[test]
fn the_odd_one_of_a_fleet_is_named() {
    let files = Files::new();
    let mut all = vec!["fleet".to_owned()];
    for name in ["n1", "n2", "n3", "n4"] {
        all.push(files.archive(name, &example::healthy()));
    }
    assert_eq!(code(&gdr(&all)), 0);
    all.push(files.archive("odd", &example::node()));
    let output = gdr(&all);
    assert_eq!(code(&output), 1);
    let text = stdout(&output);
    assert_contains!(text, "x8: odd");
    assert_contains!(text, "x16 (4 of 5)");
    assert_contains!(text, "most often an outlier: odd (3)");
    all.push("--json".to_owned());
    let report: Value = serde_json::from_str(&stdout(&gdr(&all))).unwrap();
    assert_eq!(report["outliers"].as_array().unwrap().len(), 3);
    assert_eq!(report["outliers"][0]["others"][0]["nodes"][0], "odd");
    assert_eq!(code(&gdr(["fleet", &all[1]])), 64);
    let half = stdout(&gdr(["fleet", &all[1], &all[5]]));
    assert_contains!(half, "no majority");
}

/// Returns what the file at a path makes of every command that reads archives.
fn refusals(path: &Path) -> Vec<String> {
    let path = path.to_str().unwrap();
    [
        vec!["doctor", "--from", path],
        vec!["devices", "--from", path],
        vec!["diff", path, path],
        vec!["fleet", path, path],
    ]
    .into_iter()
    .map(|arguments| {
        let output = gdr(&arguments);
        assert_eq!(code(&output), 66, "{arguments:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{arguments:?}");
        stderr(&output)
    })
    .collect()
}

#[test]
fn files_that_are_no_archives_are_refused_by_name() {
    let files = Files::new();
    let good = fs::read(files.archive("good", &example::node())).unwrap();
    for (name, bytes, word) in [
        ("cut.tar.gz", &good[..good.len() / 2], "cut off"),
        ("text", &b"hello world"[..], "an archive of a node"),
        ("empty", b"", "empty"),
        ("x.tar.zst", b"\x28\xb5\x2f\xfd", "zstd"),
    ] {
        let path = files.path(name);
        fs::File::create(&path).unwrap().write_all(bytes).unwrap();
        for said in refusals(&path) {
            assert!(said.contains(name) && said.contains(word), "{name}: {said}");
        }
    }
    for said in refusals(&files.path("none")) {
        assert_contains!(said, "No such file");
    }
}
