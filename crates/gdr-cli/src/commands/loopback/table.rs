//! Tables of `gdr loopback --sweep`.

use gdr_perf::Result;
use gdr_perf::loopback::{DirectRatio, Operation, PathKind, Row, Sweep, SweepEvent};

use crate::commands::describe;
use crate::figures::{
    Cell, Column, DURATION, FigureOptions, Figures, RATE, SIMULATED, duration, rate,
};
use crate::output::Output;

const ROW: [Column; 3] = [
    Column::csv("operation"),
    Column::new("bytes", "size", 10),
    Column::new("memory", "memory", 7),
];

/// Ratios of direct to staged.
const RATIOS: [Column; 3] = [
    Column::new("latency", "times_lower_latency_than_staged", 8),
    Column::new("rate", "times_higher_rate_than_staged", 7),
    SIMULATED,
];

/// A table per operation, written row by row.
pub(super) struct Table {
    options: FigureOptions,
    figures: Figures,
    operation: Option<Operation>,
    is_simulated: bool,
}

impl Table {
    pub(super) fn new(options: FigureOptions) -> Self {
        Self {
            options,
            figures: Figures::new(options, &[&ROW, &DURATION, &RATE, &RATIOS]),
            operation: None,
            is_simulated: false,
        }
    }

    pub(super) fn event(&mut self, event: &SweepEvent<'_>, output: &mut Output) -> Result<()> {
        match event {
            SweepEvent::Ready(sweep) => {
                self.is_simulated = sweep.subject.simulated;
                match self.options.csv {
                    true => output.line(self.figures.head()),
                    false => introduce(sweep, output),
                }
            }
            SweepEvent::Measured(rows) => self.rows(rows, output),
            _ => Ok(()),
        }
    }

    fn rows(&mut self, rows: &[Row], output: &mut Output) -> Result<()> {
        let Some(first) = rows.first() else {
            return Ok(());
        };
        let ratio = DirectRatio::of(rows);
        if self.operation != Some(first.operation) && !self.options.csv {
            self.operation = Some(first.operation);
            output.line(format_args!(
                "\n{}: from post to completion one by one, and the rate of several in flight",
                first.operation
            ))?;
            if ratio.is_some() {
                output.line(
                    "direct compared with staged: how many times lower its latency is, and higher its rate",
                )?;
            }
            output.line(self.figures.head())?;
        }
        for row in rows {
            let ratio = ratio.filter(|_| row.kind == PathKind::Direct);
            let mut cells = vec![
                Cell::text(row.operation),
                Cell::Count(row.size),
                Cell::text(row.kind),
            ];
            cells.extend(duration(&row.latency));
            cells.extend(rate(row.size, row.gb_per_s));
            cells.extend([
                Cell::Ratio(ratio.map(|ratio| ratio.latency)),
                Cell::Ratio(ratio.map(|ratio| ratio.rate)),
                Cell::text(self.is_simulated),
            ]);
            output.line(self.figures.row(&cells))?;
        }
        Ok(())
    }

    /// Writes the lines below the tables.
    pub(super) fn end(&self, sweep: &Sweep, output: &mut Output) -> Result<()> {
        if self.options.csv {
            return Ok(());
        }
        output.line("")?;
        if let Some(bytes) = sweep.long_reads_from {
            output.line(format_args!(
                "direct READs of {bytes} bytes and more used the GPU's copy engine, which was faster here"
            ))?;
        }
        if let Some(slowest) = sweep.slowest_direct() {
            output.line(format_args!(
                "direct at its slowest relative to staged: {} of {} bytes, latency {:.2}x, rate {:.2}x",
                slowest.operation, slowest.size, slowest.latency, slowest.rate
            ))?;
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
