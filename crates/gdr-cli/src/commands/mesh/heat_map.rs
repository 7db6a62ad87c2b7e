//! The matrix of `gdr mesh` as SVG.

use std::fmt::Write as _;

use gdr_node::render::Escaped;
use gdr_perf::mesh::{Cell, CellOutcome, MeshReport, OutlierSubject};

use super::outliers;
use super::table::name;
use crate::units::figure;

/// The length of a cell's edge, the space for titles, and the height of a line of text.
const EDGE: usize = 18;
const MARGIN: usize = 60;
const LINE: usize = 16;
/// The least width, and how many characters of the text have 100 of it.
const LEAST_WIDTH: usize = 640;
const CHARACTERS: usize = 16;
const RED: &str = "#d1242f";

/// The picture of a report. A direction has the colour of its rate as a part of the expected one; its
/// title has the figures. Directions of outliers have a frame, ranks that are outliers a red number, and
/// what is expected and the outliers stand below in words.
pub(super) fn svg(report: &MeshReport) -> String {
    let side = MARGIN + report.ranks * EDGE;
    let width = (side + MARGIN).max(LEAST_WIDTH);
    let lines = lines(report, (width - 2 * MARGIN) * CHARACTERS / 100);
    let height = side + LINE * (lines.len() + 2);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"{width}\" height=\"{height}\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"16\" font-size=\"14\">gdr mesh: rate from row to \
         column, as a part of the expected one</text>\n"
    );
    // Writing to a String does not fail.
    if report.simulated {
        let _ = writeln!(
            text,
            "<text x=\"{MARGIN}\" y=\"32\" fill=\"{RED}\">SIMULATED: these figures describe no \
             hardware</text>"
        );
    }
    for rank in 0..report.ranks {
        let middle = MARGIN + rank * EDGE + EDGE / 2;
        let fill = match is_named(report, rank) {
            true => RED,
            false => "black",
        };
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\" fill=\"{fill}\">{rank}</text>\n<text \
             x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{fill}\">{rank}</text>",
            MARGIN - 6,
            MARGIN - 6,
            middle + 4
        );
    }
    // A later frame is above the cells before it.
    let (framed, plain): (Vec<&Cell>, Vec<&Cell>) = report
        .cells
        .iter()
        .partition(|cell| report.outlier_of(cell).is_some());
    for (cells, stroke) in [(plain, "white"), (framed, "black")] {
        for cell in cells {
            let _ = writeln!(
                text,
                "<rect x=\"{}\" y=\"{}\" width=\"{EDGE}\" height=\"{EDGE}\" fill=\"{}\" \
                 stroke=\"{stroke}\"><title>{}</title></rect>",
                MARGIN + cell.to * EDGE,
                MARGIN + cell.from * EDGE,
                color(report, cell),
                Escaped(&title(report, cell))
            );
        }
    }
    for (at, line) in lines.iter().enumerate() {
        let y = side + LINE * (at + 2);
        let _ = writeln!(
            text,
            "<text x=\"{MARGIN}\" y=\"{y}\">{}</text>",
            Escaped(line)
        );
    }
    text + "</svg>\n"
}

/// Whether a rank is absent or an outlier as a whole.
fn is_named(report: &MeshReport, number: usize) -> bool {
    let is_it = |subject: OutlierSubject| match subject {
        OutlierSubject::Rank { rank, .. } => rank == number,
        OutlierSubject::Direction { .. } => false,
    };
    report.absent.contains(&number) || report.outliers.iter().any(|it| is_it(it.subject))
}

/// What is expected, and the outliers, in lines of at most `width` characters.
fn lines(report: &MeshReport, width: usize) -> Vec<String> {
    let mut paragraphs: Vec<String> = report
        .expected
        .iter()
        .map(|expected| {
            let rate = figure(expected.median_gb_per_s);
            format!("expected {}: {rate} GB/s", name(expected.link))
        })
        .collect();
    if !report.absent.is_empty() {
        let absent: Vec<String> = report.absent.iter().map(ToString::to_string).collect();
        paragraphs.push(format!("did not join: rank {}", absent.join(", ")));
    }
    for outlier in report.outliers.iter().take(outliers::MOST_LISTED) {
        paragraphs.push(outliers::sentence(report, outlier));
        paragraphs.extend(outliers::causes(outlier));
    }
    paragraphs.extend(outliers::not_listed(report));
    paragraphs
        .iter()
        .flat_map(|paragraph| wrapped(paragraph, width))
        .collect()
}

/// A word that is longer than a line has one of its own.
fn wrapped(paragraph: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in paragraph.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > width {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines.push(line);
    lines
}

fn title(report: &MeshReport, cell: &Cell) -> String {
    let outcome = match (&cell.outcome, report.part_of_expected(cell)) {
        (CellOutcome::Measured { gb_per_s }, Some(part)) => format!(
            "{} GB/s, {} % of what is expected",
            figure(*gb_per_s),
            figure(part * 100.0)
        ),
        (CellOutcome::Measured { gb_per_s }, None) => format!("{} GB/s", figure(*gb_per_s)),
        (CellOutcome::Failed { reason }, _) => format!("failed: {reason}"),
    };
    let direction = format!("rank {} to rank {}: {outcome}", cell.from, cell.to);
    match report.outlier_of(cell) {
        Some(outlier) => format!("{direction}; outlier: {}", outlier.subject),
        None => direction,
    }
}

/// From red, nothing, over yellow, half, to green: the expected rate and more.
fn color(report: &MeshReport, cell: &Cell) -> String {
    match report.part_of_expected(cell) {
        Some(part) => format!("hsl({:.0},70%,50%)", part.clamp(0.0, 1.0) * 120.0),
        None => "#555555".to_owned(),
    }
}
