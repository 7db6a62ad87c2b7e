//! `cargo xtask verbs-bench`: Debian's unmodified perftest under `gdr run`, compared with `gdr perf` and the sweep of
//! `gdr loopback`.
//!
//! Both ends are processes on this host, with gdr's devices at one loopback address. perftest uses the device through
//! libgdr-verbs.so, `gdr perf` through Rust calls, so the ratio is the cost of the libibverbs interface. `gdr loopback`
//! has both devices in one process, and 16 requests in flight. The programs take turns, so that other load on the host
//! affects all of them.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroUsize;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde::Deserialize;

use crate::running::{Running, ServerEnd, free_port, print_end, serve};
use crate::verbs_programs::{Profile, Setup};
use xtask_build::results::Unavailable;

/// A measurement fails after this time.
const LIMIT: Duration = Duration::from_secs(60);
/// Minimum bandwidth of perftest, as a share of each gdr command's bandwidth.
const LEAST_SHARE: f64 = 0.9;

/// One measurement by several programs.
#[derive(Debug)]
struct Case {
    perftest: &'static str,
    verb: &'static str,
    /// Options that perftest and `gdr perf` share.
    options: &'static str,
    metric: Metric,
    references: &'static [Reference],
}

/// What perftest is compared with.
#[derive(Clone, Copy, Debug)]
enum Reference {
    Perf,
    /// The rate of WRITEs into host memory in the sweep.
    Loopback,
}

impl Reference {
    const fn name(self) -> &'static str {
        match self {
            Self::Perf => "gdr perf",
            Self::Loopback => "gdr loopback",
        }
    }

    fn measure(self, setup: &Setup, case: &Case) -> anyhow::Result<f64> {
        match self {
            Self::Perf => gdr_perf(setup, case),
            Self::Loopback => gdr_loopback(setup),
        }
    }
}

/// The figure to compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    /// Gb/s, the average.
    Bandwidth,
    /// us, the median.
    Latency,
}

/// perftest requests a completion for every 100th request unless `-Q` says otherwise, and posts requests one by one.
const CASES: [Case; 5] = [
    Case {
        perftest: "ib_write_bw",
        verb: "write-bw",
        options: "-s 65536 -n 20000 -t 128 -Q 100 -l 1",
        metric: Metric::Bandwidth,
        references: &[Reference::Perf, Reference::Loopback],
    },
    latency("ib_write_lat", "write-lat"),
    latency("ib_send_lat", "send-lat"),
    latency("ib_read_lat", "read-lat"),
    latency("ib_atomic_lat", "atomic-lat"),
];

const fn latency(perftest: &'static str, verb: &'static str) -> Case {
    Case {
        perftest,
        verb,
        options: "-s 8 -n 5000",
        metric: Metric::Latency,
        references: &[Reference::Perf],
    }
}

/// Size of the requests for bandwidth.
const SIZE: u64 = 65536;

/// What to measure.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Turns of each program; the medians of them are compared.
    #[arg(long, value_name = "N", default_value = "5")]
    turns: NonZeroUsize,
    /// Address of both ends, in case another engine of the host has the UDP port of 127.0.0.1.
    #[arg(long, value_name = "ADDR", default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    address: IpAddr,
    /// Run only the programs of perftest whose names contain one of these.
    filters: Vec<String>,
}

/// Measures, and fails if the bandwidth of perftest is below its share.
pub fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let setup = match Setup::prepare(Profile::Release, options.address) {
        Ok(setup) => setup,
        Err(error) => match error.downcast::<Unavailable>() {
            Ok(unavailable) => {
                println!("SKIPPED ({unavailable}): verbs-bench");
                return Ok(ExitCode::SUCCESS);
            }
            Err(error) => return Err(error),
        },
    };
    let filters = &options.filters;
    let cases = CASES.iter().filter(|case| {
        filters.is_empty() || filters.iter().any(|it| case.perftest.contains(it.as_str()))
    });
    println!(
        "perftest under gdr run, {}, medians of {} turns (lowest to highest)",
        options.address, options.turns
    );
    println!("{:5}  {:13}  {:30}  beside", "ratio", "", "perftest");
    let mut exit = ExitCode::SUCCESS;
    for case in cases {
        let mut theirs = Vec::new();
        let mut ours = vec![Vec::new(); case.references.len()];
        for _ in 0..options.turns.get() {
            theirs.push(perftest(&setup, case)?);
            for (reference, figures) in case.references.iter().zip(&mut ours) {
                figures.push(reference.measure(&setup, case)?);
            }
        }
        let theirs = Spread::of(theirs);
        for (reference, ours) in case.references.iter().zip(ours) {
            let ours = Spread::of(ours);
            let ratio = theirs.median / ours.median;
            println!(
                "{ratio:5.2}  {:13}  {:30}  {:12}  {}",
                case.perftest,
                theirs.shown(case.metric),
                reference.name(),
                ours.shown(case.metric)
            );
            if case.metric == Metric::Bandwidth && ratio < LEAST_SHARE {
                println!("       less than {LEAST_SHARE}");
                exit = ExitCode::FAILURE;
            }
        }
    }
    Ok(exit)
}

/// Figures of several turns.
#[derive(Debug, PartialEq)]
struct Spread {
    lowest: f64,
    median: f64,
    highest: f64,
}

impl Spread {
    /// Returns the spread of at least one turn.
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        let at = |index: usize| figures.get(index).copied().unwrap_or(f64::NAN);
        Self {
            lowest: at(0),
            median: at(figures.len() / 2),
            highest: at(figures.len().saturating_sub(1)),
        }
    }

    fn shown(&self, metric: Metric) -> String {
        let unit = match metric {
            Metric::Bandwidth => "Gb/s",
            Metric::Latency => "us",
        };
        let Self {
            lowest,
            median,
            highest,
        } = self;
        format!("{median:.2} {unit} ({lowest:.2} to {highest:.2})")
    }
}

/// Measures with perftest.
fn perftest(setup: &Setup, case: &Case) -> anyhow::Result<f64> {
    let gigabits = match case.metric {
        Metric::Bandwidth => "--report_gbits ",
        Metric::Latency => "",
    };
    // The size of an atomic operation is fixed.
    let options = match case.perftest {
        "ib_atomic_lat" => case.options.replace("-s 8 ", ""),
        _ => case.options.to_owned(),
    };
    let line = format!("{} -F {gigabits}{options}", case.perftest);
    let port = free_port(setup.address)?;
    let end = || {
        let mut command = setup.command(&line);
        command.args(["-p", &port.to_string()]);
        command
    };
    let mut client = end();
    client.arg(setup.address.to_string());
    let text = printed(setup, case.perftest, port, [end(), client])?;
    figure_of_perftest(&text, case.metric)
        .with_context(|| format!("{} printed no row of figures: {text}", case.perftest))
}

/// Measures with `gdr perf`.
fn gdr_perf(setup: &Setup, case: &Case) -> anyhow::Result<f64> {
    let port = free_port(setup.address)?;
    let address = setup.address.to_string();
    let end = || {
        let mut command = Command::new(&setup.gdr);
        command.args(["perf", case.verb, "--device", &address]);
        command.args(["--port", &port.to_string()]);
        command
    };
    let (mut server, mut client) = (end(), end());
    server.args(["--bind", &address]);
    client.args([&address, "--csv"]);
    client.args(case.options.split(' '));
    let text = printed(setup, case.verb, port, [server, client])?;
    figure_of_gdr(&text, case.metric)
        .with_context(|| format!("gdr perf {} printed no row of figures: {text}", case.verb))
}

/// Measures with the sweep of `gdr loopback`, which also has memory of a simulated GPU.
fn gdr_loopback(setup: &Setup) -> anyhow::Result<f64> {
    let address = setup.address.to_string();
    let mut command = Command::new(&setup.gdr);
    command.args(["loopback", "--sweep", "--simulate", "--provider", "soft"]);
    command.args(["--from", &address, "--to", &address]);
    command.args(["--json", "--size", &SIZE.to_string()]);
    let output = setup.file("sweep");
    let failure = Running::start(command, output.clone())?.failure(Instant::now() + LIMIT)?;
    if let Some(failure) = failure {
        print_end("gdr loopback", &output);
        bail!("gdr loopback {failure}");
    }
    let text = fs::read_to_string(&output)
        .with_context(|| format!("{} cannot be read", output.display()))?;
    // After warnings, if any.
    let document = text.find('{').map_or("", |start| &text[start..]);
    let sweep: Sweep = serde_json::from_str(document)
        .with_context(|| format!("gdr loopback printed no sweep: {text}"))?;
    let rate = sweep.rate("write", "host", SIZE);
    rate.with_context(|| format!("the sweep of gdr loopback has no WRITE of {SIZE} bytes"))
}

/// The parts of the document `gdr.loopback.sweep` that are read.
#[derive(Debug, Deserialize)]
struct Sweep {
    rows: Vec<SweepRow>,
}

#[derive(Debug, Deserialize)]
struct SweepRow {
    operation: String,
    size: u64,
    /// The memory.
    way: String,
    gb_per_s: f64,
}

impl Sweep {
    /// In Gb/s.
    fn rate(&self, operation: &str, way: &str, size: u64) -> Option<f64> {
        let is_wanted =
            |row: &&SweepRow| (&*row.operation, &*row.way, row.size) == (operation, way, size);
        let row = self.rows.iter().find(is_wanted)?;
        Some(row.gb_per_s * 8.0)
    }
}

/// Runs a server and its client; returns what the client printed.
fn printed(setup: &Setup, name: &str, port: u16, ends: [Command; 2]) -> anyhow::Result<String> {
    let names = ["server", "client"];
    let failure = serve(
        port,
        ServerEnd::ByItself,
        ends,
        names.map(|end| setup.file(end)),
        Instant::now() + LIMIT,
    )?;
    if let Some(failure) = failure {
        for end in names {
            print_end(end, &setup.file(end));
        }
        bail!("{name}: {failure}");
    }
    let file = setup.file("client");
    fs::read_to_string(&file).with_context(|| format!("{} cannot be read", file.display()))
}

/// Returns the figure in the last line of perftest's output that begins with a number: the average bandwidth (column
/// 4), or the typical latency, which is the median (column 5).
fn figure_of_perftest(text: &str, metric: Metric) -> Option<f64> {
    let column = match metric {
        Metric::Bandwidth => 3,
        Metric::Latency => 4,
    };
    let row = text.lines().rfind(|line| {
        let first = line.split_whitespace().next();
        first.is_some_and(|word| word.parse::<u64>().is_ok())
    })?;
    row.split_whitespace().nth(column)?.parse().ok()
}

/// Returns the same figure in the table of `gdr perf --csv`.
fn figure_of_gdr(text: &str, metric: Metric) -> Option<f64> {
    let column = match metric {
        Metric::Bandwidth => "gbit_per_s",
        Metric::Latency => "median_us",
    };
    let mut lines = text.lines().skip_while(|line| !line.contains(column));
    let at = lines.next()?.split(',').position(|name| name == column)?;
    lines.next()?.split(',').nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_found_in_what_the_programs_print() {
        let bandwidth = " #bytes #iterations BW peak[Gb/sec] BW average[Gb/sec] MsgRate[Mpps]\n\
             65536 5000 10.25 9.75 0.0187\n---\n";
        let figure = figure_of_perftest(bandwidth, Metric::Bandwidth);
        assert_eq!(figure, Some(9.75));
        let latency =
            " #bytes #iterations t_min t_max t_typical t_avg\n 8 1000 20.0 90.0 38.5 40.1\n";
        assert_eq!(figure_of_perftest(latency, Metric::Latency), Some(38.5));
        assert_eq!(figure_of_perftest("no figures\n", Metric::Latency), None);
        let table = "size,gbit_per_s,median_us\n65536,12.5,40.2\n";
        assert_eq!(figure_of_gdr(table, Metric::Bandwidth), Some(12.5));
        assert_eq!(figure_of_gdr(table, Metric::Latency), Some(40.2));
        assert_eq!(figure_of_gdr("size\n8\n", Metric::Latency), None);
    }

    #[test]
    fn the_rate_of_a_sweep_is_that_of_the_size_and_the_memory() {
        let row = |size, way: &str, gb_per_s| {
            let latency = serde_json::json!({ "median_ns": 1.0 });
            serde_json::json!({
                "operation": "write", "size": size, "way": way, "gb_per_s": gb_per_s,
                "latency": latency,
            })
        };
        let rows = [
            row(4, "host", 1.0),
            row(65536, "direct", 2.0),
            row(65536, "host", 1.5),
        ];
        let document = serde_json::json!({ "schema": "gdr.loopback.sweep", "rows": rows });
        let sweep: Sweep = serde_json::from_value(document).unwrap();
        assert_eq!(sweep.rate("write", "host", SIZE), Some(12.0));
        assert_eq!(sweep.rate("read", "host", SIZE), None);
    }

    #[test]
    fn the_median_and_the_extremes_of_the_turns() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0, 9.0, 4.0]);
        assert_eq!(
            (spread.lowest, spread.median, spread.highest),
            (1.0, 3.0, 9.0)
        );
        assert_eq!(spread.shown(Metric::Latency), "3.00 us (1.00 to 9.00)");
    }
}
