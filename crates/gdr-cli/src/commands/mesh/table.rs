//! The matrix of `gdr mesh` as text.

use gdr_perf::Result;
use gdr_perf::mesh::{Cell, CellOutcome, Link, MeshReport, Outlier};

use crate::output::Output;
use crate::units::figure;

/// More columns than this do not fit in 100 characters.
const MOST_COLUMNS: usize = 12;

/// Writes the ranks, the matrix and the outliers.
pub(super) fn write(report: &MeshReport, output: &mut Output) -> Result<()> {
    for member in &report.members {
        let gpu = member.gpu.as_deref().unwrap_or("host memory");
        output.line(format_args!(
            "rank {:<4} {}, {}, {gpu}",
            member.rank, member.host, member.device
        ))?;
    }
    if report.ranks <= MOST_COLUMNS {
        matrix(report, output)?;
    }
    output.line("")?;
    for expected in &report.expected {
        let link = name(expected.link);
        let rates = report
            .cells
            .iter()
            .filter(|cell| cell.link == expected.link)
            .filter_map(Cell::gb_per_s);
        let slowest = rates.clone().fold(f64::INFINITY, f64::min);
        let fastest = rates.fold(0.0, f64::max);
        output.line(format_args!(
            "{link}: {} directions, median {} GB/s ({} Gb/s), {} to {} GB/s",
            expected.measured,
            figure(expected.median_gb_per_s),
            figure(expected.median_gb_per_s * 8.0),
            figure(slowest),
            figure(fastest)
        ))?;
    }
    let indent = "          ";
    if !report.absent.is_empty() {
        let absent: Vec<String> = report.absent.iter().map(ToString::to_string).collect();
        let text = format!(
            "did not join in time: rank {}. See the messages of these processes.",
            absent.join(", ")
        );
        output.paragraph("absent    ", indent, &text)?;
    }
    for outlier in &report.outliers {
        output.paragraph("outlier   ", indent, &sentence(outlier))?;
    }
    let directions = report.ranks * (report.ranks - 1);
    output.line(match report.passed {
        true => format!(
            "PASS: {directions} directions between {} ranks, all bytes compared",
            report.ranks
        ),
        false => format!(
            "FAIL: {} of {directions} directions between {} ranks measured, all bytes compared",
            report.cells.iter().filter_map(Cell::gb_per_s).count(),
            report.ranks
        ),
    })
}

fn matrix(report: &MeshReport, output: &mut Output) -> Result<()> {
    output.line("\nGB/s from the rank of the line to that of the column")?;
    let line = |head: String, cells: Vec<String>| {
        let cells: String = cells.iter().map(|cell| format!(" {cell:>6}")).collect();
        format!("{head:<9}{cells}").trim_end().to_owned()
    };
    let ranks = || 0..report.ranks;
    output.line(line(
        String::new(),
        ranks().map(|rank| rank.to_string()).collect(),
    ))?;
    for from in ranks() {
        let cells = ranks().map(|to| {
            if from == to {
                return "-".to_owned();
            }
            let is_here = |cell: &&Cell| (cell.from, cell.to) == (from, to);
            match report.cells.iter().find(is_here).map(|cell| &cell.outcome) {
                Some(CellOutcome::Measured { gb_per_s }) => format!("{gb_per_s:.2}"),
                Some(CellOutcome::Failed { .. }) => "failed".to_owned(),
                None => "?".to_owned(),
            }
        });
        output.line(line(format!("rank {from}"), cells.collect()))?;
    }
    Ok(())
}

fn name(link: Link) -> &'static str {
    match link {
        Link::SameHost => "on one host",
        Link::BetweenHosts => "between hosts",
    }
}

fn sentence(outlier: &Outlier) -> String {
    let (subject, of_expected, reason) = match outlier {
        Outlier::Rank {
            rank,
            affected,
            of,
            of_expected,
            reason,
        } => (
            format!("rank {rank}: {affected} of its {of} directions"),
            of_expected,
            reason,
        ),
        Outlier::Direction {
            from,
            to,
            of_expected,
            reason,
        } => (format!("rank {from} to rank {to}"), of_expected, reason),
    };
    let what = match (of_expected, reason) {
        (_, Some(reason)) => format!("failed: {reason}"),
        (Some(part), None) => format!(
            "at {:.0} % of the expected rate. `gdr doctor` on its host names likely causes",
            part * 100.0
        ),
        (None, None) => "not measured".to_owned(),
    };
    format!("{subject} {what}")
}
