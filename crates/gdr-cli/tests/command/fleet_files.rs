//! The scripts of `contrib/` for job managers, with this command and stand-ins for the managers'
//! programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use assert_cmd::cargo_bin;
use snapshot::assert_contains;
use tempfile::TempDir;

use super::{code, isolated, stderr, stdout};

/// Options by which the doctor finds nothing wrong, something, and a rehearsed failure.
const HEALTHY: &str = "--example --pair GPU0,mlx5_1";
const FAILED: &str = "--example";
const REHEARSED: &str = "--example --pair GPU0,mlx5_1 --inject acs.path";
/// As if nothing about the node were known.
const UNKNOWN: &str = "--from /nonexistent";

/// A node with the command, and with `scontrol` and `logger` that write down what they are given.
struct Node {
    folder: TempDir,
}

impl Node {
    /// Returns a node that Slurm describes so.
    fn new(description: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let node = Self { folder };
        fs::create_dir(node.path("bin")).unwrap();
        symlink(cargo_bin!("gdr"), node.path("bin/gdr")).unwrap();
        fs::write(node.path("description"), description).unwrap();
        node.program(
            "scontrol",
            "case $2 in show) cat \"$NODE/description\" ;; *) echo \"$*\" >>\"$NODE/updates\" ;; esac",
        );
        node.program("logger", "echo \"$*\" >>\"$NODE/log\"");
        node
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn program(&self, name: &str, body: &str) {
        let path = self.path("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs a script of `contrib/` as for a job with a GPU.
    fn run(&self, script: &str, options: &str) -> Output {
        self.command(script, options)
            .env("SLURM_JOB_GPUS", "0")
            .output()
            .unwrap()
    }

    fn command(&self, script: &str, options: &str) -> Command {
        let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib");
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        isolated(&mut command)
            .arg(contrib.join(script))
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("NODE", self.folder.path())
            .env("GDR_DOCTOR_OPTIONS", options)
            // Longer than any report takes on a slow machine.
            .env("GDR_LIMIT_S", "300")
            .env("SLURMD_NODENAME", "n1")
            .env_remove("GDR")
            .env("SLURM_JOB_ID", "77")
            .env_remove("SLURM_JOB_GPUS");
        command
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }
}

const IDLE: &str = "NodeName=n1 State=IDLE CPUTot=8\n";

#[test]
fn a_prolog_refuses_a_job_on_a_node_that_fails_and_on_no_other() {
    let script = "slurm/gdr-prolog.sh";
    let node = Node::new(IDLE);
    for fine in [HEALTHY, UNKNOWN] {
        let output = node.run(script, fine);
        assert_eq!(code(&output), 0, "{fine}: {}", stderr(&output));
    }
    for bad in [FAILED, REHEARSED] {
        assert_eq!(code(&node.run(script, bad)), 1, "{bad}");
    }
    let log = node.read("log");
    assert_contains!(log, "job 77 refused: ");
    assert_contains!(log, "REHEARSAL of acs.path");
    let without_gpu = node.command(script, FAILED).output().unwrap();
    assert_eq!(code(&without_gpu), 0);
}

#[test]
fn scripts_for_slurm_need_no_path_and_are_loud_where_the_command_is_missing() {
    let contrib = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/slurm");
    let started = |script: &str, gdr: &Path, options: &str| {
        Command::new("/bin/bash")
            .arg(contrib.join(script))
            .env_clear()
            .env("GDR", gdr)
            .env("GDR_DOCTOR_OPTIONS", options)
            .env("GDR_LIMIT_S", "300")
            .env("SLURM_JOB_GPUS", "0")
            .output()
            .unwrap()
    };
    let gdr = cargo_bin!("gdr");
    for (options, status) in [(HEALTHY, 0), (FAILED, 1)] {
        let output = started("gdr-prolog.sh", gdr, options);
        assert_eq!(code(&output), status, "{options}: {}", stderr(&output));
    }
    let missing = Path::new("/nonexistent/gdr");
    for (script, status) in [("gdr-prolog.sh", 1), ("gdr-epilog.sh", 0)] {
        let output = started(script, missing, HEALTHY);
        assert_eq!(code(&output), status, "{script}");
        let said = stderr(&output);
        assert_contains!(said, "/nonexistent/gdr cannot be started", "{script}");
    }
    let node = Node::new(IDLE);
    let mut check = node.command("slurm/gdr-health-check.sh", HEALTHY);
    let output = check.env("GDR", missing).output().unwrap();
    assert_eq!(code(&output), 1, "{}", stderr(&output));
    assert!(node.read("log").contains("cannot be started"));
    assert_eq!(node.read("updates"), "");
}

#[test]
fn an_epilog_reports_and_drains_nothing() {
    let node = Node::new(IDLE);
    for (options, reported) in [(HEALTHY, ""), (FAILED, "after job 77: ")] {
        assert_eq!(code(&node.run("slurm/gdr-epilog.sh", options)), 0);
        assert!(node.read("log").contains(reported));
    }
    assert_eq!(node.read("updates"), "");
}

#[test]
fn a_health_check_drains_a_node_that_fails_and_resumes_only_what_it_drained() {
    let script = "slurm/gdr-health-check.sh";
    let drained_by_us = "NodeName=n1 State=IDLE+DRAIN CPUTot=8 Reason=gdr: acs [root@now]\n";
    let drained_by_others = "NodeName=n1 State=IDLE+DRAIN CPUTot=8 Reason=new fan [root@now]\n";
    let drain = "update NodeName=n1 State=DRAIN Reason=gdr: ";
    let resume = "update NodeName=n1 State=RESUME\n";
    for (description, options, updates) in [
        (IDLE, HEALTHY, ""),
        (IDLE, FAILED, drain),
        (IDLE, REHEARSED, drain),
        (IDLE, UNKNOWN, ""),
        (drained_by_us, FAILED, ""),
        (drained_by_us, HEALTHY, resume),
        (drained_by_us, UNKNOWN, ""),
        (drained_by_others, HEALTHY, ""),
        (drained_by_others, FAILED, ""),
    ] {
        let node = Node::new(description);
        let output = node.run(script, options);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        let found = node.read("updates");
        assert!(found.starts_with(updates), "{options}: {found}");
        assert_eq!(found.is_empty(), updates.is_empty(), "{options}: {found}");
    }
}

#[test]
fn a_check_of_node_problem_detector_prints_one_line_and_knows_three_states() {
    let node = Node::new(IDLE);
    for (options, status) in [(HEALTHY, 0), (FAILED, 1), (REHEARSED, 1), (UNKNOWN, 2)] {
        let output = node.run("kubernetes/gdr-problem-check.sh", options);
        assert_eq!(code(&output), status, "{options}");
        assert_eq!(stdout(&output).lines().count(), 1, "{}", stdout(&output));
    }
}
