//! What `gdr loopback --sweep` prints.

use gdr_perf::Result;
use gdr_perf::loopback::{Operation, Row, Sweep, SweepEvent, Way};

use crate::commands::describe;
use crate::output::Output;

/// A table for each operation, its lines as they are measured.
#[derive(Debug, Default)]
pub(super) struct Table {
    operation: Option<Operation>,
}

impl Table {
    pub(super) fn event(&mut self, event: &SweepEvent<'_>, output: &mut Output) -> Result<()> {
        match event {
            SweepEvent::Ready(sweep) => introduce(sweep, output),
            SweepEvent::Measured(rows) => self.rows(rows, output),
            _ => Ok(()),
        }
    }

    fn rows(&mut self, rows: &[Row], output: &mut Output) -> Result<()> {
        let Some(first) = rows.first() else {
            return Ok(());
        };
        if self.operation != Some(first.operation) {
            self.operation = Some(first.operation);
            head(first.operation, rows, output)?;
        }
        let mut line = format!("{:>10}", first.size);
        for row in rows {
            line += &latency(row);
        }
        for row in rows {
            line += &format!("  {:>7.3}", row.gb_per_s);
        }
        if let Some((latency, bandwidth)) = ratios(rows) {
            line += &format!("  {latency:>7.2}x  {bandwidth:>7.2}x");
        }
        output.line(line)
    }

    /// The lines below the tables.
    pub(super) fn end(&self, sweep: &Sweep, output: &mut Output) -> Result<()> {
        output.line("")?;
        if let Some(bytes) = sweep.long_reads_from {
            output.line(format_args!(
                "direct READs of {bytes} bytes and more were made by the GPU's copy engine, as was \
                 faster here"
            ))?;
        }
        if sweep.subject.simulated {
            output.line("simulated GPU: what is said of GPU memory says nothing of hardware")?;
        }
        output.line("the first and last MiB of every row was compared and arrived")
    }
}

fn introduce(sweep: &Sweep, output: &mut Output) -> Result<()> {
    for (what, end) in [("from", &sweep.path.from), ("to", &sweep.path.to)] {
        output.line(format_args!(
            "{what:<9} {}, UDP {}, {}",
            end.device, end.address, end.provider
        ))?;
    }
    output.line(format_args!(
        "GPU       {}, {}",
        describe(&sweep.subject),
        sweep.allocated_by
    ))?;
    output.line(format_args!("path MTU  {}", sweep.path.mtu))?;
    match &sweep.direct_missing {
        Some(reason) => output.line(format_args!("direct    not measured: {reason}")),
        None => Ok(()),
    }
}

fn head(operation: Operation, rows: &[Row], output: &mut Output) -> Result<()> {
    let ways = || rows.iter().map(|row| row.way);
    output.line(format_args!(
        "\n{operation}: microseconds from post to completion, median and p99; GB/s, several in \
         flight"
    ))?;
    if ratios(rows).is_some() {
        output.line(
            "then how many times lower the latency, and how many times higher the rate, is direct \
             than staged",
        )?;
    }
    let mut line = format!("{:>10}", "bytes");
    for way in ways() {
        line += &format!("  {:>8} {:>9}", way, "p99");
    }
    for way in ways() {
        line += &format!("  {way:>7}");
    }
    if ratios(rows).is_some() {
        line += "     lower    higher";
    }
    output.line(line)
}

fn latency(row: &Row) -> String {
    let p99 = row.latency.p99_ns / 1000.0;
    format!("  {:>8.2} {p99:>9.2}", row.latency.median_us())
}

/// How many times lower direct latency is than staged, and how many times higher its bandwidth.
fn ratios(rows: &[Row]) -> Option<(f64, f64)> {
    let of = |way: Way| rows.iter().find(|row| row.way == way);
    let (direct, staged) = (of(Way::Direct)?, of(Way::Staged)?);
    Some((
        staged.latency.median_ns / direct.latency.median_ns,
        direct.gb_per_s / staged.gb_per_s,
    ))
}
