//! Table of `gdr perf`, printed row by row.

use gdr_perf::Result;
use gdr_perf::transfer::{
    Direction, Metric, Striping, TransferEnd, TransferEvent, TransferReport, TransferRow, Verb,
    Verification,
};

use crate::commands::describe;
use crate::figures::{Cell, Column, FigureOptions, Figures, SIMULATED};
use crate::output::Output;

/// Returns the columns of a row: the measured figure's are always shown.
fn columns(metric: Metric) -> Vec<Column> {
    let rates: fn(_, _, _) -> Column = match metric {
        Metric::Bandwidth => Column::new,
        Metric::Latency => Column::wide,
    };
    let latencies: fn(_, _, _) -> Column = match metric {
        Metric::Bandwidth => Column::wide,
        Metric::Latency => Column::new,
    };
    vec![
        Column::csv("verb"),
        Column::new("bytes", "size", 10),
        Column::new("messages", "messages", 10),
        rates("GB/s", "gb_per_s", 9),
        rates("Gb/s", "gbit_per_s", 9),
        rates("Mmsg/s", "mpps", 9),
        latencies("min us", "min_us", 8),
        Column::new("median us", "median_us", 9),
        latencies("mean us", "mean_us", 8),
        latencies("stddev", "stddev_us", 8),
        Column::wide("p90 us", "p90_us", 8),
        Column::new("p99 us", "p99_us", 8),
        latencies("p99.9", "p999_us", 8),
        Column::wide("p99.99", "p9999_us", 8),
        Column::new("max us", "max_us", 8),
        Column::wide("seconds", "seconds", 8),
        Column::wide("CPU s", "client_cpu_s", 8),
        Column::wide("server", "server_cpu_s", 8),
        Column::wide("compared", "verified_bytes", 10),
        Column::csv("passed"),
        SIMULATED,
    ]
}

/// Returns the cells of [`columns`].
fn cells(verb: Verb, row: &TransferRow, is_simulated: bool) -> Vec<Cell> {
    let us = |ns: f64| Cell::Figure(ns / 1000.0);
    let latency = &row.latency.summary;
    vec![
        Cell::text(verb),
        Cell::Count(row.size),
        Cell::Count(row.messages),
        Cell::Figure(row.gb_per_s),
        Cell::Figure(row.gbit_per_s),
        Cell::Figure(row.mpps),
        us(latency.min_ns),
        us(latency.median_ns),
        us(latency.mean_ns),
        us(latency.stddev_ns),
        us(latency.p90_ns),
        us(latency.p99_ns),
        us(latency.p999_ns),
        us(row.latency.p9999_ns),
        us(latency.max_ns),
        Cell::Figure(row.seconds),
        Cell::Figure(row.cpu.client),
        Cell::Figure(row.cpu.server),
        match row.verified_bytes {
            Some(bytes) => Cell::Count(bytes),
            None => Cell::text(""),
        },
        Cell::text(row.failures.is_empty()),
        Cell::text(is_simulated),
    ]
}

/// A table that is printed while the measurement runs.
pub(super) struct Table {
    options: FigureOptions,
    figures: Figures,
    verb: Verb,
    is_simulated: bool,
}

impl Table {
    pub(super) fn new(verb: Verb, options: FigureOptions) -> Self {
        Self {
            options,
            figures: Figures::new(options, &[&columns(verb.metric())]),
            verb,
            is_simulated: false,
        }
    }

    pub(super) fn event(&mut self, event: &TransferEvent<'_>, output: &mut Output) -> Result<()> {
        match event {
            TransferEvent::Listening(address) if !self.options.csv => {
                output.line(format_args!("waiting   for a client at {address}"))
            }
            TransferEvent::Ready(report) => {
                // The client chooses what to measure.
                *self = Self {
                    is_simulated: report.simulated,
                    ..Self::new(report.plan.verb, self.options)
                };
                if !self.options.csv {
                    introduce(report, output)?;
                }
                output.line(self.figures.head())
            }
            TransferEvent::Measured(row) => output.line(self.row(row)),
            _ => Ok(()),
        }
    }

    /// Returns a line of the table.
    fn row(&self, row: &TransferRow) -> String {
        self.figures.row(&cells(self.verb, row, self.is_simulated))
    }

    /// Writes the lines below the table.
    pub(super) fn end(&self, report: &TransferReport, output: &mut Output) -> Result<()> {
        if self.options.csv {
            return Ok(());
        }
        output.line("")?;
        if report.plan.verify != Verification::Off {
            let bytes: u64 = report
                .rows
                .iter()
                .filter_map(|row| row.verified_bytes)
                .sum();
            output.paragraph(
                "verified  ",
                "          ",
                &format!(
                    "every byte of every message, {bytes} bytes in all, where they arrived: all right"
                ),
            )?;
        }
        if let Some(wire) = report.wire {
            output.paragraph("wire      ", "          ", &wire.to_string())?;
        }
        let failures = report.rows.iter().flat_map(|row| &row.failures);
        for failure in failures {
            output.paragraph("FAIL      ", "          ", failure)?;
        }
        match report.thresholds.is_given() && report.passed {
            true => output.line("PASS: every size meets its thresholds"),
            false => Ok(()),
        }
    }
}

fn introduce(report: &TransferReport, output: &mut Output) -> Result<()> {
    for (what, end) in [
        ("client    ", &report.client),
        ("server    ", &report.server),
    ] {
        output.paragraph(what, "          ", &end_in_words(end))?;
    }
    output.paragraph("measured  ", "          ", &plan_in_words(report))?;
    output.line("")
}

/// Returns what was measured, and under which load.
pub(super) fn plan_in_words(report: &TransferReport) -> String {
    let plan = &report.plan;
    let mut words = format!("{}, path MTU {}", plan.verb, report.path_mtu);
    if plan.verb.metric() == Metric::Bandwidth {
        words += &format!(
            ", {} queue pair{}, {} requests in flight each",
            plan.queue_pairs,
            if plan.queue_pairs == 1 { "" } else { "s" },
            plan.tx_depth
        );
        if plan.striping == Striping::On {
            words += ", one message after the other striped over them";
        }
        if plan.direction == Direction::BothWays {
            words += ", both ways";
        }
        words += "; latencies are those under this load";
    } else if plan.verb.is_ping_pong() {
        words += "; latencies are half of a round trip";
    }
    words
}

/// Returns an end in words. Texts from a peer were escaped on arrival.
pub(super) fn end_in_words(end: &TransferEnd) -> String {
    let mut words = match &end.process.host {
        Some(host) => format!("{host}: "),
        None => String::new(),
    };
    let device = &end.device;
    words += &format!("{}, {}; ", device.device, device.provider);
    match &end.memory.gpu {
        None => words += "host memory",
        Some(gpu) => {
            words += &format!("GPU memory of {}", describe(gpu));
            if let Some(why) = &end.memory.why {
                words += &format!("; {why}");
            }
        }
    }
    if let Some(cpus) = &end.process.cpus {
        words += &format!("; CPUs {}", cpus.list);
        if let Some(why) = &cpus.why {
            words += &format!(" ({why})");
        }
    }
    words
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::SocketAddr;

    use gdr_perf::loopback::End;
    use gdr_perf::report::{ProcessFacts, Schema};
    use gdr_perf::stats::{Bucket, Summary};
    use gdr_perf::transfer::{
        CpuSeconds, LatencyDistribution, MemoryFacts, Plan, Role, Thresholds,
    };
    use serde_json::Value;

    use super::*;
    use crate::units::figure;

    /// Returns a report with figures that all differ.
    pub(in super::super) fn report(verb: Verb) -> TransferReport {
        let end = |address: &str| TransferEnd {
            process: ProcessFacts {
                host: Some("node<1>".into()),
                gdr: "0.1.0".into(),
                cpus: None,
            },
            device: End {
                device: "soft".into(),
                address: address.parse::<SocketAddr>().unwrap(),
                provider: "soft".into(),
                integrity: "all".into(),
            },
            memory: MemoryFacts::host(),
        };
        let rows = [64_u64, 4096, 65_536].map(|size| {
            let base = size as f64;
            TransferRow {
                size,
                warm_up: size + 2,
                messages: size + 1,
                seconds: base / 7.0,
                gb_per_s: base / 3.0e4,
                gbit_per_s: 8.0 * base / 3.0e4,
                mpps: base / 11.0,
                latency: LatencyDistribution {
                    summary: Summary {
                        samples: size,
                        min_ns: base + 101.3,
                        mean_ns: base + 301.7,
                        median_ns: base + 201.1,
                        p90_ns: base + 401.9,
                        p99_ns: base + 501.3,
                        p999_ns: base + 601.7,
                        max_ns: base + 801.3,
                        stddev_ns: base / 13.0,
                    },
                    p9999_ns: base + 701.9,
                    histogram: vec![Bucket {
                        to_ns: base,
                        count: size,
                    }],
                },
                cpu: CpuSeconds {
                    client: base / 17.0,
                    server: base / 19.0,
                },
                verified_bytes: Some(3 * size),
                failures: Vec::new(),
            }
        });
        TransferReport {
            schema: Schema::first("gdr.perf"),
            role: Role::Client,
            simulated: false,
            plan: Plan {
                sizes: vec![64, 4096, 65_536],
                ..Plan::new(verb)
            },
            path_mtu: 4096,
            wire: None,
            client: end("127.0.0.2:4791"),
            server: end("127.0.0.1:4791"),
            thresholds: Thresholds::default(),
            rows: rows.to_vec(),
            passed: true,
        }
    }

    /// Returns the lines of a table, split into cells.
    fn table(report: &TransferReport, csv: bool, separator: &str) -> Vec<Vec<String>> {
        let options = match csv {
            true => FigureOptions::csv(),
            false => FigureOptions::default(),
        };
        let table = Table::new(report.plan.verb, options);
        let lines = std::iter::once(table.figures.head())
            .chain(report.rows.iter().map(|row| table.row(row)));
        let split = |line: String| match separator {
            "," => line.split(',').map(str::to_owned).collect(),
            _ => {
                assert!(line.chars().count() <= 100, "{line}");
                line.split_whitespace()
                    .map(str::to_owned)
                    .collect::<Vec<_>>()
            }
        };
        lines.map(split).collect()
    }

    #[test]
    fn text_csv_json_and_picture_have_the_same_numbers() {
        for verb in [Verb::WriteBw, Verb::WriteLat] {
            let report = report(verb);
            let json: Value = serde_json::to_value(&report).unwrap();
            let csv = table(&report, true, ",");
            let text = table(&report, false, " ");
            let picture = super::super::picture::svg(&report);
            for (at, row) in json["rows"].as_array().unwrap().iter().enumerate() {
                let cell = |name: &str| {
                    let column = csv[0].iter().position(|title| title == name).unwrap();
                    csv[at + 1][column].parse::<f64>().unwrap()
                };
                for (name, key) in [
                    ("size", "size"),
                    ("messages", "messages"),
                    ("gb_per_s", "gb_per_s"),
                    ("gbit_per_s", "gbit_per_s"),
                    ("mpps", "mpps"),
                    ("seconds", "seconds"),
                    ("verified_bytes", "verified_bytes"),
                ] {
                    assert_eq!(Some(cell(name)), row[key].as_f64(), "{verb} {name}");
                }
                for name in [
                    "min", "mean", "median", "p90", "p99", "p999", "p9999", "max", "stddev",
                ] {
                    let ns = row["latency"][format!("{name}_ns")].as_f64().unwrap();
                    assert_eq!(cell(&format!("{name}_us")), ns / 1000.0, "{verb} {name}");
                }
                // Text and picture round the same figures in the same way.
                let shown = &text[at + 1];
                assert_eq!(shown[0], row["size"].to_string());
                let drawn = match verb {
                    Verb::WriteBw => vec![cell("gbit_per_s")],
                    _ => vec![cell("median_us"), cell("p99_us")],
                };
                for value in drawn {
                    let value = figure(value);
                    assert!(shown.contains(&value), "{shown:?} has no {value}");
                    let title = format!("<title>{} bytes: {value} ", row["size"]);
                    assert!(picture.contains(&title), "{picture}");
                }
            }
        }
    }
}
