//! Compares `gdr perf` with unmodified perftest on the same kernel device, in turns. `cargo xtask vm --bench perftest`
//! runs it.
#![allow(clippy::unwrap_used, reason = "a failure aborts the benchmark")]

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

/// The `gdr` command in the guest.
const GDR: &str = "/gdr/gdr";
/// The device, and its address.
const DEVICE: &str = "rxe0";
const ADDRESS: &str = "10.78.0.2";
/// The TCP port of both programs.
const PORT: u16 = 18515;
/// Seconds after which a program is killed.
const LIMIT: &str = "120";
/// Clock source of the guest. perftest reads the TSC itself, gdr reads this clock.
const CLOCK: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
/// CPU mask of the kernel's unbound workers.
const WORKERS: &str = "/sys/devices/virtual/workqueue/cpumask";
/// Turns of each case: perftest, then gdr.
const TURNS: usize = 7;

/// One measurement by both programs.
struct Case {
    perftest: &'static str,
    gdr: &'static str,
    /// The options that both have.
    options: &'static str,
    metric: Metric,
}

/// The figure that is compared.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Metric {
    /// Gb/s, the average.
    Bandwidth,
    /// us, the median.
    Latency,
}

const CASES: [Case; 6] = [
    bandwidth("ib_write_bw", "write-bw"),
    bandwidth("ib_read_bw", "read-bw"),
    bandwidth("ib_send_bw", "send-bw"),
    latency("ib_write_lat", "write-lat"),
    latency("ib_read_lat", "read-lat"),
    latency("ib_send_lat", "send-lat"),
];

const fn bandwidth(perftest: &'static str, gdr: &'static str) -> Case {
    Case {
        perftest,
        gdr,
        options: "-s 65536 -n 1000 -t 128 -Q 1 -l 1 -m 4096",
        metric: Metric::Bandwidth,
    }
}

const fn latency(perftest: &'static str, gdr: &'static str) -> Case {
    Case {
        perftest,
        gdr,
        options: "-s 2 -n 10000 -m 4096",
        metric: Metric::Latency,
    }
}

fn main() {
    let Some(accelerator) = std::env::var_os("GDR_VM") else {
        println!("SKIPPED: runs in the VM: cargo xtask vm --bench perftest");
        return;
    };
    let clock = fs::read_to_string(CLOCK).unwrap_or_default();
    println!(
        "gdr perf beside perftest on {DEVICE}, medians of {TURNS} turns each, clock {}:",
        clock.trim()
    );
    // Otherwise it is a matter of luck which CPU the kernel's rxe workers use, and thus whether each message wakes an
    // idle CPU. They get one CPU, and the clients the other.
    fs::write(WORKERS, "1").unwrap();
    for case in &CASES {
        let (mut theirs, mut ours) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            theirs.push(perftest(case));
            ours.push(gdr(case));
        }
        let [theirs_range, ours_range] = [&theirs, &ours].map(|values| range(values));
        let (theirs, ours) = (median(theirs), median(ours));
        let unit = match case.metric {
            Metric::Bandwidth => "Gb/s",
            Metric::Latency => "us",
        };
        println!(
            "  {:12} {theirs:7.3} {theirs_range:17} {:9} {ours:7.3} {ours_range:17} {unit:4} ratio {:.3}",
            case.perftest,
            case.gdr,
            ours / theirs
        );
    }
    if accelerator == "tcg" {
        println!("under TCG QEMU translates every instruction, so only the ratios are meaningful");
    }
}

/// Returns the least and the greatest.
fn range(values: &[f64]) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let greatest = values.iter().copied().fold(0.0, f64::max);
    format!("({least:.2} to {greatest:.2})")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Returns a program, with a limit of its time.
fn program(name: &str, arguments: &str) -> Command {
    let mut command = Command::new("/usr/bin/busybox");
    command
        .args(["timeout", LIMIT])
        .arg(name)
        .args(arguments.split_whitespace());
    command
}

/// Runs a server and a client; returns what the client prints.
fn serve(name: &str, server: &str, client: &str) -> String {
    pin(0);
    let mut serving = program(name, server)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_listens(&mut serving);
    pin(1);
    let Output {
        status,
        stdout,
        stderr,
    } = program(name, client).output().unwrap();
    let served = serving.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        status.success() && served.status.success(),
        "{name}: {} {} {}",
        text(&stdout),
        text(&stderr),
        text(&served.stderr)
    );
    text(&stdout)
}

/// Makes programs started from now on run on this CPU.
fn pin(cpu: usize) {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).unwrap();
}

/// Waits until the port is in the state LISTEN (0A in `/proc/net/tcp`).
fn wait_until_it_listens(server: &mut Child) {
    let start = Instant::now();
    let port = format!(":{PORT:04X} ");
    let is_listening = || {
        ["/proc/net/tcp", "/proc/net/tcp6"].iter().any(|file| {
            let table = fs::read_to_string(file).unwrap_or_default();
            let mut lines = table.lines();
            lines.any(|line| line.contains(&port) && line.contains(" 0A "))
        })
    };
    while !is_listening() {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "no server listens"
        );
        assert!(server.try_wait().unwrap().is_none(), "the server ended");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the figure that perftest prints: in the last line that begins with a number, the average in Gb/s (column 4),
/// or the typical time in us (column 5).
fn perftest(case: &Case) -> f64 {
    let common = format!("-d {DEVICE} -F -p {PORT} {}", case.options);
    let (options, column) = match case.metric {
        Metric::Bandwidth => (format!("{common} --report_gbits"), 3),
        Metric::Latency => (format!("{common} -I 0"), 4),
    };
    // READs have no inline data.
    let options = match case.perftest {
        "ib_read_lat" => common.clone(),
        _ => options,
    };
    let program = format!("/usr/bin/{}", case.perftest);
    let text = serve(&program, &options, &format!("{options} {ADDRESS}"));
    let is_row = |line: &&str| {
        let first = line.split_whitespace().next();
        first.is_some_and(|word| word.parse::<u64>().is_ok())
    };
    let row = text
        .lines()
        .rfind(is_row)
        .unwrap_or_else(|| panic!("{text}"));
    row.split_whitespace().nth(column).unwrap().parse().unwrap()
}

/// Returns the same figure of `gdr perf`.
fn gdr(case: &Case) -> f64 {
    let column = match case.metric {
        Metric::Bandwidth => "gbit_per_s",
        Metric::Latency => "median_us",
    };
    let device = format!("--provider verbs -d {DEVICE} -p {PORT} --insecure");
    let server = format!("perf {} --bind {ADDRESS} {device}", case.gdr);
    let client = format!(
        "perf {} {ADDRESS} {device} {} --csv",
        case.gdr, case.options
    );
    let text = serve(GDR, &server, &client);
    let mut lines = text.lines();
    let at = lines
        .next()
        .unwrap()
        .split(',')
        .position(|name| name == column);
    let row = lines.next().unwrap();
    row.split(',').nth(at.unwrap()).unwrap().parse().unwrap()
}
