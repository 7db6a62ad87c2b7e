//! `gdr trace`: what it starts, what it makes of the counts that processes leave, and its statuses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use gdr_trace::layout::{self, header};
use gdr_trace::{MemoryKind, Operation};
use serde_json::Value;
use snapshot::assert_snapshot;

use super::preloaded::{command, libraries, library};
use super::snapshots::section;
use super::*;

fn trace(arguments: &[&str]) -> Output {
    command(&["trace"]).args(arguments).output().unwrap()
}

/// Returns the file of a process that wrote `direct` bytes from GPU memory and sent `host` bytes.
fn counts(folder: &Path, direct: u64, host: u64) -> PathBuf {
    let mut file = vec![0; layout::FILE_LEN];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &layout::MAGIC);
    put(header::VERSION, &layout::VERSION.to_le_bytes());
    put(header::PID, &7_u32.to_le_bytes());
    put(header::PROGRAM, b"app\0-x\0");
    for (table, text) in [(layout::NICS, "mlx5_0"), (layout::QUEUE_PAIRS, "")] {
        put(header::USED + 4 * table.number, &1_u32.to_le_bytes());
        let row = table.offset + table.row;
        put(row, &layout::READY.to_le_bytes());
        put(row + layout::nic::NAME, text.as_bytes());
    }
    let pair = layout::QUEUE_PAIRS.offset + layout::QUEUE_PAIRS.row;
    put(pair + layout::queue_pair::NIC, &1_u32.to_le_bytes());
    put(pair + layout::queue_pair::QPN, &291_u32.to_le_bytes());
    put(pair + layout::queue_pair::TYPE, &2_u32.to_le_bytes());
    for (operation, memory, bytes) in [
        (Operation::Write, MemoryKind::DmaBuf, direct),
        (Operation::Send, MemoryKind::Host, host),
    ] {
        let cell = pair + layout::queue_pair::CELLS + 16 * layout::cell(operation, memory);
        put(cell, &1_u64.to_le_bytes());
        put(cell + 8, &bytes.to_le_bytes());
    }
    let path = folder.join("counts");
    fs::write(&path, file).unwrap();
    path
}

/// Returns a script that leaves a file as a traced process does.
fn leave(counts: &Path) -> String {
    format!("cp '{}' \"$GDR_TRACE_FOLDER/7-0.trace\"", counts.display())
}

#[test]
fn the_report_comes_behind_the_output_of_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let script = leave(&counts(folder.path(), 9000, 1000)) + "; echo mine; exit 3";
    let output = trace(&["sh", "-c", &script]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.starts_with("mine\ngdr trace: 1 process, 1 queue pair: 9.8 KiB moved, 90.0% direct"),
        "{text}"
    );
    assert_contains!(text, "the program ended with status 3");
    assert!(text.lines().all(|line| line.len() <= 100), "{text}");
    assert_eq!(stderr(&output), "");
}

#[test]
fn a_requirement_is_the_status_of_a_program_that_succeeded() {
    let folder = tempfile::tempdir().unwrap();
    let script = leave(&counts(folder.path(), 90, 10));
    for (requirement, end, status) in [
        ("direct=90%", "", 0),
        ("direct=90.5%", "", 120),
        ("direct", "", 120),
        ("direct", "; exit 4", 4),
    ] {
        let output = trace(&[
            "--require",
            requirement,
            "--",
            "sh",
            "-c",
            &format!("{script}{end}"),
        ]);
        assert_eq!(code(&output), status, "{requirement}{end}");
    }
    // Without traffic nothing went direct.
    assert_eq!(code(&trace(&["--require", "direct=0", "true"])), 120);
    let output = trace(&["--require", "staged", "true"]);
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("give direct, or direct=N%"));
}

#[test]
fn a_program_that_moved_nothing_by_rdma_is_named_with_how_far_it_came() {
    let folder = tempfile::tempdir().unwrap();
    let moved = leave(&counts(folder.path(), 90, 10));
    let listed = "printf 'listed\\n' > $GDR_VERBS_USE/$$-1.use";
    for (option, script, status, part) in [
        ("--require-rdma=100", &*moved, 0, ""),
        (
            "--require-rdma=101",
            &moved,
            120,
            "process 7 moved 100 bytes; 101 are required",
        ),
        (
            "--require-rdma",
            "true",
            120,
            "no process opened an RDMA device",
        ),
        (
            "--require-rdma",
            listed,
            120,
            "listed the devices but opened none",
        ),
        ("--require-rdma", "exit 4", 4, ""),
    ] {
        let output = trace(&[option, "--", "sh", "-c", script]);
        let said = stderr(&output);
        assert_eq!(code(&output), status, "{option} {script}: {said}");
        assert_eq!(said.is_empty(), part.is_empty(), "{said}");
        assert!(said.contains(part), "{said}");
        assert!(stdout(&output).starts_with("gdr trace: "));
    }
    let output = trace(&["--json", "--require-rdma", "--", "true"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let unmet = document["unmet_rdma"].as_str().unwrap();
    assert!(unmet.contains("opened an RDMA device"), "{unmet}");
}

#[test]
fn documents_and_metrics_are_written_where_they_are_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let script = leave(&counts(folder.path(), 9000, 1000)) + "; echo mine";
    let (report, metrics) = (folder.path().join("r-%p"), folder.path().join("m"));
    let output = command(&["trace", "--json", "-o"])
        .arg(&report)
        .arg("--prometheus")
        .arg(&metrics)
        .args(["--", "sh", "-c", &script])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "mine\n", "{}", stderr(&output));
    let text = fs::read_to_string(&metrics).unwrap();
    assert_contains!(text, "gdr_trace_direct_ratio 0.9\n");
    let names = fs::read_dir(folder.path()).unwrap();
    let mut names: Vec<_> = names
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let [_, _, written] = &names[..] else {
        panic!("{names:?}");
    };
    // The numbers of processes of another PID namespace are the same ones.
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap();
    let namespace = namespace.to_str().unwrap();
    let namespace = namespace.trim_matches(|it: char| !it.is_ascii_digit());
    let mut name = written.strip_prefix("r-").unwrap().splitn(3, '-');
    assert_ne!(name.next().unwrap().parse::<u32>().unwrap(), 0);
    assert_eq!(name.next(), Some(namespace), "{written}");
    assert!(name.next().is_some(), "{written}: no host");
    let document = fs::read(folder.path().join(written)).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    assert_eq!(document["total"]["direct_bytes"], 9000);
    assert!(document["time"].is_string() && !document["host"].is_null());
    let missing = trace(&["-o", "/no/such/folder/report", "true"]);
    assert_eq!(code(&missing), 125);
    assert!(stderr(&missing).contains("/no/such/folder/report cannot be written"));
}

#[test]
fn the_document_keeps_its_shape() {
    let folder = tempfile::tempdir().unwrap();
    let script = leave(&counts(folder.path(), 9000, 1000));
    let line = ["--json", "--require", "direct", "sh", "-c", &script];
    let shown = section(
        "trace --json --require direct app",
        &trace(&line),
        &["command[]"],
    );
    assert_snapshot!("json/gdr.trace.txt", &shown.1);
}

#[test]
fn a_file_that_is_no_trace_is_named() {
    let output = trace(&["sh", "-c", "echo nonsense > $GDR_TRACE_FOLDER/1-0.trace"]);
    assert_eq!(code(&output), 0);
    assert_contains!(
        stdout(&output),
        "note: 1-0.trace: a trace file of 9 bytes is incomplete"
    );
}

#[test]
fn the_library_of_the_trace_is_before_that_of_gdr_run() {
    let gdr = cargo_bin!("gdr").to_str().unwrap().to_owned();
    let folder = library().display();
    let both = format!("{folder}/libgdr-verbs-trace.so:{folder}/libgdr-verbs.so\n");
    let show = ["sh", "-c", "echo $LD_PRELOAD"];
    for (outer, inner) in [("trace", "run"), ("run", "trace")] {
        let output = command(&[outer, "--", &gdr, inner, "--"])
            .args(show)
            .output()
            .unwrap();
        assert!(stdout(&output).starts_with(&both), "{}", stdout(&output));
    }
}

#[test]
fn a_signal_reaches_the_program_and_the_report_is_made() {
    let script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let mut child = super::program()
        .env("GDR_VERBS_LIBRARY", library())
        .env_remove("LD_PRELOAD")
        .args(["trace", "sh", "-c", script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert_eq!(rest[0], "caught");
    assert!(rest[1].starts_with("gdr trace: 0 processes"), "{rest:?}");
    assert_eq!(code(&trace(&["sh", "-c", "kill -KILL $$"])), 137);
}

#[test]
fn a_program_or_a_library_that_is_missing_has_the_status_of_gdr_run() {
    assert_eq!(code(&trace(&["no-such-program"])), 127);
    let output = command(&["trace", "true"])
        .env("GDR_VERBS_LIBRARY", "/nonexistent/libgdr-verbs.so")
        .output()
        .unwrap();
    assert_eq!(code(&output), 125);
    assert_contains!(
        stderr(&output),
        "libgdr-verbs-trace.so was not found in /nonexistent/"
    );
    let output = command(&["trace", "true"])
        .env("GDR_VERBS_LIBRARY", libraries("0.0.9").path())
        .output()
        .unwrap();
    assert_eq!(code(&output), 125);
    assert!(stderr(&output).contains("has version 0.0.9"));
}
