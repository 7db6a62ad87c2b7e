//! `gdr loopback`, in one process and in two.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

#[test]
fn it_passes_and_says_simulated_first() {
    let text = fine("loopback --port 14791 --size 64K --iterations 3");
    let first = text.lines().next().unwrap();
    assert_eq!(first, "simulated: asked for by name");
    assert!(text.contains("reached   direct: "), "{text}");
    assert!(text.contains("integrity "), "{text}");
    assert!(
        text.contains("(simulated GPU: says nothing of hardware)"),
        "{text}"
    );
    let last = text.lines().last().unwrap();
    assert!(
        last.starts_with("PASS: 3 of 3 times, 65536 bytes arrived in simulated GPU memory"),
        "{last}"
    );
}

#[test]
fn its_report_says_what_was_proved_and_on_what() {
    for (port, way) in [(14792, "direct"), (14793, "staged")] {
        let report = json(&format!(
            "loopback --port {port} --size 100000 --iterations 2 --{way}"
        ));
        assert_eq!(report["schema"], "gdr.loopback");
        assert_eq!(report["version"], 1);
        assert_eq!(report["verdict"], "pass");
        assert_eq!(report["simulated"], true);
        assert_eq!(report["reached"], way);
        assert_eq!(report["passed"], 2);
        assert_eq!(report["write"]["simulated"], true);
        for look in ["kernel", "copy", "mapping", "guards"] {
            assert_eq!(report["last"]["checks"][look]["outcome"], "equal");
        }
    }
}

#[test]
fn a_sweep_measures_each_way_by_size() {
    let sweep = "loopback --sweep --size 16 --iterations 20";
    let text = fine(&format!("{sweep} --port 14799"));
    assert_eq!(text.lines().next(), Some("simulated: asked for by name"));
    for line in ["RDMA WRITE: microseconds", "RDMA READ: microseconds"] {
        assert!(text.contains(line), "{text}");
    }
    assert!(text.contains("says nothing of hardware"), "{text}");

    let report = json(&format!("{sweep} --port 14800 --staged"));
    assert_eq!(report["schema"], "gdr.loopback.sweep");
    assert_eq!(report["simulated"], true);
    assert_eq!(report["direct_missing"], "asked for");
    let rows = report["rows"].as_array().unwrap();
    let of = |operation: &str, way: &str, size: u64| {
        let row = rows
            .iter()
            .find(|row| row["operation"] == operation && row["way"] == way && row["size"] == size);
        row.unwrap()["latency"]["median_ns"].as_f64().unwrap()
    };
    for operation in ["write", "read"] {
        for way in ["host", "staged"] {
            assert!(of(operation, way, 4) > 0.0 && of(operation, way, 16) > 0.0);
        }
    }
    assert_eq!(rows.len(), 8);
}

#[test]
fn devices_that_cannot_be_used_are_named() {
    let output = simulated("loopback --from mlx5_0");
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("no device `mlx5_0`"));

    // TEST-NET-1: no host's address.
    let output = simulated("loopback --port 14794 --from 192.0.2.1");
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("no interface of this host has this address"));

    let taken = std::net::UdpSocket::bind("127.0.0.1:14795").unwrap();
    let output = simulated("loopback --port 14795");
    assert_eq!(code(&output), 2);
    assert!(
        stderr(&output).contains("the port is in use"),
        "{}",
        stderr(&output)
    );
    drop(taken);
}

#[test]
fn options_that_make_no_sense_together_end_with_64() {
    for line in [
        "loopback --size 7",
        "loopback --size 2G",
        "loopback --direct --staged",
        "loopback --insecure",
        "loopback --listen 127.0.0.1 --connect 127.0.0.1",
        "loopback --listen 0.0.0.0 --insecure",
        "loopback --connect 127.0.0.1 --staged",
        "loopback --connect nowhere",
        "loopback --sweep --connect 127.0.0.1",
        "loopback --sweep --listen 127.0.0.1",
    ] {
        let output = simulated(line);
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
    }
}

#[test]
fn errors_are_named_for_programs_too() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:14801").unwrap();
    let listening = std::net::TcpListener::bind("127.0.0.1:14802").unwrap();
    for (line, name, status, words) in [
        ("loopback --port 14801", "port_in_use", 2, "is in use"),
        (
            "loopback --from 192.0.2.1",
            "address_not_local",
            2,
            "no interface of this host",
        ),
        (
            "loopback --listen 127.0.0.1:14802 --port 0",
            "listen_port_in_use",
            2,
            "give another",
        ),
        (
            "loopback --listen 127.0.0.1:0 --port 0 --wait 1",
            "deadline",
            2,
            "a peer's connection",
        ),
        (
            "loopback --connect 127.0.0.1:1 --port 0",
            "connect",
            2,
            "whether the peer listens",
        ),
        (
            "loopback --connect 127.0.0.1 --key-file /no/such",
            "io",
            2,
            "/no/such",
        ),
        (
            "loopback --connect 127.0.0.1 --key-file /dev/null",
            "key_too_short",
            2,
            "at least 16",
        ),
        ("loopback --size 7", "settings", 64, "a multiple of 4"),
        ("loopback --insecure", "usage", 64, "--listen or --connect"),
        (
            "loopback --from mlx5_0",
            "settings",
            64,
            "no device `mlx5_0`",
        ),
        ("loopback --gpu 7", "no_such_device", 2, "7"),
    ] {
        let output = simulated(&format!("{line} --json"));
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(fault["schema"], "gdr.error", "{line}");
        assert_eq!(fault["error"]["name"], name, "{line}: {fault}");
        assert_eq!(fault["exit"], status, "{line}");
        let message = fault["error"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{line}: {message}");
        // People read the same.
        assert!(
            stderr(&output).contains(words),
            "{line}: {}",
            stderr(&output)
        );
    }
    drop((taken, listening));
}

/// A process of its own, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(line: &str) -> (Self, BufReader<ChildStdout>) {
        let mut child = Command::new(cargo_bin!("gdr"))
            .args(line.split_whitespace())
            .args(["--backend", "sim"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (Self(child), stdout)
    }

    /// How it ended, and the rest of what it printed.
    fn end(mut self, mut stdout: BufReader<ChildStdout>) -> (i32, String) {
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        (self.0.wait().unwrap().code().unwrap(), text)
    }
}

fn read_until(stdout: &mut impl BufRead, start: &str) {
    let mut line = String::new();
    while !line.starts_with(start) {
        line.clear();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0, "no `{start}`");
    }
}

/// Two processes that talk over these TCP and UDP ports.
fn two(port: u16, iterations: u32) -> [(Running, BufReader<ChildStdout>); 2] {
    let (listener, mut from_listener) = Running::start(&format!(
        "loopback --listen 127.0.0.1:{port} --port {port} --timeout 4"
    ));
    read_until(&mut from_listener, "listening on ");
    let connector = Running::start(&format!(
        "loopback --connect 127.0.0.1:{port} --port {port} --timeout 4 --size 64K \
         --iterations {iterations}"
    ));
    [(listener, from_listener), connector]
}

/// Sends it SIGINT, as Ctrl-C does.
fn interrupt(running: &Running) {
    let status = Command::new("sh")
        .args(["-c", &format!("kill -INT {}", running.0.id())])
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn ctrl_c_ends_a_run_between_two_steps_and_says_so() {
    let line = "loopback --port 14803 --size 4K --iterations 1000000";
    let (running, mut stdout) = Running::start(line);
    read_until(&mut stdout, "iteration 3 of");
    interrupt(&running);
    let (code, text) = running.end(stdout);
    assert_eq!(code, 3, "{text}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("UNDECIDED: stopped after "), "{last}");
}

#[test]
fn ctrl_c_ends_either_of_two_processes_and_the_other_is_told() {
    for (port, victim) in [(14804, 0), (14805, 1)] {
        let [mut listener, mut connector] = two(port, 1_000_000);
        read_until(&mut listener.1, "iteration 3 of");
        read_until(&mut connector.1, "iteration 3 of");
        let (stopped, left) = if victim == 0 {
            (listener, connector)
        } else {
            (connector, listener)
        };
        interrupt(&stopped.0);
        assert_eq!(stopped.0.end(stopped.1).0, 3);
        let (code, text) = left.0.end(left.1);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("FAIL: "), "{text}");
    }
}

#[test]
fn ctrl_c_ends_a_wait_for_a_peer() {
    let line = "loopback --listen 127.0.0.1:14806 --port 14806 --wait 600";
    let (running, mut stdout) = Running::start(line);
    read_until(&mut stdout, "listening on ");
    interrupt(&running);
    assert_eq!(running.end(stdout).0, 3);
}

#[test]
fn ends_with_different_keys_name_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("{name}: sixteen bytes or more\n")).unwrap();
        path.display().to_string()
    };
    let (here, there) = (key("here"), key("there"));
    let (listener, mut stdout) = Running::start(&format!(
        "loopback --listen 127.0.0.1:14807 --port 14807 --key-file {here} --json"
    ));
    // With --json, that it listens is on standard error: connecting is tried until it does.
    let fault = loop {
        let output = simulated(&format!(
            "loopback --connect 127.0.0.1:14807 --port 14807 --key-file {there} --json"
        ));
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        if fault["error"]["name"] != "connect" {
            assert_eq!(code(&output), 2);
            break fault;
        }
    };
    let mut text = String::new();
    stdout.read_to_string(&mut text).unwrap();
    let theirs: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(listener.end(stdout).0, 2);
    for fault in [fault, theirs] {
        assert_eq!(fault["error"]["name"], "handshake_wrong_key", "{fault}");
        let message = fault["error"]["message"].as_str().unwrap();
        assert!(
            message.contains("give both sides the same one"),
            "{message}"
        );
    }
}

#[test]
fn a_peer_that_speaks_something_else_is_named() {
    let (listener, mut stdout) =
        Running::start("loopback --listen 127.0.0.1:14808 --port 14808 --timeout 2");
    read_until(&mut stdout, "listening on ");
    let mut peer = std::net::TcpStream::connect("127.0.0.1:14808").unwrap();
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(40));
    std::io::Write::write_all(&mut peer, request.as_bytes()).unwrap();
    assert_eq!(listener.end(stdout).0, 2);
}

#[test]
fn no_locked_memory_is_needed() {
    let gdr = cargo_bin!("gdr").display().to_string();
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -l 0 && exec \"$0\" loopback --port 14809 --backend sim",
            &gdr,
        ])
        .output()
        .unwrap();
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(stdout(&output).contains("PASS: "));
}

#[test]
fn two_processes_pass_together() {
    for (end, stdout) in two(14796, 3) {
        let (code, text) = end.end(stdout);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("PASS: 3 of 3 times"), "{text}");
    }
}

#[test]
fn either_process_fails_by_its_deadline_when_the_other_is_killed() {
    for (port, victim) in [(14797, 0), (14798, 1)] {
        let [mut listener, mut connector] = two(port, 1_000_000);
        read_until(&mut listener.1, "iteration 3 of");
        read_until(&mut connector.1, "iteration 3 of");
        let (mut dead, (left, stdout)) = if victim == 0 {
            (listener.0, connector)
        } else {
            (connector.0, listener)
        };
        dead.0.kill().unwrap();
        let (code, text) = left.end(stdout);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("FAIL: "), "{text}");
        assert!(!text.contains("PASS"), "{text}");
    }
}
