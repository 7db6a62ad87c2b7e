//! `gdr loopback`, in one process and in two.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::*;

/// Returns the line before the last, which says that it was simulated.
fn verdict(text: &str) -> &str {
    text.lines().nth_back(1).unwrap()
}

#[test]
fn it_passes_and_says_what_arrived() {
    let text = fine("loopback --udp-port 14791 --size 64K --iterations 3");
    assert_contains!(text, "reached   direct: ");
    assert_contains!(text, "integrity ");
    assert_contains!(text, "(simulated GPU: describes no hardware)");
    let verdict = verdict(&text);
    assert!(
        verdict.starts_with("PASS: 3 of 3 times, 65536 bytes arrived in simulated GPU memory"),
        "{verdict}"
    );
}

#[test]
fn the_number_of_shards_is_that_of_the_option_or_of_the_variable() {
    let run = |shards: &str, variable: &str| {
        let line = format!("loopback --simulate --udp-port 0 --size 64K --iterations 1 {shards}");
        clean(cargo_bin_cmd!("gdr"))
            .args(line.split_whitespace())
            .env("GDR_SHARDS", variable)
            .output()
            .unwrap()
    };
    let refused = run("", "four");
    assert_eq!(refused.status.code(), Some(2));
    let why = String::from_utf8_lossy(&refused.stderr);
    assert_contains!(why, "GDR_SHARDS is `four`: set it to a number from 1 to 8");
    // The option decides, and the variable is not read.
    assert!(run("--shards 2", "four").status.success());
    assert!(run("", "3").status.success());
    assert_eq!(run("--shards 9", "1").status.code(), Some(64));
}

#[test]
fn its_report_says_what_was_proved_and_on_what() {
    for (port, way) in [(14792, "direct"), (14793, "staged")] {
        let report = json(&format!(
            "loopback --udp-port {port} --size 100000 --iterations 2 --{way}"
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
    let text = fine(&format!("{sweep} --udp-port 14799"));
    assert_eq!(text.lines().next(), Some("SIMULATED: --simulate was given"));
    for line in ["RDMA WRITE: from post", "RDMA READ: from post"] {
        assert_contains!(text, line);
    }
    let tables = text
        .lines()
        .skip_while(|line| !line.starts_with("RDMA WRITE"));
    for line in tables {
        assert!(line.chars().count() <= 100, "{line}");
        assert!(
            !line
                .split_whitespace()
                .any(|word| word == "0.000" || word == "0"),
            "{line}"
        );
    }
    assert_contains!(text, "describes no hardware");
    let slowest = "direct at its slowest relative to staged: RDMA ";
    assert!(text.contains(slowest), "{text}");

    let report = json(&format!("{sweep} --udp-port 14800 --staged"));
    assert_eq!(report["direct_to_staged"], serde_json::json!([]));
    assert_eq!(report["schema"], "gdr.loopback.sweep");
    assert_eq!(report["simulated"], true);
    assert_eq!(report["direct_missing"], "requested");
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
fn every_gpu_is_proved_by_itself() {
    let text = fine("loopback --all --udp-port 14808 --size 4K --iterations 1");
    assert_eq!(text.matches("== GPU ").count(), 2, "{text}");
    assert_eq!(text.matches("PASS: 1 of 1 time, ").count(), 2, "{text}");
    assert_eq!(verdict(&text), "PASS: 2 of 2 GPUs");
    let proofs = json("loopback --all --udp-port 14809 --size 4K --iterations 1");
    assert_eq!(proofs["schema"], "gdr.loopback.all");
    assert_eq!(proofs["passed"], 2);
    let gpus = proofs["gpus"].as_array().unwrap();
    let addresses: Vec<_> = gpus
        .iter()
        .map(|gpu| gpu["pci"].as_str().unwrap())
        .collect();
    assert!(addresses[0] != addresses[1], "{addresses:?}");
    for gpu in gpus {
        assert_eq!(gpu["report"]["pci"], gpu["pci"]);
        assert_eq!(gpu["report"]["verdict"], "pass");
    }
    // A port that is in use keeps each GPU from starting, and each says so.
    let taken: Vec<_> = (1..=101)
        .map(|last| std::net::UdpSocket::bind(format!("127.0.0.{last}:14810")).unwrap())
        .collect();
    let output = simulated("loopback --all --udp-port 14810 --size 4K --iterations 1");
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(text.matches("FAIL      ").count(), 2, "{text}");
    assert_eq!(verdict(&text), "FAIL: 0 of 2 GPUs");
    drop(taken);
}

/// Returns the PCI addresses of the simulated GPUs.
fn simulated_gpus() -> [String; 2] {
    let info = json("info");
    [0, 1].map(|at| info["gpus"][at]["pci"].as_str().unwrap().to_owned())
}

#[test]
fn bytes_go_from_memory_of_one_gpu_into_that_of_the_other_and_back() {
    let gpus = simulated_gpus();
    for (port, from, to, way) in [
        (14770, 1, 0, "direct"),
        (14771, 0, 1, "staged"),
        (14772, 1, 1, "staged"),
    ] {
        let line = format!(
            "loopback --udp-port {port} --from-gpu {from} --gpu {to} --{way} --size 100000 -i 2"
        );
        let text = fine(&line);
        let [source, target] = [from, to].map(|at: usize| gpus[at].as_str());
        for begin in [
            "from      GPU memory at ".to_owned(),
            "to        GPU memory at ".to_owned(),
            format!("from GPU  simulated: Simulated GPU ({source})"),
            format!("reached   {way}: "),
        ] {
            assert!(
                text.lines().any(|it| it.starts_with(&begin)),
                "{begin}: {text}"
            );
        }
        let arrived = "PASS: 2 of 2 times, 100000 bytes arrived in simulated GPU memory";
        assert!(verdict(&text).starts_with(arrived), "{text}");
        assert!(text.lines().all(|it| it.chars().count() <= 100), "{text}");

        let report = json(&line);
        assert_eq!(report["verdict"], "pass");
        assert_eq!(report["pci"], target);
        assert_eq!(report["source"]["kind"], "gpu");
        assert_eq!(report["source"]["gpu"]["pci"], source);
        assert_eq!(report["source"]["gpu"]["simulated"], true);
        assert_eq!(report["source"]["reached"], way);
    }
    let report = json("loopback --udp-port 14773 --size 4K -i 1");
    assert_eq!(report["source"]["kind"], "host");
    let address = format!(
        "loopback --udp-port 14773 --size 4K -i 1 --from-gpu {}",
        gpus[1]
    );
    assert_eq!(json(&address)["source"]["gpu"]["pci"], gpus[1].as_str());
}

#[test]
fn every_gpu_is_proved_from_memory_of_the_named_one() {
    let gpus = simulated_gpus();
    let proofs = json("loopback --all --from-gpu 1 --udp-port 14774 --size 4K --iterations 1");
    assert_eq!(proofs["passed"], 2);
    for (at, gpu) in gpus.iter().enumerate() {
        let report = &proofs["gpus"][at]["report"];
        assert_eq!(report["pci"], gpu.as_str());
        assert_eq!(report["source"]["gpu"]["pci"], gpus[1].as_str());
    }
}

#[test]
fn a_sender_of_another_process_has_memory_of_a_gpu() {
    let gpus = simulated_gpus();
    let (listener, mut stdout) = Running::start(
        "loopback --listen 127.0.0.1:14775 --udp-port 14775 --gpu 0 --size 4K -i 2 --pattern 1",
    );
    read_until(&mut stdout, "listening on ");
    let text = fine(
        "loopback --connect 127.0.0.1:14775 --udp-port 14775 --from-gpu 1 --staged --memory cuMemCreate \
         --size 4K -i 2",
    );
    let (code, served) = listener.end(stdout);
    assert_eq!(code, 0, "{served}");
    let source = format!("from GPU  simulated: Simulated GPU ({})", gpus[1]);
    for text in [&text, &served] {
        assert_contains!(text, "PASS: 2 of 2 times");
        assert!(text.contains(&source), "{text}");
        assert_contains!(text, "staged: packets come from");
    }
    let of_peer = served.lines().find(|line| line.starts_with("from GPU"));
    assert!(of_peer.unwrap().ends_with("(the peer says)"), "{served}");
    assert_eq!(text.matches("SIMULATED").count(), 2, "{text}");
}

#[test]
fn settings_that_the_listening_end_was_given_are_those_of_the_other_end() {
    for (given, difference) in [
        ("--size 8K", "--size 4096, but the server was given 8192"),
        ("-i 3", "--iterations 2, but the server was given 3"),
        ("--pattern 7", "--pattern 1, but the server was given 7"),
    ] {
        let (listener, mut stdout) = Running::start(&format!(
            "loopback --listen 127.0.0.1:14925 --udp-port 14925 {given}"
        ));
        read_until(&mut stdout, "listening on ");
        let output =
            simulated("loopback --connect 127.0.0.1:14925 --udp-port 14925 --size 4K -i 2");
        assert_eq!(code(&output), 2, "{}", super::stdout(&output));
        let error = stderr(&output);
        let error = error.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_contains!(error, difference);
        assert_contains!(error, "leave it out at the server");
        assert_eq!(listener.end(stdout).0, 2);
    }
}

#[test]
fn devices_that_cannot_be_used_are_named() {
    let output = simulated("loopback --from mlx5_0");
    assert_eq!(code(&output), 64);
    assert!(stderr(&output).contains("device `mlx5_0` cannot be used"));

    // TEST-NET-1: no host's address.
    let output = simulated("loopback --udp-port 14794 --from 192.0.2.1");
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("no interface of this host has this address"));

    let taken = std::net::UdpSocket::bind("127.0.0.1:14795").unwrap();
    let output = simulated("loopback --udp-port 14795 --to 127.0.0.1");
    assert_eq!(code(&output), 2);
    assert_contains!(stderr(&output), "the port is in use");
    // Without a name another loopback address is taken.
    let text = fine("loopback --udp-port 14795 --size 4K --iterations 1");
    assert_contains!(text, "PASS: ");
    assert!(!text.contains("127.0.0.1:14795"), "{text}");
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
        "loopback --connect fe80::1",
        "loopback --listen [fe80::1%lo]:4791",
        "loopback --connect a/b",
        "loopback --listen 127.0.0.1 --to 127.0.0.5",
        "loopback --sweep --connect 127.0.0.1",
        "loopback --sweep --listen 127.0.0.1",
        "loopback --sweep --from-gpu 1",
        "loopback --listen 127.0.0.1 --from-gpu 1",
        "loopback --connect 127.0.0.1 --from-gpu 1 --gpu 0",
        "loopback --connect 127.0.0.1 --from-gpu 1 --direct --staged",
        "loopback --connect 127.0.0.1 --direct",
        "loopback --connect 127.0.0.1 --memory cuMemCreate",
        "loopback --from-gpu mlx5_0",
    ] {
        let output = simulated(line);
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
    }
}

#[test]
fn errors_are_named_for_programs_too() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:14801").unwrap();
    let listening = std::net::TcpListener::bind("127.0.0.1:14802").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let with = |name: &str, text: &str, mode| {
        let file = key_file(&folder, name, text, mode);
        format!("loopback --connect 127.0.0.1 --key-file {file}")
    };
    let short = with("short", "too short", 0o600);
    let readable = with("readable", "sixteen bytes or more", 0o640);
    let writable = with("writable", "sixteen bytes or more", 0o602);
    for (line, name, status, words) in [
        (
            "loopback --udp-port 14801 --to 127.0.0.1",
            "port_in_use",
            2,
            "is in use",
        ),
        (
            "loopback --from 192.0.2.1",
            "address_not_local",
            2,
            "no interface of this host",
        ),
        (
            "loopback --listen 127.0.0.1:14802 --udp-port 0",
            "listen_port_in_use",
            2,
            "use another port",
        ),
        (
            "loopback --listen 127.0.0.1:0 --udp-port 0 --wait 1",
            "deadline",
            2,
            "a peer's connection",
        ),
        (
            "loopback --connect 127.0.0.1:1 --udp-port 0",
            "connect",
            2,
            "check that the peer listens",
        ),
        (
            "loopback --connect 127.0.0.1 --key-file /no/such",
            "key_file",
            2,
            "/no/such",
        ),
        (
            "loopback --connect 127.0.0.1 --key-file /dev/null",
            "key_file",
            2,
            "not a regular file",
        ),
        (&short, "key_too_short", 2, "at least 16"),
        (&readable, "key_file", 2, "chmod 600"),
        (&writable, "key_file", 2, "chmod 600"),
        (
            "loopback --connect nowhere.invalid --insecure",
            "host",
            2,
            "nowhere.invalid",
        ),
        (
            "loopback --listen 10.255.255.1",
            "usage",
            64,
            "--key-file FILE on both, or --insecure",
        ),
        (
            "loopback --connect 10.255.255.1",
            "usage",
            64,
            "--key-file FILE on both, or --insecure",
        ),
        ("loopback --size 7", "settings", 64, "a multiple of 4"),
        ("loopback --insecure", "usage", 64, "--listen or --connect"),
        (
            "loopback --from mlx5_0",
            "settings",
            64,
            "device `mlx5_0` cannot be used",
        ),
        ("loopback --gpu 7", "no_such_device", 2, "7"),
        ("loopback --from-gpu 7", "no_such_device", 2, "7"),
        ("loopback --all --from-gpu 7", "no_such_device", 2, "7"),
        (
            "loopback --connect 127.0.0.1 --from-gpu 7",
            "no_such_device",
            2,
            "7",
        ),
    ] {
        let output = simulated(&format!("{line} --json"));
        assert_eq!(code(&output), status, "{line}: {}", stderr(&output));
        let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(fault["schema"], "gdr.error", "{line}");
        assert_eq!(fault["error"]["name"], name, "{line}: {fault}");
        assert_eq!(fault["exit"], status, "{line}");
        let message = fault["error"]["message"].as_str().unwrap();
        assert_contains!(message, words, "{line}");
        // People read the same.
        assert_contains!(stderr(&output), words, "{line}");
    }
    drop((taken, listening));
}

/// Returns a file of this mode; where it is.
fn key_file(folder: &tempfile::TempDir, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path.display().to_string()
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
        let mut child = super::program()
            .args(line.split_whitespace())
            .arg("--simulate")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        (Self(child), stdout)
    }

    /// Waits until it ends; returns how it ended, and the rest of what it printed.
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

/// Starts two processes that talk over these TCP and UDP ports.
fn two(port: u16, iterations: u32) -> [(Running, BufReader<ChildStdout>); 2] {
    let (listener, mut from_listener) = Running::start(&format!(
        "loopback --listen 127.0.0.1:{port} --udp-port {port} --timeout 10"
    ));
    read_until(&mut from_listener, "listening on ");
    let connector = Running::start(&format!(
        "loopback --connect 127.0.0.1:{port} --udp-port {port} --timeout 10 --size 64K \
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
    let line = "loopback --udp-port 14803 --size 4K --iterations 1000000";
    let (running, mut stdout) = Running::start(line);
    read_until(&mut stdout, "iteration 3 of");
    interrupt(&running);
    let (code, text) = running.end(stdout);
    assert_eq!(code, 3, "{text}");
    let verdict = verdict(&text);
    assert!(
        verdict.starts_with("UNDECIDED: stopped after "),
        "{verdict}"
    );
}

#[test]
fn ctrl_c_ends_either_of_two_processes_and_the_other_is_informed() {
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
        assert_contains!(text, "FAIL: ");
    }
}

#[test]
fn ctrl_c_ends_a_wait_for_a_peer() {
    let line = "loopback --listen 127.0.0.1:14806 --udp-port 14806 --wait 600";
    let (running, mut stdout) = Running::start(line);
    read_until(&mut stdout, "listening on ");
    interrupt(&running);
    assert_eq!(running.end(stdout).0, 3);
}

#[test]
fn ends_with_different_keys_name_the_key() {
    let directory = tempfile::tempdir().unwrap();
    let key = |name: &str| {
        let text = format!("{name}: sixteen bytes or more\n");
        key_file(&directory, name, &text, 0o600)
    };
    let (here, there) = (key("here"), key("there"));
    let (listener, mut stdout) = Running::start(&format!(
        "loopback --listen 127.0.0.1:14807 --udp-port 14807 --key-file {here} --wait 8 --json"
    ));
    // With --json, that it listens is on standard error: connecting is tried until it does.
    let fault = loop {
        let output = simulated(&format!(
            "loopback --connect 127.0.0.1:14807 --udp-port 14807 --key-file {there} --json"
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
    // The listener went on waiting for one that knows it.
    assert_eq!(theirs["error"]["name"], "no_peer", "{theirs}");
    assert_eq!(fault["error"]["name"], "handshake_wrong_key", "{fault}");
    for fault in [fault, theirs] {
        let message = fault["error"]["message"].as_str().unwrap();
        assert_contains!(message, "give both sides the same key");
    }
}

#[test]
fn strangers_do_not_end_the_wait_for_the_peer_and_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let key = key_file(&directory, "key", "sixteen bytes or more", 0o600);
    let options = format!("127.0.0.1:14808 --udp-port 14808 --key-file {key} --size 4K");
    let options = options.as_str();
    let line = format!("loopback --listen {options}").replace(" --size 4K", "");
    let (listener, mut stdout) = Running::start(&line);
    read_until(&mut stdout, "listening on ");
    let connect = || std::net::TcpStream::connect("127.0.0.1:14808").unwrap();
    // A port scan, a web browser, and one that says nothing.
    drop(connect());
    let request = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", "x".repeat(40));
    std::io::Write::write_all(&mut connect(), request.as_bytes()).unwrap();
    let silent = connect();
    let text = fine(&format!("loopback --connect {options}"));
    assert_contains!(text, "PASS: ");
    let (code, text) = listener.end(stdout);
    assert_eq!(code, 0, "{text}");
    assert_contains!(
        text,
        "knows the key; 2 other connections were not from a peer"
    );
    drop(silent);
}

#[test]
fn ends_find_each_other_by_host_name() {
    let (listener, mut stdout) =
        Running::start("loopback --listen localhost:14810 --udp-port 14810 --to lo");
    read_until(&mut stdout, "listening on ");
    let text = fine("loopback --connect localhost:14810 --udp-port 14810 --size 4K --iterations 1");
    assert_contains!(text, "PASS: ");
    assert_eq!(listener.end(stdout).0, 0);
}

#[test]
fn no_locked_memory_is_needed() {
    let gdr = cargo_bin!("gdr").display().to_string();
    let output = Command::new("sh")
        .args([
            "-c",
            "ulimit -l 0 && exec \"$0\" loopback --udp-port 14809 --simulate",
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
        assert_contains!(text, "PASS: 3 of 3 times");
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
        assert_contains!(text, "FAIL: ");
        assert!(!text.contains("PASS"), "{text}");
    }
}

#[test]
fn a_port_that_is_not_for_this_user_is_named_with_its_reason() {
    let first = "/proc/sys/net/ipv4/ip_unprivileged_port_start";
    let first: u16 = std::fs::read_to_string(first)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    // The copy lies where every user can run it.
    let directory = tempfile::Builder::new()
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .tempdir()
        .unwrap();
    let program = directory.path().join("gdr");
    crate::copy_program(cargo_bin!("gdr"), &program);
    let mut command = Command::new("setpriv");
    command
        .args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
        ])
        .arg(&program)
        .args(["loopback", "--simulate", "--udp-port", "80", "--json"]);
    let Ok(output) = command.output() else {
        return;
    };
    let is_root = std::fs::metadata("/proc/self").unwrap();
    if first <= 80 || std::os::unix::fs::MetadataExt::uid(&is_root) != 0 {
        return;
    }
    assert_eq!(code(&output), 2, "{}", stderr(&output));
    let words = stderr(&output);
    assert_contains!(words, ":80 failed: Permission denied");
    assert_contains!(words, "CAP_NET_BIND_SERVICE");
    let fault: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(fault["error"]["name"], "port_denied");
}

#[test]
fn the_simulated_gpu_has_room_for_every_size_that_is_offered() {
    let info = json("info");
    // A destination of 1 GiB with its guards, and a sweep's direct and staged ones.
    let bytes = info["gpus"][0]["memory_bytes"].as_u64().unwrap();
    assert!(bytes >= 4 << 30, "{bytes}");
}

#[test]
fn each_injected_fault_ends_in_its_verdict_and_says_that_it_is_a_rehearsal() {
    for (port, fault, kind, words) in [
        (
            14860,
            "lost",
            "nothing_arrived",
            "still pattern A everywhere",
        ),
        (14861, "part", "partly_arrived", "only part arrived"),
        (14862, "damaged", "wrong_bytes", "not those that were sent"),
        (14863, "stale", "disagreement", "the comparisons disagree"),
    ] {
        let line = format!("loopback --udp-port {port} --size 4K --inject {fault}");
        let output = simulated(&line);
        let text = stdout(&output).replace('\n', " ");
        assert_eq!(code(&output), 2, "{text}");
        assert!(text.contains(words) && text.contains("REHEARSAL"), "{text}");
        let output = simulated(&format!("{line} --staged --json"));
        assert_eq!(code(&output), 2);
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        assert_eq!(report["injected"], fault);
        assert_eq!(report["cause"]["kind"], kind, "{report}");
    }
    let refused = simulated("loopback --inject lost --listen 127.0.0.1");
    assert_eq!(code(&refused), 64);
}
