//! The matrix of `gdr mesh` as SVG.

use gdr_node::render::Escaped;
use gdr_perf::mesh::{Cell, CellOutcome, MeshReport, OutlierSubject};

use super::outliers;
use super::table::name;
use crate::chart::{FAINT, WARNING, put};
use crate::units::figure;
use crate::wrap::filled;

/// The width of the picture, and of what is beside the map: numbers of ranks, margins.
const WIDTH: usize = 900;
const LEFT: usize = 90;
const RIGHT: usize = 30;
/// The longest and the shortest edge of a cell. A map with more ranks makes the picture wider.
const LONGEST: usize = 120;
const SHORTEST: usize = 14;
/// The edge of cells that have room for their figures.
const WITH_FIGURES: usize = 44;
/// The height of a line of text, and the characters that fit into 100 of the width.
const LINE: usize = 18;
const CHARACTERS: usize = 15;
/// The length and the height of the scale.
const SCALE: (usize, usize) = (240, 12);

/// Shares of the expected rate and their colours, which people who see no red or no green tell apart, too.
const COLORS: [(f64, [f64; 3]); 4] = [
    (0.0, [127.0, 39.0, 4.0]),
    (0.5, [241.0, 145.0, 67.0]),
    (0.75, [253.0, 228.0, 190.0]),
    (1.0, [33.0, 102.0, 172.0]),
];
const FAILED: &str = "#57606a";

/// The picture of a report. A direction has the colour of its rate as a part of the expected one; its
/// title has the figures. Directions of outliers have a frame, ranks that are outliers a red number, and
/// what is expected and the outliers stand below in words.
pub(super) fn svg(report: &MeshReport) -> String {
    let edge = ((WIDTH - LEFT - RIGHT) / report.ranks.max(1)).clamp(SHORTEST, LONGEST);
    let side = report.ranks * edge;
    let width = (LEFT + side + RIGHT).max(WIDTH);
    let lines = lines(report, (width - LEFT - RIGHT) * CHARACTERS / 100);
    // Below the title, the note of a simulation, and the scale with its labels.
    let scale = 48 + LINE * usize::from(report.simulated);
    let top = scale + 70;
    let words = top + side + 34;
    let height = words + LINE * lines.len() + 8;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"system-ui, 'DejaVu Sans', sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"28\" \
         font-size=\"16\" font-weight=\"600\">gdr mesh: GB/s from the rank of the row to the rank of \
         the column</text>\n"
    );
    if report.simulated {
        put(
            &mut text,
            format_args!(
                "<text x=\"{LEFT}\" y=\"46\" fill=\"{WARNING}\">SIMULATED: these figures describe no \
                 hardware</text>"
            ),
        );
    }
    draw_scale(report, scale, &mut text);
    draw_ranks(report, top, edge, &mut text);
    // A later frame is above the cells before it.
    let (framed, plain): (Vec<&Cell>, Vec<&Cell>) = report
        .cells
        .iter()
        .partition(|cell| report.outlier_of(cell).is_some());
    for cell in plain.into_iter().chain(framed) {
        draw_cell(report, cell, top, edge, &mut text);
    }
    for (at, line) in lines.iter().enumerate() {
        let y = words + LINE * at;
        put(
            &mut text,
            format_args!("<text x=\"{LEFT}\" y=\"{y}\">{}</text>", Escaped(line)),
        );
    }
    text + "</svg>\n"
}

/// Draws which colour means which part of the expected rate, and from where on it passes.
fn draw_scale(report: &MeshReport, y: usize, text: &mut String) {
    let (length, height) = SCALE;
    put(
        text,
        format_args!("<defs><linearGradient id=\"part\" x1=\"0\" x2=\"1\" y1=\"0\" y2=\"0\">"),
    );
    for (part, _) in COLORS {
        put(
            text,
            format_args!("<stop offset=\"{part}\" stop-color=\"{}\"/>", color(part).0),
        );
    }
    put(
        text,
        format_args!(
            "</linearGradient></defs>\n<rect x=\"{LEFT}\" y=\"{y}\" width=\"{length}\" \
             height=\"{height}\" fill=\"url(#part)\"/>"
        ),
    );
    let labels = [
        (0.0, "0"),
        (0.5, "50"),
        (1.0, "100 % of the expected rate and more"),
    ];
    let below = y + height + 14;
    for (part, label) in labels {
        let x = LEFT + (part * length as f64) as usize;
        put(
            text,
            format_args!("<text x=\"{x}\" y=\"{below}\" fill=\"{FAINT}\">{label}</text>"),
        );
    }
    if report.least > 0.0 {
        let x = LEFT + (report.least.min(1.0) * length as f64) as usize;
        put(
            text,
            format_args!(
                "<line x1=\"{x}\" y1=\"{}\" x2=\"{x}\" y2=\"{}\" stroke=\"black\" stroke-width=\"2\"/>",
                y - 4,
                y + height + 4
            ),
        );
    }
    let x = LEFT + length + 270;
    put(
        text,
        format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{height}\" height=\"{height}\" fill=\"{FAILED}\"/>\n<text \
             x=\"{}\" y=\"{}\" fill=\"{FAINT}\">failed</text>",
            x + height + 6,
            y + height - 1
        ),
    );
}

/// Writes the numbers of the ranks, as many as have room.
fn draw_ranks(report: &MeshReport, top: usize, edge: usize, text: &mut String) {
    for rank in 0..report.ranks {
        let middle = rank * edge + edge / 2;
        let fill = match is_named(report, rank) {
            true => WARNING,
            false => "black",
        };
        put(
            text,
            format_args!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{fill}\">{rank}</text>\n<text \
                 x=\"{}\" y=\"{}\" text-anchor=\"end\" fill=\"{fill}\">{rank}</text>",
                LEFT + middle,
                top - 7,
                LEFT - 8,
                top + middle + 4
            ),
        );
    }
}

fn draw_cell(report: &MeshReport, cell: &Cell, top: usize, edge: usize, text: &mut String) {
    let (x, y) = (LEFT + cell.to * edge, top + cell.from * edge);
    let (stroke, wide) = match report.outlier_of(cell) {
        Some(_) => ("black", 2),
        None => ("white", 1),
    };
    let (fill, ink) = match report.part_of_expected(cell) {
        Some(part) => color(part),
        None => (FAILED.to_owned(), "white"),
    };
    put(
        text,
        format_args!(
            "<rect x=\"{x}\" y=\"{y}\" width=\"{edge}\" height=\"{edge}\" fill=\"{fill}\" \
             stroke=\"{stroke}\" stroke-width=\"{wide}\"><title>{}</title></rect>",
            Escaped(&title(report, cell))
        ),
    );
    if edge >= WITH_FIGURES {
        let shown = cell.gb_per_s().map_or_else(|| "failed".to_owned(), figure);
        put(
            text,
            format_args!(
                "<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\" \
                 pointer-events=\"none\">{shown}</text>",
                x + edge / 2,
                y + edge / 2 + 4
            ),
        );
    }
}

/// Whether a rank is absent or an outlier as a whole.
fn is_named(report: &MeshReport, number: usize) -> bool {
    let is_it = |subject: OutlierSubject| match subject {
        OutlierSubject::Rank { rank, .. } => rank == number,
        OutlierSubject::Direction { .. } => false,
    };
    report.absent.contains(&number) || report.outliers.iter().any(|it| is_it(it.subject))
}

/// What is expected, and the outliers with their causes, in lines of at most `width` characters.
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
    let listed = report.outliers.iter().take(outliers::MOST_LISTED);
    paragraphs.extend(listed.map(|outlier| outliers::sentence(report, outlier)));
    paragraphs.extend(outliers::not_listed(report));
    paragraphs.extend(outliers::causes_of_all(report));
    let lines = paragraphs
        .iter()
        .flat_map(|paragraph| filled(paragraph, width));
    lines.collect()
}

fn title(report: &MeshReport, cell: &Cell) -> String {
    let outcome = match (&cell.outcome, report.part_of_expected(cell)) {
        (CellOutcome::Measured { gb_per_s, .. }, Some(part)) => format!(
            "{} GB/s, {} % of what is expected",
            figure(*gb_per_s),
            figure(part * 100.0)
        ),
        (CellOutcome::Measured { gb_per_s, .. }, None) => format!("{} GB/s", figure(*gb_per_s)),
        (CellOutcome::Failed { reason }, _) => format!("failed: {reason}"),
    };
    let direction = format!("rank {} to rank {}: {outcome}", cell.from, cell.to);
    match report.outlier_of(cell) {
        Some(outlier) => format!("{direction}; outlier: {}", outlier.subject),
        None => direction,
    }
}

/// The colour of a cell by its part of the expected rate, and the colour of the letters in it.
fn color(part: f64) -> (String, &'static str) {
    let part = part.clamp(0.0, 1.0);
    let mixed = COLORS.windows(2).find_map(|pair| match pair {
        [(from, low), (to, high)] if part <= *to => {
            let share = (part - from) / (to - from);
            Some([0, 1, 2].map(|at| low[at] + (high[at] - low[at]) * share))
        }
        _ => None,
    });
    let [red, green, blue] = mixed.unwrap_or_default();
    let ink = match 0.3 * red + 0.59 * green + 0.11 * blue > 140.0 {
        true => "black",
        false => "white",
    };
    (
        format!("#{:02x}{:02x}{:02x}", red as u8, green as u8, blue as u8),
        ink,
    )
}
