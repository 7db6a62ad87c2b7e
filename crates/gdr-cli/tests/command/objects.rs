//! `gdr serve`, `ls`, `get`, `put` and `watch`: owners and peers are processes of this machine.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use snapshot::assert_contains;

use super::{clean, code, gdr, stderr, stdout};

/// How long a command may take before the test fails.
const LIMIT: Duration = Duration::from_secs(120);

/// `gdr` in the background, which prints documents in lines.
pub(super) struct Background {
    child: Child,
    lines: BufReader<ChildStdout>,
    /// The first document.
    pub(super) first: Value,
}

impl Background {
    fn start(words: &[&str]) -> Self {
        let mut command = super::program();
        let mut child = command
            .args(words)
            .arg("--json")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut process = Self {
            child,
            lines,
            first: Value::Null,
        };
        process.first = process.event();
        process
    }

    /// Reads the next document of its output.
    fn event(&mut self) -> Value {
        let mut line = String::new();
        let read = self.lines.read_line(&mut line).unwrap();
        assert_ne!(read, 0, "it ended");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    /// Reads the documents up to its end.
    pub(super) fn rest(&mut self) -> Vec<Value> {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        let documents = rest.lines().map(|line| serde_json::from_str(line).unwrap());
        documents.collect()
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }

    /// Waits until it has ended; returns its status, the rest of its output, and its errors.
    fn end(mut self) -> (Option<i32>, Vec<Value>, String) {
        drop(self.child.stdin.take());
        let mut errors = String::new();
        let events = self.rest();
        let mut stream = self.child.stderr.take().unwrap();
        stream.read_to_string(&mut errors).unwrap();
        (self.child.wait().unwrap().code(), events, errors)
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `gdr serve`.
pub(super) struct Owner {
    pub(super) process: Background,
}

impl Owner {
    pub(super) fn start(line: &str) -> Self {
        let words = line.split_whitespace();
        let common = [
            "serve",
            "--simulate",
            "--provider",
            "soft",
            "--listen",
            "127.0.0.1:0",
        ];
        let words: Vec<_> = common.into_iter().chain(words).collect();
        let process = Background::start(&words);
        assert_eq!(process.first["event"], "serving", "{}", process.first);
        Self { process }
    }

    fn address(&self) -> &str {
        self.process.first["address"].as_str().unwrap()
    }

    fn stdin(&mut self) -> ChildStdin {
        self.process.child.stdin.take().unwrap()
    }

    /// Runs `gdr COMMAND ADDRESS[/NAME] REST`.
    pub(super) fn peer(&self, command: &str, name: &str, rest: &[&str]) -> std::process::Output {
        let target = match name {
            "" => self.address().to_owned(),
            name => format!("{}/{name}", self.address()),
        };
        peer(command, &target, rest)
    }

    fn get(&self, name: &str) -> Vec<u8> {
        let output = self.peer("get", name, &[]);
        assert_eq!(code(&output), 0, "{}", stderr(&output));
        output.stdout
    }

    pub(super) fn watch(&self, name: &str, rest: &[&str]) -> Background {
        let target = format!("{}/{name}", self.address());
        let words = ["watch", &target, "--provider", "soft"];
        let watch = Background::start(&[&words[..], rest].concat());
        assert_eq!(watch.first["event"], "object", "{}", watch.first);
        watch
    }
}

fn peer(command: &str, target: &str, rest: &[&str]) -> std::process::Output {
    clean(assert_cmd::cargo::cargo_bin_cmd!("gdr"))
        .args([command, target, "--provider", "soft"])
        .args(rest)
        .timeout(LIMIT)
        .output()
        .unwrap()
}

/// It failed with this code of `gdr.error` and status.
fn assert_fails(output: &std::process::Output, name: &str, status: i32) {
    let text = stdout(output);
    let error: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", stderr(output)));
    assert_eq!(error["error"]["name"], name, "{text}");
    assert_eq!(code(output), status, "{text}");
}

/// A folder with files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file with this content; returns its path.
    fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        fs::write(&path, content).unwrap();
        text(&path)
    }

    fn key(&self, name: &str, content: &str) -> String {
        let path = self.write(name, content.as_bytes());
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Bytes that differ from place to place.
fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|at| ((at * 7 + at / 256 + seed) % 251) as u8)
        .collect()
}

#[test]
fn memory_of_host_and_gpu_is_listed_got_put_and_watched_by_other_processes() {
    let files = Files::new();
    let (first, second) = (content(1 << 20, 1), content(1 << 20, 2));
    let (old, new) = (files.write("old", &first), files.write("new", &second));
    for (place, method) in [
        ("", "host"),
        (",gpu=1", "direct"),
        (",gpu,reach=staged", "staged"),
    ] {
        let owner = Owner::start(
            &format!(
                "--object name=model/w:0{place},shape=512x512,element=f32,access=read-write \
             --publish-from {old} --object name=scalar,size=8"
            )
            .replace("--publish-from ", "--publish-from model/w:0="),
        );
        let listed = owner.peer("ls", "", &["--json"]);
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let object = &listed["objects"][0];
        assert_eq!(object["name"], "model/w:0");
        assert_eq!(object["shape"], serde_json::json!([512, 512]));
        assert_eq!(object["method"], method, "{place}");
        assert_eq!(object["simulated"], !place.is_empty());
        assert_eq!(object["rights"], "read-write");
        assert_eq!(listed["objects"][1]["rights"], "read");

        // The file is published in a thread of its own.
        let target = text(&files.path("got"));
        let got = owner.peer(
            "get",
            "model/w:0",
            &["--wait", "60", "-o", &target, "--json"],
        );
        assert_eq!(code(&got), 0, "{}", stdout(&got));
        assert!(fs::read(&target).unwrap() == first, "{place}");
        let got: Value = serde_json::from_slice(&got.stdout).unwrap();
        assert_eq!(
            (&got["epoch"], &got["bytes"]),
            (&1.into(), &(1 << 20).into())
        );

        let mut watch = owner.watch("model/w:0", &["--get", "--count", "1"]);
        let put = owner.peer("put", "model/w:0", &[&new, "--element", "f32"]);
        assert_eq!(code(&put), 0, "{}", stderr(&put));
        assert!(stdout(&put).starts_with("put epoch 2 of model/w:0: 1048576 bytes in "));
        let seen = watch.event();
        assert_eq!(
            (&seen["event"], &seen["epoch"]),
            (&"epoch".into(), &2.into())
        );
        assert!(seen["get_seconds"].as_f64() > Some(0.0), "{seen}");
        assert_eq!(watch.event()["event"], "end");
        assert_eq!(watch.end().0, Some(0));
        assert!(owner.get("model/w:0") == second, "{place}");

        owner.process.signal(Signal::TERM);
        let (status, events, errors) = owner.process.end();
        assert_eq!(status, Some(0), "{errors}");
        let last = events.last().unwrap();
        assert_eq!(last["event"], "end");
        assert_eq!(last["objects"][0]["epoch"], 2);
    }
}

#[test]
fn what_comes_on_standard_input_is_published_epoch_by_epoch() {
    let mut owner = Owner::start("--object name=frame,size=5 --publish-from -");
    let mut stdin = owner.stdin();
    let empty = owner.peer("get", "frame", &["-o", "/dev/null", "--json"]);
    assert_fails(&empty, "object_empty", 3);
    let mut watch = owner.watch("frame", &[]);
    for (epoch, bytes) in [(1, b"first"), (2, b"other")] {
        stdin.write_all(bytes).unwrap();
        assert_eq!(watch.event()["epoch"], epoch);
        assert_eq!(owner.get("frame"), bytes);
    }
    drop(stdin);
    assert_eq!(owner.process.event()["event"], "published");
    // What was published is served on.
    assert_eq!(owner.get("frame"), b"other");
    watch.signal(Signal::INT);
    let (status, events, errors) = watch.end();
    assert_eq!(status, Some(0), "{errors}");
    assert_eq!(events.last().unwrap()["seen"], 2);
}

#[test]
fn each_newer_epoch_goes_to_standard_output_or_replaces_a_file() {
    let files = Files::new();
    let mut owner = Owner::start("--object name=frame,size=5 --publish-from -");
    let mut stdin = owner.stdin();
    stdin.write_all(b"first").unwrap();
    // What is there already is the first one.
    let got = owner.peer("get", "frame", &["--follow", "--count", "1"]);
    assert_eq!((code(&got), &*got.stdout), (0, &b"first"[..]));
    let path = files.write("frame", b"");
    let target = format!("{}/frame", owner.address());
    let words = [
        "get",
        &target,
        "--follow",
        "-o",
        &path,
        "--provider",
        "soft",
    ];
    let mut follow = Background::start(&words);
    assert_eq!(
        (&follow.first["epoch"], &follow.first["missed"]),
        (&1.into(), &0.into())
    );
    assert_eq!(fs::read(&path).unwrap(), b"first");
    stdin.write_all(b"other").unwrap();
    let second = follow.event();
    assert_eq!(
        (&second["epoch"], &second["missed"]),
        (&2.into(), &0.into())
    );
    assert_eq!(fs::read(&path).unwrap(), b"other");
    follow.signal(Signal::INT);
    let (status, _, errors) = follow.end();
    assert_eq!(status, Some(0), "{errors}");
    let idle = owner.peer("get", "frame", &["--follow", "--idle", "1"]);
    assert_eq!((code(&idle), &*idle.stdout), (3, &b"other"[..]));
}

#[test]
fn a_follower_of_a_ring_that_blocks_gets_every_frame() {
    let object = "--object name=frame,size=5,mode=ring:2,when-full=block";
    let mut owner = Owner::start(&format!("{object} --publish-from -"));
    let mut stdin = owner.stdin();
    let frames = std::thread::spawn(move || {
        // Until the owner has ended.
        for frame in 10_000.. {
            if stdin.write_all(format!("{frame}").as_bytes()).is_err() {
                break;
            }
        }
    });
    let got = owner.peer("get", "frame", &["--follow", "--count", "50"]);
    assert_eq!(code(&got), 0, "{}", stderr(&got));
    let numbers: Vec<u32> = got
        .stdout
        .chunks(5)
        .map(|frame| std::str::from_utf8(frame).unwrap().parse().unwrap())
        .collect();
    assert_eq!(numbers.len(), 50);
    assert!(
        numbers.windows(2).all(|it| it[1] == it[0] + 1),
        "{numbers:?}"
    );
    drop(owner);
    frames.join().unwrap();
}

#[test]
fn content_that_ends_within_an_epoch_ends_the_owner_and_is_not_published() {
    let mut owner = Owner::start("--object name=frame,size=5 --publish-from -");
    owner.stdin().write_all(b"whole par").unwrap();
    let (status, events, errors) = owner.process.end();
    assert_eq!(status, Some(2), "{errors}");
    assert_eq!(events.last().unwrap()["error"]["name"], "object_content");
    assert_contains!(errors, "ended after 4 of the object's 5 bytes");
}

#[test]
fn a_file_without_a_size_is_one_epoch() {
    let files = Files::new();
    let bytes = content(100_001, 3);
    let file = files.write("w", &bytes);
    let owner = Owner::start(&format!("--object name=w --publish-from {file}"));
    let got = owner.peer("get", "w", &["--wait", "60"]);
    assert!(got.stdout == bytes, "{}", stderr(&got));
    let empty = files.write("empty", b"");
    let output = gdr([
        "serve",
        "--object",
        "name=w",
        "--publish-from",
        &empty,
        "--json",
    ]);
    assert_fails(&output, "object_content", 2);
}

#[test]
fn an_owner_says_what_it_sends_at_most() {
    let owner = Owner::start("--object name=w,size=4K --limit 80Mbps");
    assert_eq!(owner.process.first["limit_bytes_per_s"], 10_000_000);
    for rate in ["5", "3us", "0.000001Mbps"] {
        let refused = gdr(["serve", "--object", "name=w,size=4K", "--limit", rate]);
        assert_eq!(code(&refused), 64, "{}", stderr(&refused));
        assert!(stderr(&refused).contains("--limit"), "{}", stderr(&refused));
    }
}

#[test]
fn an_owner_that_is_killed_ends_its_watchers_with_an_error() {
    let owner = Owner::start("--object name=w,size=1M,access=read-write");
    let watch = owner.watch("w", &["--get"]);
    let address = owner.address().to_owned();
    owner.process.signal(Signal::KILL);
    let (status, events, errors) = watch.end();
    assert_eq!(status, Some(2), "{errors}");
    assert_eq!(
        events.last().unwrap()["error"]["name"],
        "object_gone",
        "{errors}"
    );
    assert_contains!(errors, "connect again when it runs");
    for command in ["get", "put"] {
        let rest: &[&str] = match command {
            "get" => &["-o", "/dev/null", "--json"],
            _ => &["/dev/null", "--json"],
        };
        let output = peer(command, &format!("{address}/w"), rest);
        assert_fails(&output, "connect", 2);
    }
}

#[test]
fn an_owner_that_is_stopped_costs_its_peers_no_more_than_the_timeout() {
    let owner = Owner::start("--object name=w,size=1M");
    let watch = owner.watch("w", &["--idle", "2", "--timeout", "2"]);
    owner.process.signal(Signal::STOP);
    let output = owner.peer("get", "w", &["--timeout", "2", "-o", "/dev/null", "--json"]);
    assert_eq!(code(&output), 2, "{}", stdout(&output));
    let error = stdout(&output);
    assert_contains!(error, "before the deadline");
    let (status, events, errors) = watch.end();
    assert_ne!(status, Some(0), "{errors}");
    assert_eq!(events.last().unwrap()["schema"], "gdr.error");
}

#[test]
fn an_idle_object_ends_a_watch_undecided() {
    let owner = Owner::start("--object name=w,size=1");
    let output = owner.peer("watch", "w", &["--idle", "1"]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    let error = stderr(&output);
    assert_contains!(error, "nothing newer than no epoch");
    let text = stdout(&output);
    assert_contains!(text, "nothing published yet");
    // The events end as in a watch that was not idle.
    let output = owner.peer("watch", "w", &["--idle", "1", "--json"]);
    let text = stdout(&output);
    assert!(text.contains(r#""end""#), "{text}");
    assert_contains!(text, "gdr.error");
}

#[test]
fn a_client_of_another_command_names_what_listens() {
    let owner = Owner::start("--object name=w,size=1");
    let at = owner.address();
    for line in [
        format!("perf write-bw {at}"),
        format!("compare --simulate {at}"),
        format!("loopback --simulate --connect {at}"),
        format!("mesh --simulate --rank 1 --ranks 2 --meet {at}"),
    ] {
        let output = gdr(line.split(' '));
        assert_eq!(code(&output), 2, "{line}");
        let error = stderr(&output);
        assert_contains!(error, "`gdr serve` listens at that address", "{line}");
    }
}

#[test]
fn peers_need_the_key_of_the_owner() {
    let files = Files::new();
    let right = files.key("right", "sixteen bytes or more");
    let wrong = files.key("wrong", "sixteen other bytes..");
    let owner = Owner::start(&format!("--object name=w,size=1 --key-file {right}"));
    assert_eq!(owner.process.first["peers"], "key");
    let ls = |rest: &[&str]| owner.peer("ls", "", &[rest, &["--json"]].concat());
    assert_eq!(code(&ls(&["--key-file", &right])), 0);
    assert_fails(&ls(&["--key-file", &wrong]), "handshake_wrong_key", 2);
    let without = ls(&[]);
    assert_eq!(code(&without), 2, "{}", stdout(&without));
    assert_contains!(stdout(&without), "key");
}

#[test]
fn what_an_object_is_not_is_refused_with_the_remedy() {
    let files = Files::new();
    let owner = Owner::start(
        "--object name=w,shape=2x3,element=f32 --object name=rw,size=4,access=read-write",
    );
    let null = ["-o", "/dev/null", "--json"];
    let get = |name: &str, rest: &[&str]| owner.peer("get", name, &[&null, rest].concat());
    assert_fails(&get("none", &[]), "no_such_object", 2);
    assert_fails(&get("w", &["--shape", "3x2"]), "object_unexpected", 2);
    let other = get("w", &["--shape", "2x3", "--element", "bf16"]);
    assert_fails(&other, "object_unexpected", 2);
    let error = stderr(&other);
    assert_contains!(error, "w is f32[2, 3], but bf16[2, 3] was expected");
    assert_fails(
        &get("w", &["--shape", "2x3", "--element", "f32"]),
        "object_empty",
        3,
    );
    let put = |name: &str, bytes: &[u8]| {
        let file = files.write("content", bytes);
        owner.peer("put", name, &[&file, "--json"])
    };
    assert_fails(&put("w", &[0; 24]), "object_denied", 2);
    assert_fails(&put("rw", b"abc"), "object_content", 2);
    assert_fails(&put("rw", b"abcde"), "object_content", 2);
    assert_fails(&put("none", b"abcd"), "no_such_object", 2);
    assert_eq!(code(&put("rw", b"abcd")), 0);
}

#[test]
fn a_command_line_that_names_no_object_is_a_usage_error() {
    for line in [
        "serve",
        "serve --object size=4",
        "serve --object name=w,size=0",
        "serve --object name=w,size=6,element=f32",
        "serve --object name=a\u{7f}b,size=4",
        "serve --object name=../w,size=4",
        "serve --object name=w",
        "serve --object name=w,size=4 --object name=w,size=8",
        "serve --object name=w,size=4 --publish-from v=x",
        "serve --object name=w,shape=0x4",
        "serve --object name=w,size=4 --listen 10.255.255.1",
        "ls",
        "ls a,b",
        "ls 127.0.0.1 --csv --json",
        "get 127.0.0.1",
        "get 127.0.0.1/",
        "get 127.0.0.1/w --json",
        "get 192.0.2.1/w -o x",
        "put 127.0.0.1/w,v x",
        "watch 127.0.0.1/w --count 0",
    ] {
        let output = gdr(line.split_whitespace());
        assert_eq!(code(&output), 64, "{line}: {}", stderr(&output));
        assert!(!stderr(&output).is_empty(), "{line}");
    }
}

#[test]
fn a_full_or_closed_standard_output_is_seen() {
    let mut owner = Owner::start("--object name=w,size=3M --publish-from -");
    owner.stdin().write_all(&content(3 << 20, 4)).unwrap();
    assert_eq!(owner.process.event()["event"], "published");
    let target = format!("{}/w", owner.address());
    let to = |stdout: Stdio| {
        let mut command = super::program();
        command.args(["get", &target, "--provider", "soft"]);
        command.stdout(stdout).stderr(Stdio::piped());
        command.spawn().unwrap()
    };
    let full = fs::OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap();
    let output = to(full.into()).wait_with_output().unwrap();
    assert_eq!(code(&output), 2);
    assert!(stderr(&output).contains("standard output: No space left"));
    let mut closed = to(Stdio::piped());
    drop(closed.stdout.take());
    let output = closed.wait_with_output().unwrap();
    assert_eq!((code(&output), stderr(&output).as_str()), (3, ""));
    // A reader that takes its time gets everything.
    assert!(owner.get("w") == content(3 << 20, 4));
}

#[test]
fn a_file_is_replaced_only_by_a_whole_epoch() {
    let files = Files::new();
    let target = files.write("w", b"old");
    let mut owner = Owner::start("--object name=w,size=3 --publish-from -");
    let output = owner.peer("get", "w", &["-o", &target]);
    assert_eq!(code(&output), 3, "{}", stderr(&output));
    assert_eq!(fs::read(&target).unwrap(), b"old");
    owner.stdin().write_all(b"new").unwrap();
    assert_eq!(owner.process.event()["event"], "published");
    let output = owner.peer("get", "w", &["-o", &target]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert_eq!(fs::read(&target).unwrap(), b"new");
    let output = owner.peer("get", "w", &["-o", "/nonexistent/folder/w"]);
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    assert_contains!(error, "/nonexistent/folder/w cannot be written");
}

#[test]
fn a_file_keeps_its_permissions_and_a_link_what_it_names() {
    let files = Files::new();
    let target = files.write("w", b"old");
    let link = format!("{target}-link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    fs::set_permissions(&target, Permissions::from_mode(0o664)).unwrap();
    let mut owner = Owner::start("--object name=w,size=3 --publish-from -");
    owner.stdin().write_all(b"new").unwrap();
    assert_eq!(owner.process.event()["event"], "published");
    let output = owner.peer("get", "w", &["-o", &link]);
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::read(&target).unwrap(), b"new");
    let mode = fs::metadata(&target).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o664);
}

#[test]
fn prometheus_finds_objects_and_refusals() {
    let owner = Owner::start("--object name=a,size=4,access=read-write --metrics 127.0.0.1:0");
    let put = owner.peer("put", "a", &["/dev/zero"]);
    assert_contains!(stderr(&put), "provide exactly 4 bytes");
    let none = owner.peer("get", "b", &[]);
    assert_eq!(code(&none), 2);
    let mut stream = TcpStream::connect(owner.process.first["metrics"].as_str().unwrap()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    for line in [
        "HTTP/1.1 200 OK\r\n",
        "\ngdr_serve_object_bytes{object=\"a\"} 4\n",
        "\ngdr_serve_object_epoch{object=\"a\"} 0\n",
        "\ngdr_serve_requests_refused_total 1\n",
        "\ngdr_serve_object_info{object=\"a\",element=\"u8\",shape=\"[4]\",mode=\"latest\",",
    ] {
        assert_contains!(text, line);
    }
    let taken = owner.process.first["metrics"].as_str().unwrap();
    let output = gdr([
        "serve",
        "--object",
        "name=w,size=1",
        "--listen",
        "127.0.0.1:0",
        "--metrics",
        taken,
    ]);
    assert_eq!(code(&output), 2);
    assert_contains!(stderr(&output), "cannot be listened at");
}

#[test]
fn a_gpu_that_does_not_exist_is_named() {
    let serve = [
        "serve",
        "--simulate",
        "--listen",
        "127.0.0.1:0",
        "--provider",
        "soft",
    ];
    let output = gdr(serve.iter().chain(&["--object", "name=w,size=4,gpu=7"]));
    assert_eq!(code(&output), 2);
    let error = stderr(&output);
    assert_contains!(error, "GPU 7 does not exist: this process sees 2");
}

#[test]
fn the_tensors_of_a_checkpoint_are_listed_and_got_as_a_file() {
    let files = Files::new();
    let header = br#"{"__metadata__":{"format":"pt"},"w":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},"b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header);
    bytes.extend(1..=16);
    let file = files.write("model.safetensors", &bytes);
    let zeros = files.write("x", &[0; 16]);
    let mut owner = Owner::start(&format!(
        "--safetensors {file} --object name=x --publish-from x={zeros}"
    ));
    for _ in ["model", "x"] {
        assert_eq!(owner.process.event()["event"], "published");
    }
    let listed = owner.peer("ls", "model", &[]);
    assert_eq!(code(&listed), 0, "{}", stderr(&listed));
    let words: Vec<Vec<_>> = (stdout(&listed).lines())
        .map(|line| {
            line.split("  ")
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect()
        })
        .collect();
    assert_eq!(
        words[1..],
        [["w", "BF16", "[2, 3]", "12"], ["b", "F32", "[]", "4"]]
    );
    let listed = owner.peer("ls", "model", &["--json"]);
    let document: Value = serde_json::from_slice(&listed.stdout).unwrap();
    assert_eq!(document["schema"], "gdr.ls-tensors");
    assert_eq!(document["attributes"]["format"], "pt");
    assert_eq!(document["tensors"][1]["shape"], serde_json::json!([]));
    assert_eq!(document["tensors"][1]["offset"], header.len() + 8 + 12);
    assert_eq!(document["object"]["checksum"], "sum64");

    let copy = text(&files.path("copy"));
    let got = owner.peer("get", "model", &["--safetensors", &copy]);
    assert_eq!(code(&got), 0, "{}", stderr(&got));
    assert_eq!(fs::read(&copy).unwrap(), bytes);

    // Another owner has the checksums, and a tensor that is not what it was.
    let sums = text(&files.path("sums"));
    let got = owner.peer("get", "model.sums", &["-o", &sums]);
    assert_eq!(code(&got), 0, "{}", stderr(&got));
    *bytes.last_mut().unwrap() ^= 1;
    let wrong = files.write("wrong", &bytes);
    let mut other = Owner::start(&format!(
        "--object name=model --publish-from model={wrong} \
         --object name=model.sums,element=u64 --publish-from model.sums={sums}"
    ));
    for _ in ["model", "model.sums"] {
        assert_eq!(other.process.event()["event"], "published");
    }
    let refused = other.peer("get", "model", &["--safetensors", &copy, "--json"]);
    assert_fails(&refused, "tensor_damaged", 2);
    let error = stdout(&refused);
    assert_contains!(error, "b of model is damaged in epoch 1");
    *bytes.last_mut().unwrap() ^= 1;
    assert_eq!(fs::read(&copy).unwrap(), bytes);

    // The other object holds no tensors, and the file stays as it was.
    let refused = owner.peer("ls", "x", &["--json"]);
    assert_fails(&refused, "object_tensors", 2);
    let refused = owner.peer("get", "x", &["--safetensors", &copy, "--json"]);
    assert_fails(&refused, "object_tensors", 2);
    assert_eq!(fs::read(&copy).unwrap(), bytes);
}

#[test]
fn a_relay_offers_the_epochs_of_its_owner_and_ends_with_that() {
    let files = Files::new();
    let file = files.write("w", &[7; 3000]);
    let mut owner = Owner::start(&format!("--object name=w --publish-from {file}"));
    assert_eq!(owner.process.event()["event"], "published");
    let relay = Owner::start(&format!("--relay {}/w", owner.address()));
    let object = &relay.process.first["objects"][0];
    assert_eq!(
        (&object["name"], &object["rights"]),
        (&"w".into(), &"read".into())
    );
    let got = relay.peer("get", "w", &["--wait", "60"]);
    assert_eq!(code(&got), 0, "{}", stderr(&got));
    assert_eq!(got.stdout, [7; 3000]);
    let source = format!("{}/w", owner.address());
    drop(owner);
    let (status, events, errors) = relay.process.end();
    assert_eq!(status, Some(2), "{errors}");
    let error = &events.last().unwrap()["error"];
    assert_eq!(error["name"], "object_gone", "{error}");
    let again = peer(
        "serve",
        &format!("--relay={source}"),
        &["--listen=127.0.0.1:0", "--json"],
    );
    assert_fails(&again, "connect", 2);
}
