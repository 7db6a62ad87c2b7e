//! `--sweep` of `gdr copybw` and `gdr copylat`: all copy paths side by side.

mod picture;

use std::num::NonZeroU16;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use gdr_copy::default_threads;
use gdr_copy::plan::HostMemory;
use gdr_perf::CopyLibrary;
use gdr_perf::copysweep::{
    self, Choice, Costs, Event, Extent, Method, Report, ResidentPath, Row, Settings,
};
use gdr_perf::mapped_buffer::{BufferOptions, CopyDirection};
use gdr_render::Table;

use super::measurement::Measurement;
use super::{describe, say_simulated};
use crate::chart;
use crate::exit::Exit;
use crate::figures::{
    Cell, Column, DURATION, FigureOptions, Figures, RATE, SIMULATED, duration, rate,
};
use crate::global::Global;
use crate::gpu::GpuOptions;
use crate::gpu_context::{GpuContext, WithoutGpu};
use crate::output::Output;
use crate::units::{binary, figure};

/// Heights of a curve in one row of text, lowest first.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Time for one size on one path.
pub(super) const TIME: Duration = Duration::from_millis(20);

/// Options of a sweep.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct SweepOptions {
    /// Measure all copy paths, cuMemcpy and the planner's choice side by side, from 1 byte to the size
    /// of -s, to and from pageable and page-locked memory
    #[arg(long, conflicts_with_all = ["against", "writes", "reads"])]
    sweep: bool,

    /// Maximum number of threads per copy [default: one per CPU on the GPU's NUMA node, up to 4]
    #[arg(long, value_name = "N", requires = "sweep")]
    threads: Option<NonZeroU16>,

    /// Also measure reads by a resident kernel, and let the planner choose them
    #[arg(long, requires = "sweep")]
    resident: bool,

    /// Also measure the C functions copy_to_mapping and copy_from_mapping in this library, both declared
    /// as int (void *to, const void *from, size_t bytes); they return 0 on success
    #[arg(long, value_name = "FILE", requires = "sweep")]
    library: Option<PathBuf>,

    /// Write a plot of the sweep to this file
    #[arg(long, value_name = "FILE", requires = "sweep")]
    svg: Option<PathBuf>,
}

impl SweepOptions {
    pub(super) fn is_given(&self) -> bool {
        self.sweep
    }
}

/// The figure in the tables of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Microseconds.
    Time,
    /// GB/s.
    Rate,
}

impl Quantity {
    const fn title(self) -> &'static str {
        match self {
            Self::Time => "us, median",
            Self::Rate => "GB/s, median",
        }
    }

    /// Returns the value of a row.
    fn of(self, row: &Row) -> f64 {
        match self {
            Self::Time => row.copy.median_ns / 1000.0,
            // Bytes a nanosecond.
            Self::Rate => row.cell.size as f64 / row.copy.median_ns.max(0.001),
        }
    }
}

/// What to sweep.
pub(super) struct Sweep<'a> {
    pub(super) options: &'a SweepOptions,
    pub(super) memory: BufferOptions,
    pub(super) sizes: Vec<u64>,
    pub(super) offset: u64,
    pub(super) quantity: Quantity,
    pub(super) figures: FigureOptions,
    pub(super) gpu: &'a GpuOptions,
}

pub(super) fn run(global: &Global, sweep: Sweep<'_>, output: &mut Output) -> Result<Exit> {
    let library = sweep.options.library.as_deref();
    let library = library.map(CopyLibrary::load).transpose()?;
    let gpu = GpuContext::open(sweep.gpu, WithoutGpu::Exit)?;
    let threads = sweep.options.threads;
    let settings = Settings {
        memory: sweep.memory,
        sizes: sweep.sizes,
        offset: sweep.offset,
        max_threads: threads.unwrap_or_else(|| default_threads(gpu.target.gpu())),
        resident: match sweep.options.resident {
            true => ResidentPath::Measured,
            false => ResidentPath::LeftOut,
        },
        extent: Extent::Comparison,
        library: library.map(Arc::new),
        costs: Costs::OfUser,
        time: TIME,
    };
    match &gpu.simulated {
        Some(reason) if sweep.figures.csv => Output::simulated_aside(reason),
        _ if global.json => {}
        _ => say_simulated(&gpu, output)?,
    }
    let report = measure(global, &gpu, &settings)?;
    if let Some(path) = &sweep.options.svg {
        chart::write(path, &picture::svg(&report, sweep.quantity))?;
    }
    if global.json {
        output.json(&report)?;
    } else if sweep.figures.csv {
        let figures = Figures::new(sweep.figures, &[&ROW, &DURATION, &RATE, &[SIMULATED]]);
        figures.write(report.rows.iter().map(|row| cells(row, &report)), output)?;
    } else {
        show(&report, sweep.quantity, output)?;
    }
    Ok(Exit::Fine)
}

/// Runs the measurement, with a progress bar.
pub(super) fn measure(global: &Global, gpu: &GpuContext, settings: &Settings) -> Result<Report> {
    let mut measurement = Measurement::start(global, settings.steps())?;
    let result = copysweep::run(&gpu.target, settings, &mut |event| {
        match event {
            Event::Begin(cell) => {
                let (size, host) = (binary(cell.size), cell.host);
                measurement.begin(format_args!("{size} {}, {host}", cell.direction));
            }
            Event::Measured(rows) => measurement.end(&rows),
            _ => {}
        }
        measurement.flow(Ok(()))
    });
    measurement.finish(result)
}

const ROW: [Column; 4] = [
    Column::new("way", "way", 8),
    Column::new("host", "host", 11),
    Column::new("bytes", "size", 10),
    Column::new("path", "method", 11),
];

fn cells(row: &Row, report: &Report) -> Vec<Cell> {
    let mut cells = vec![
        Cell::text(row.cell.direction),
        Cell::text(row.cell.host),
        Cell::Count(row.cell.size),
        Cell::text(row.method),
    ];
    cells.extend(duration(&row.copy));
    cells.extend(rate(row.cell.size, Quantity::Rate.of(row)));
    cells.push(Cell::text(report.subject.simulated));
    cells
}

/// Rows of one direction and kind of memory.
struct Group<'a> {
    direction: CopyDirection,
    host: HostMemory,
    rows: Vec<&'a Row>,
    choices: Vec<&'a Choice>,
}

impl<'a> Group<'a> {
    fn all(report: &'a Report) -> Vec<Self> {
        let mut groups = Vec::new();
        for direction in CopyDirection::ALL {
            for host in HostMemory::ALL {
                let is_in =
                    |cell: &copysweep::SweepCell| (cell.direction, cell.host) == (direction, host);
                groups.push(Self {
                    direction,
                    host,
                    rows: report.rows.iter().filter(|row| is_in(&row.cell)).collect(),
                    choices: report
                        .choices
                        .iter()
                        .filter(|row| is_in(&row.cell))
                        .collect(),
                });
            }
        }
        groups
    }

    fn methods(&self) -> Vec<Method> {
        let mut methods: Vec<_> = self.rows.iter().map(|row| row.method).collect();
        methods.sort_unstable();
        methods.dedup();
        methods
    }

    /// Returns the values of a method by size.
    fn points(&self, method: Method, quantity: Quantity) -> Vec<(u64, f64)> {
        let rows = self.rows.iter().filter(|row| row.method == method);
        rows.map(|row| (row.cell.size, quantity.of(row))).collect()
    }
}

/// Prints the tables, and a curve of text for each path.
fn show(report: &Report, quantity: Quantity, output: &mut Output) -> gdr_perf::Result<()> {
    output.line(describe(&report.subject))?;
    let how = format!(
        "{}, {} mapping, routine {}, up to {} threads, {}",
        report.cpu,
        report.caching,
        report.routine,
        report.max_threads,
        planned_by(report)
    );
    output.paragraph("", "  ", &how)?;
    for group in Group::all(report) {
        let methods = group.methods();
        let Group {
            direction, host, ..
        } = group;
        output.line(format_args!(
            "\n{direction}, {host} memory ({})",
            quantity.title()
        ))?;
        // The last column shows the cost of the planned copies.
        let single = methods.iter().filter(|method| **method != Method::Planned);
        let names: Vec<String> = single.map(ToString::to_string).collect();
        let names = names.iter().map(String::as_str);
        let heads: Vec<&str> = ["size"]
            .into_iter()
            .chain(names)
            .chain(["choice, to best"])
            .collect();
        let mut table = Table::new(&heads).align_right(0..heads.len() - 1);
        for choice in &group.choices {
            let size = choice.cell.size;
            let single = |row: &&&Row| row.cell.size == size && row.method != Method::Planned;
            let rows = group.rows.iter().filter(single);
            let values = rows.map(|row| figure(quantity.of(row)));
            let last = format!("{} {:.2}x", choice.path, choice.ratio);
            let cells = [binary(size)].into_iter().chain(values).chain([last]);
            table.row(cells.collect());
        }
        output.table(&table)?;
        for method in methods {
            let values = group.points(method, quantity);
            let values: Vec<f64> = values.into_iter().map(|(_, value)| value).collect();
            output.line(format_args!(" {method:>11} {}", curve(&values)))?;
        }
    }
    if let Some(worst) = report.worst_choice() {
        let text = format!(
            "the choice that is slowest relative to the fastest path: {} {} ({} memory): a planned copy by \
             {} takes {:.2} times as long as one by {} alone",
            binary(worst.cell.size),
            worst.cell.direction,
            worst.cell.host,
            worst.path,
            worst.ratio,
            worst.best
        );
        output.line("")?;
        output.paragraph("", "  ", &text)?;
    }
    Ok(())
}

/// Returns the costs that the planner knew, and the library beside it.
fn planned_by(report: &Report) -> String {
    let planned = format!("planned by {}", report.costs);
    match &report.library {
        Some(file) => format!("{planned}; library: {}", file.display()),
        None => planned,
    }
}

/// Draws a curve in one line of text: the logarithms of the values, scaled from the lowest to the highest.
fn curve(values: &[f64]) -> String {
    let logarithms: Vec<f64> = values.iter().map(|value| value.max(1e-9).ln()).collect();
    let low = logarithms.iter().copied().fold(f64::INFINITY, f64::min);
    let high = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = (high - low).max(f64::MIN_POSITIVE);
    let height = |value: f64| {
        let at = (value - low) / range * (HEIGHTS.len() - 1) as f64;
        HEIGHTS[(at.round() as usize).min(HEIGHTS.len() - 1)]
    };
    logarithms.into_iter().map(height).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_of_text_goes_from_the_lowest_value_to_the_highest() {
        assert_eq!(curve(&[1.0, 10.0, 1e7]), "▁▂█");
        assert_eq!(curve(&[5.0, 5.0]), "▁▁");
        assert_eq!(curve(&[]), "");
    }
}
