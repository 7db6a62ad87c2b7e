//! The matrix of `gdr mesh` as SVG.

use std::fmt::Write as _;

use gdr_node::render::Escaped;
use gdr_perf::mesh::{Cell, CellOutcome, MeshReport};

use crate::units::figure;

/// The length of a cell's edge, and the space for titles.
const EDGE: usize = 18;
const MARGIN: usize = 60;

/// The picture of a report. A direction has the colour of its rate as a part of the expected one;
/// its title has the figures.
pub(super) fn svg(report: &MeshReport) -> String {
    let side = MARGIN + report.ranks * EDGE;
    let (width, height) = (side + 240, side + 20);
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
            "<text x=\"{MARGIN}\" y=\"32\" fill=\"#d1242f\">SIMULATED: these figures describe no \
             hardware</text>"
        );
    }
    for rank in 0..report.ranks {
        let middle = MARGIN + rank * EDGE + EDGE / 2;
        let _ = writeln!(
            text,
            "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{rank}</text>\n<text x=\"{}\" \
             y=\"{}\" text-anchor=\"end\">{rank}</text>",
            MARGIN - 6,
            MARGIN - 6,
            middle + 4
        );
    }
    for cell in &report.cells {
        let _ = writeln!(
            text,
            "<rect x=\"{}\" y=\"{}\" width=\"{EDGE}\" height=\"{EDGE}\" fill=\"{}\" \
             stroke=\"white\"><title>{}</title></rect>",
            MARGIN + cell.to * EDGE,
            MARGIN + cell.from * EDGE,
            color(report, cell),
            Escaped(&title(cell))
        );
    }
    text + "</svg>\n"
}

fn title(cell: &Cell) -> String {
    let outcome = match &cell.outcome {
        CellOutcome::Measured { gb_per_s } => format!("{} GB/s", figure(*gb_per_s)),
        CellOutcome::Failed { reason } => format!("failed: {reason}"),
    };
    format!("rank {} to rank {}: {outcome}", cell.from, cell.to)
}

/// From red, nothing, over yellow, half, to green: the expected rate and more.
fn color(report: &MeshReport, cell: &Cell) -> String {
    let expected = report.expected.iter().find(|e| e.link == cell.link);
    let part = cell
        .gb_per_s()
        .zip(expected)
        .map(|(rate, expected)| rate / expected.median_gb_per_s);
    match part {
        Some(part) => format!("hsl({:.0},70%,50%)", part.clamp(0.0, 1.0) * 120.0),
        None => "#555555".to_owned(),
    }
}
