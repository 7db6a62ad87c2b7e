//! What is left of an end of `gdr loopback` whose peer is killed: an error by its deadline, and
//! nothing else.
//!
//! A binary of its own with one test: it counts what the whole process holds.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::ControlFlow;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use assert_cmd::cargo_bin;
use gdr_copy::{BackendKind, Context};
use gdr_cuda::{Gpu, Ordinal, SimDriver};
use gdr_perf::BenchTarget;
use gdr_perf::loopback::{
    self, Destination, Event, ListeningEnd, Report, Settings, Step, Timeouts, TransferPreference,
    Verdict,
};
use gdr_perf::transfer::TransferMemory;
use gdr_rdma::{Listener, Security};

const REAPER: &str = "gdr-rdma-reaper";
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const STEP: Duration = Duration::from_secs(2);
/// All deadlines of a step together, with room for a busy machine.
const HANGS: Duration = Duration::from_secs(40);
/// Long enough that a message of it is under way when the peer dies.
const SIZE: u64 = 8 << 20;
const ENOUGH: u32 = 1_000_000;

/// What this process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Resources {
    descriptors: usize,
    threads: usize,
    /// Mappings of simulated GPU memory.
    gpu_mappings: usize,
}

fn held() -> Resources {
    let entries = |path: &str| fs::read_dir(path).unwrap().count();
    // The thread that frees memory of a GPU is started when it is first needed, and kept.
    let frees = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
        name.trim() == REAPER
    };
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    Resources {
        descriptors: entries("/proc/self/fd"),
        threads: tasks.filter(|task| !frees(task)).count(),
        gpu_mappings: maps.lines().filter(|line| line.contains("memfd")).count(),
    }
}

/// Threads of the simulated GPU's streams end on their own, soon after their streams.
fn assert_given_back(before: &Resources, when: &str) {
    let start = Instant::now();
    while held() != *before && start.elapsed() < HANGS {
        std::thread::yield_now();
    }
    assert_eq!(held(), *before, "{when}");
}

/// A process that is killed, here or at the end.
struct Victim(Child);

impl Victim {
    fn start(line: &str, stdout: Stdio) -> Self {
        let child = Command::new(cargo_bin!("gdr"))
            .args([
                "loopback",
                "--backend",
                "sim",
                "--udp-port",
                "0",
                "--timeout",
                "2",
            ])
            .args(line.split_whitespace())
            // Nothing of the user who runs the tests.
            .env("HOME", "/nonexistent")
            .env("XDG_STATE_HOME", "/nonexistent")
            .stdout(stdout)
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn kill(&mut self) {
        // SIGKILL; it may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

fn target() -> BenchTarget {
    let driver = SimDriver::new(1);
    let gpu = Gpu::open(driver.clone(), Ordinal(0)).unwrap();
    let builder = Context::builder().simulated(driver);
    let context = builder.backend(BackendKind::Sim).open().unwrap();
    BenchTarget::new(gpu, Arc::new(context))
}

/// Kills when iteration 2 comes to `at`; never without it.
fn killer(at: Option<Step>, victim: &mut Victim) -> impl FnMut(Event<'_>) -> ControlFlow<()> {
    move |event| {
        if let Event::Step { number: 2, step } = event
            && at == Some(step)
        {
            victim.kill();
        }
        ControlFlow::Continue(())
    }
}

/// Runs the end that owns the GPU memory; the process that writes there dies.
fn receive(at: Option<Step>, iterations: u32, transfer: TransferPreference) -> Report {
    let listener = Listener::bind((LOCALHOST, 0).into()).unwrap();
    let address = listener.address().unwrap();
    let device = loopback::open_listener(LOCALHOST, None, 0).unwrap();
    let line = format!("--connect {address} --size {SIZE} --iterations {iterations}");
    let mut victim = Victim::start(&line, Stdio::null());
    let timeouts = Timeouts {
        peer: HANGS,
        step: STEP,
    };
    let to = Destination {
        transfer,
        ..Destination::default()
    };
    let security = Security::Loopback;
    let mut observe = killer(at, &mut victim);
    loopback::listen(
        &target(),
        &device,
        &listener,
        &security,
        &ListeningEnd::new(to, timeouts),
        &mut observe,
    )
    .unwrap()
}

/// Runs the end that writes; the process with the GPU memory dies.
fn send(at: Option<Step>, iterations: u32) -> Report {
    let mut victim = Victim::start("--listen 127.0.0.1:0", Stdio::piped());
    let mut stdout = BufReader::new(victim.0.stdout.take().unwrap());
    let address = listening(&mut stdout);
    let device = loopback::open_connector(LOCALHOST, None, 0).unwrap();
    let settings = Settings {
        size: SIZE,
        iterations,
        timeout: STEP,
        ..Settings::default()
    };
    let mut observe = killer(at, &mut victim);
    let security = Security::Loopback;
    let source = TransferMemory::Host;
    loopback::connect(&device, address, &security, source, &settings, &mut observe).unwrap()
}

fn listening(stdout: &mut BufReader<ChildStdout>) -> SocketAddr {
    loop {
        let mut line = String::new();
        assert_ne!(stdout.read_line(&mut line).unwrap(), 0);
        if let Some(address) = line.trim_end().strip_prefix("listening on ") {
            return address.parse().unwrap();
        }
    }
}

#[test]
fn a_killed_peer_leaves_an_error_by_the_deadline_and_nothing_held() {
    let threads = held().threads;
    // What is made once and kept is made here.
    assert_eq!(
        receive(None, 2, TransferPreference::Auto).verdict,
        Verdict::Pass
    );
    assert_eq!(
        receive(None, 2, TransferPreference::Staged).verdict,
        Verdict::Pass
    );
    assert_eq!(send(None, 2).verdict, Verdict::Pass);
    let before = Resources { threads, ..held() };
    assert_given_back(&before, "before");
    for step in [Step::Fill, Step::Write, Step::Verify, Step::Read] {
        for transfer in [
            Some(TransferPreference::Direct),
            Some(TransferPreference::Staged),
            None,
        ] {
            let start = Instant::now();
            let report = match transfer {
                Some(transfer) => receive(Some(step), ENOUGH, transfer),
                None => send(Some(step), ENOUGH),
            };
            let took = start.elapsed();
            assert!(took < HANGS, "{step:?}, {transfer:?}: {took:?}");
            assert_eq!(
                report.verdict,
                Verdict::Fail,
                "{step:?}, {transfer:?}: {report:?}"
            );
            assert_eq!(report.passed, 1, "{step:?}, {transfer:?}");
            let cause = report.cause.unwrap();
            assert!(!cause.what.is_empty() && !cause.remedy.is_empty());
            assert_given_back(&before, &format!("{step:?}, {transfer:?}"));
        }
    }
}
