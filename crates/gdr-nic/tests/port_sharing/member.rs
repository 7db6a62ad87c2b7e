//! Another process with a device at the same address and port.
//!
//! The process is this test binary, started with only the test [`another_process`]. It reads commands from standard
//! input, one a line, and answers with lines that start with [`ANSWER`].

use std::fmt::Display;
use std::io::{BufRead, BufReader, Lines};
use std::net::IpAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::{env, fs, io, thread};

use gdr_rdma::{
    ConnectionOptions, Device, Endpoint, MemoryRegion, Psn, Qpn, Remote, Rkey, SendRequest, WrId,
};

use rustix::process::Pid;

use conformance::{Side, wait_until};

use crate::{options, shared};

/// The environment variable that passes the address to the other process.
const VARIABLE: &str = "GDR_TEST_SHARED_ADDRESS";
/// The prefix of its answers, which distinguishes them from the lines of the test harness.
const ANSWER: &str = "member: ";

/// Returns the slot that a queue pair number belongs to.
pub(crate) fn slot(qpn: Qpn) -> u32 {
    qpn.get() >> 18
}

/// What another process reports when it stops.
#[derive(Debug)]
pub(crate) struct Report {
    /// The number of its completed WRITEs.
    pub(crate) writes: u64,
    pub(crate) unknown_queue_pair: u64,
    pub(crate) sequence_naks: u64,
    /// The first word of its memory.
    pub(crate) first_word: u64,
}

/// Another process, whose queue pair is connected with one of this process.
pub(crate) struct Member {
    /// The end of the connection in this process.
    pub(crate) side: Side,
    /// The memory that the other process writes.
    memory: MemoryRegion,
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
    qpn: Qpn,
    target: Remote,
}

impl Member {
    pub(crate) fn start(device: &Device) -> Self {
        Self::start_with(device, &options())
    }

    /// Starts the process at the address of `device` and connects both.
    pub(crate) fn start_with(device: &Device, options: &ConnectionOptions) -> Self {
        let side = Side::on(device.clone());
        let memory = side.memory(8);
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "member::another_process", "--nocapture"])
            .env(VARIABLE, device.address().ip().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut member = Self {
            qpn: side.pair.qpn(),
            target: memory.remote().at(0),
            side,
            memory,
            child,
            input,
            output,
        };
        let own = member.side.pair.endpoint();
        member.order(line(&own, member.target));
        let (theirs, target) = parse(&own, &member.answer());
        (member.qpn, member.target) = (theirs.qpn, target);
        member.side.pair.connect(&theirs, options).unwrap();
        member.order("connected");
        assert_eq!(member.answer(), "connected");
        member
    }

    pub(crate) fn process(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Returns whether the process is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let state = stat
            .rsplit_once(") ")
            .map(|(_, rest)| rest.starts_with('T'));
        state.unwrap()
    }

    /// Moves this process's end to another device, so that only the other process uses the port.
    pub(crate) fn leave_for(&mut self, device: Device) {
        self.side = Side::on(device);
        self.memory = self.side.memory(8);
    }

    /// Returns the number of its queue pair.
    pub(crate) fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Returns the address of its memory.
    pub(crate) fn target(&self) -> Remote {
        self.target
    }

    fn order(&mut self, what: impl Display) {
        use io::Write;
        writeln!(self.input.as_mut().unwrap(), "{what}").unwrap();
    }

    fn answer(&mut self) -> String {
        loop {
            let line = self.output.next().expect("an answer").unwrap();
            // The test harness writes a line of its own in front, without a line end.
            if let Some((_, answer)) = line.split_once(ANSWER) {
                return answer.to_owned();
            }
        }
    }

    /// Starts writing a rising number, until [`Member::stop`].
    pub(crate) fn write_on(&mut self) {
        self.order("write");
    }

    /// Waits until the process has written more.
    pub(crate) fn wait_for_more(&self) {
        let number = || self.memory.buffer().load_u64(0).unwrap();
        let before = number();
        wait_until(|| number() > before + 100);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops the process; returns its report.
    pub(crate) fn stop(mut self) -> Report {
        self.order("stop");
        let answer = self.answer();
        let mut numbers = answer.split(' ').map(|word| word.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        let report = Report {
            writes: next(),
            unknown_queue_pair: next(),
            sequence_naks: next(),
            first_word: next(),
        };
        self.input = None;
        assert!(self.child.wait().unwrap().success());
        report
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // The process still runs only if a test failed. An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn line(endpoint: &Endpoint, memory: Remote) -> String {
    let (qpn, psn) = (endpoint.qpn.get(), endpoint.psn.get());
    format!("{qpn} {psn} {} {}", memory.addr, memory.rkey.0)
}

/// Parses the endpoint and memory of a line; the other fields are as in `near`, whose device has the same address.
fn parse(near: &Endpoint, line: &str) -> (Endpoint, Remote) {
    let numbers: Vec<u64> = line.split(' ').map(|word| word.parse().unwrap()).collect();
    let endpoint = Endpoint {
        qpn: Qpn::new(numbers[0] as u32),
        psn: Psn::new(numbers[1] as u32),
        ..*near
    };
    let memory = Remote {
        addr: numbers[2],
        rkey: Rkey(numbers[3] as u32),
    };
    (endpoint, memory)
}

/// Runs as the other process if [`Member::start`] started it; otherwise does nothing.
#[test]
fn another_process() {
    let Some(address) = env::var_os(VARIABLE) else {
        return;
    };
    let address: IpAddr = address.to_str().unwrap().parse().unwrap();
    let device = Device::soft_with(shared(address)).unwrap();
    let side = Side::on(device);
    let memory = side.memory(8);
    let mut lines = BufReader::new(io::stdin()).lines().map(Result::unwrap);
    let mut next = || lines.next().expect("an order");
    let own = side.pair.endpoint();
    println!("{ANSWER}{}", line(&own, memory.remote().at(0)));
    let (theirs, target) = parse(&own, &next());
    side.pair.connect(&theirs, &options()).unwrap();
    assert_eq!(next(), "connected");
    println!("{ANSWER}connected");
    let mut writes = 0;
    if next() == "write" {
        let stopped = AtomicBool::new(false);
        writes = thread::scope(|scope| {
            let orders = scope.spawn(|| {
                assert_eq!(next(), "stop");
                stopped.store(true, Ordering::Relaxed);
            });
            let writes = write_until(&side, target, &stopped);
            orders.join().unwrap();
            writes
        });
    }
    let counters = side.device.counters();
    println!(
        "{ANSWER}{writes} {} {} {}",
        counters.unknown_queue_pair,
        counters.sequence_naks_sent + counters.sequence_naks_received,
        memory.buffer().load_u64(0).unwrap()
    );
}

/// Writes a rising number until `stopped`; returns how many WRITEs completed.
fn write_until(side: &Side, target: Remote, stopped: &AtomicBool) -> u64 {
    let mut number = 0_u64;
    while !stopped.load(Ordering::Relaxed) {
        number += 1;
        let write = SendRequest::write(WrId(number), target).inline(&number.to_ne_bytes());
        side.pair.post_send(write).unwrap();
        side.done();
    }
    number
}
