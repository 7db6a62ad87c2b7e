//! Owners and readers in separate processes, which are stopped and killed.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

mod fixture;

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use gdr_object::{
    Deadline, Error, GoneReason, Link, LinkOptions, Mode, Object, ObjectServer, Place,
    RemoteObject, Security, WhenFull,
};
use rustix::process::{Pid, Signal, kill_process};

use fixture::{limit, name, row, server};

/// The environment variable with the role of the other process: `owner`, or the address of an owner to follow.
const VARIABLE: &str = "GDR_OBJECT_TEST_PART";
/// The prefix of an answer of the other process, because the test harness writes to the same output.
const ANSWER: &str = "answer:";
const LEN: u64 = 100_000;

/// Runs as the other process; otherwise does nothing.
#[test]
fn another_process() {
    match env::var(VARIABLE).ok().as_deref() {
        None => {}
        Some("owner") => own(),
        Some(owner) => follow(owner.parse().unwrap()),
    }
}

/// Serves one object until standard input ends.
fn own() {
    let server = server();
    let object = server.create(name("w"), row(LEN), &Place::host()).unwrap();
    object.publish(&[1; LEN as usize], limit()).unwrap();
    answer(&server.address().to_string());
    io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Follows a ring until the ring ends or this process is killed.
fn follow(owner: SocketAddr) {
    let link = connect(owner);
    let ring = link.open(name("ring"), limit()).unwrap();
    let mut follower = ring.follow(limit()).unwrap();
    answer("following");
    let memory = link.host_memory(8).unwrap();
    while follower.next_into(&memory, limit()).is_ok() {}
}

fn answer(text: &str) {
    let mut output = io::stdout();
    writeln!(output, "{ANSWER}{text}").unwrap();
    output.flush().unwrap();
}

fn connect(owner: SocketAddr) -> Link {
    Link::connect(owner, LinkOptions::new(Security::Loopback), limit()).unwrap()
}

/// Another process, which is killed on drop.
struct Other {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(part: &str) -> Self {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "another_process", "--nocapture"])
            .env(VARIABLE, part)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Starts an owner; returns the object that it serves.
    fn owner() -> (Self, Link, RemoteObject) {
        let mut owner = Self::start("owner");
        let link = connect(owner.answer().parse().unwrap());
        let remote = link.open(name("w"), limit()).unwrap();
        (owner, link, remote)
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "no answer");
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.trim().to_owned();
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Stops the process, and waits until none of its threads runs.
    fn stop(&self) {
        self.signal(Signal::STOP);
        let (tasks, waited) = (format!("/proc/{}/task", self.child.id()), limit());
        let is_stopped = || {
            std::fs::read_dir(&tasks).unwrap().all(|task| {
                let status = task.unwrap().path().join("status");
                let status = std::fs::read_to_string(status).unwrap_or_default();
                status.contains("State:\tT")
            })
        };
        while !is_stopped() {
            assert!(!waited.has_passed());
            std::thread::yield_now();
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn a_killed_owner_is_gone_long_before_the_deadline() {
    let (mut owner, link, remote) = Other::owner();
    let (epoch, _) = remote.get(limit()).unwrap();
    std::thread::scope(|scope| {
        // A deadline in the distant future: if the wait does not notice the end, this test hangs.
        let never = Deadline::after(Duration::from_secs(100_000));
        let remote = &remote;
        let waits = scope.spawn(move || remote.wait_newer(Some(epoch), never));
        owner.kill();
        let ended = waits.join().unwrap();
        let Err(Error::Gone { why, .. }) = ended else {
            panic!("{ended:?}");
        };
        assert_eq!(why, GoneReason::Disconnected);
    });
    for _ in 0..3 {
        assert!(matches!(remote.get(limit()), Err(Error::Gone { .. })));
        assert!(matches!(link.list(limit()), Err(Error::Gone { .. })));
    }
}

#[test]
fn a_stopped_owner_stalls_at_the_deadline_and_answers_when_it_goes_on() {
    let (owner, link, remote) = Other::owner();
    let memory = link.host_memory(LEN).unwrap();
    remote.get_into(&memory, limit()).unwrap();
    owner.stop();
    for _ in 0..3 {
        let soon = Deadline::after(Duration::from_millis(100));
        match remote.get_into(&memory, soon) {
            Err(Error::Stalled { done: 0, .. } | Error::NoAnswer { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    owner.signal(Signal::CONT);
    remote.get_into(&memory, limit()).unwrap();
    assert_eq!(memory.buffer().load_u8(LEN - 1).unwrap(), 1);
}

/// Returns the number of descriptors and of threads of this process.
fn resources() -> [usize; 2] {
    ["/proc/self/fd", "/proc/self/task"].map(|of| std::fs::read_dir(of).unwrap().count())
}

fn ring(server: &ObjectServer) -> Object {
    let mode = Mode::Ring {
        slots: 4,
        when_full: WhenFull::Block,
    };
    server
        .create(name("ring"), row(8).mode(mode), &Place::host())
        .unwrap()
}

/// Kills followers of a blocking ring at arbitrary times; the remaining follower misses nothing.
fn kill_followers(kills: u64) {
    let server = server();
    let ring = ring(&server);
    let link = fixture::link(&server);
    let remote = link.open(name("ring"), limit()).unwrap();
    let mut follower = remote.follow(limit()).unwrap();
    let memory = link.host_memory(8).unwrap();
    let mut next = 1;
    let mut publish = |rounds: u64| {
        for _ in 0..rounds {
            ring.publish(&u64::to_le_bytes(next), limit()).unwrap();
            let received = follower.next_into(&memory, limit()).unwrap();
            assert_eq!((received.epoch.get(), received.missed), (next, 0));
            next += 1;
        }
    };
    let mut before = None;
    for round in 0..kills {
        let mut other = Other::start(&server.address().to_string());
        assert_eq!(other.answer(), "following");
        publish(round % 7);
        other.kill();
        // More epochs than the ring holds: the owner continues without the killed follower.
        publish(6);
        while server.stats().links > 1 {
            std::thread::yield_now();
        }
        drop(other);
        // The first rounds allocate memory that is kept.
        if round == 1 {
            before = Some(resources());
        }
    }
    assert_eq!(ring.readers(), 1);
    // The last threads may still be ending.
    let (before, waited) = (before.unwrap(), limit());
    while resources()
        .iter()
        .zip(before)
        .any(|(now, before)| *now > before)
    {
        assert!(!waited.has_passed(), "{:?} after {before:?}", resources());
        std::thread::yield_now();
    }
}

#[test]
fn killed_followers_cost_the_owner_and_the_living_nothing() {
    kill_followers(8);
}

#[test]
#[ignore = "takes minutes; run it with --release"]
fn hundreds_of_killed_followers_cost_the_owner_and_the_living_nothing() {
    kill_followers(500);
}
