//! Matrix of `gdr mesh` as SVG.

use gdr_perf::mesh::{Cell, CellOutcome, MeshReport, OutlierSubject};
use gdr_render::svg::Element;
use gdr_render::wrap::filled;

use super::outliers;
use super::table::name;
use crate::chart::{WARNING, faint, on_white, simulated, title};
use crate::units::figure;

/// Width of the picture, and of what is beside the map: rank numbers and margins.
const WIDTH: f64 = 900.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
/// Longest and shortest edge of a cell. A map with more ranks makes the picture wider.
const LONGEST: f64 = 120.0;
const SHORTEST: f64 = 14.0;
/// Minimum edge of cells with room for their figures.
const WITH_FIGURES: f64 = 44.0;
/// Height of a line of text, and width of a character.
const LINE: f64 = 18.0;
const CHARACTER: f64 = 6.7;
/// Length and height of the scale.
const SCALE: (f64, f64) = (240.0, 12.0);

/// Shares of the expected rate and their colours, distinguishable with red-green colour blindness.
const COLORS: [(f64, [f64; 3]); 4] = [
    (0.0, [127.0, 39.0, 4.0]),
    (0.5, [241.0, 145.0, 67.0]),
    (0.75, [253.0, 228.0, 190.0]),
    (1.0, [33.0, 102.0, 172.0]),
];
const FAILED: &str = "#57606a";

/// Draws a report. The colour of a direction is its rate relative to the expected one, and its title has the figures.
/// Outlier directions have a frame, and outlier ranks a red number. The expected rates and the outliers follow below in
/// words.
pub(super) fn svg(report: &MeshReport) -> String {
    let edge = ((WIDTH - LEFT - RIGHT) / report.ranks.max(1) as f64).floor();
    let edge = edge.clamp(SHORTEST, LONGEST);
    let side = report.ranks as f64 * edge;
    let width = (LEFT + side + RIGHT).max(WIDTH);
    let lines = lines(report, ((width - LEFT - RIGHT) / CHARACTER) as usize);
    // Below the title: the note about a simulation, and the scale with its labels.
    let scale = if report.simulated { 48.0 + LINE } else { 48.0 };
    let top = scale + 70.0;
    let words = top + side + 34.0;
    let height = words + LINE * lines.len() as f64 + 8.0;
    let mut text = String::new();
    let what = "gdr mesh: GB/s from the rank of the row to the rank of the column";
    title((LEFT, 28.0), what).put(&mut text);
    if report.simulated {
        simulated((LEFT, 46.0)).put(&mut text);
    }
    draw_scale(report, scale, &mut text);
    draw_ranks(report, top, edge, &mut text);
    // A later frame is drawn above the earlier cells.
    let (framed, plain): (Vec<&Cell>, Vec<&Cell>) = report
        .cells
        .iter()
        .partition(|cell| report.outlier_of(cell).is_some());
    for cell in plain.into_iter().chain(framed) {
        draw_cell(report, cell, top, edge, &mut text);
    }
    for (at, line) in lines.iter().enumerate() {
        Element::text((LEFT, words + LINE * at as f64), line).put(&mut text);
    }
    on_white((width, height), &text)
}

/// Draws the scale: which colour means which part of the expected rate, and from where on it passes.
fn draw_scale(report: &MeshReport, y: f64, text: &mut String) {
    let (length, height) = SCALE;
    let gradient = Element::new("linearGradient")
        .with("id", "part")
        .pair(["x1", "x2"], (0.0, 1.0))
        .pair(["y1", "y2"], (0.0, 0.0));
    let gradient = COLORS.iter().fold(gradient, |gradient, (part, _)| {
        let stop = Element::new("stop").with("offset", part);
        gradient.containing(stop.with("stop-color", color(*part).0))
    });
    Element::new("defs").containing(gradient).put(text);
    let bar = Element::rect((LEFT, y), SCALE);
    bar.with("fill", "url(#part)").put(text);
    for (part, label) in [
        (0.0, "0"),
        (0.5, "50"),
        (1.0, "100 % of the expected rate and more"),
    ] {
        faint((LEFT + part * length, y + height + 14.0), label).put(text);
    }
    if report.least > 0.0 {
        let x = LEFT + report.least.min(1.0) * length;
        Element::line((x, y - 4.0), (x, y + height + 4.0))
            .with("stroke", "black")
            .with("stroke-width", 2)
            .put(text);
    }
    let x = LEFT + length + 270.0;
    let failed = Element::rect((x, y), (height, height));
    failed.with("fill", FAILED).put(text);
    faint((x + height + 6.0, y + height - 1.0), "failed").put(text);
}

/// Writes the numbers of the ranks, as many as have room.
fn draw_ranks(report: &MeshReport, top: f64, edge: f64, text: &mut String) {
    for rank in 0..report.ranks {
        let middle = (rank as f64 + 0.5) * edge;
        let fill = match is_named(report, rank) {
            true => WARNING,
            false => "black",
        };
        for (at, anchor) in [
            ((LEFT + middle, top - 7.0), "middle"),
            ((LEFT - 8.0, top + middle + 4.0), "end"),
        ] {
            let number = Element::text(at, rank).with("text-anchor", anchor);
            number.with("fill", fill).put(text);
        }
    }
}

fn draw_cell(report: &MeshReport, cell: &Cell, top: f64, edge: f64, text: &mut String) {
    let (x, y) = (LEFT + cell.to as f64 * edge, top + cell.from as f64 * edge);
    let (stroke, wide) = match report.outlier_of(cell) {
        Some(_) => ("black", 2),
        None => ("white", 1),
    };
    let (fill, ink) = match report.part_of_expected(cell) {
        Some(part) => color(part),
        None => (FAILED.to_owned(), "white"),
    };
    Element::rect((x, y), (edge, edge))
        .with("fill", fill)
        .with("stroke", stroke)
        .with("stroke-width", wide)
        .titled(cell_title(report, cell))
        .put(text);
    if edge >= WITH_FIGURES {
        let shown = cell.gb_per_s().map_or_else(|| "failed".to_owned(), figure);
        Element::text((x + edge / 2.0, y + edge / 2.0 + 4.0), shown)
            .centered()
            .with("fill", ink)
            .with("pointer-events", "none")
            .put(text);
    }
}

/// Returns whether a rank is absent or an outlier as a whole.
fn is_named(report: &MeshReport, number: usize) -> bool {
    let is_it = |subject: OutlierSubject| match subject {
        OutlierSubject::Rank { rank, .. } => rank == number,
        OutlierSubject::Direction { .. } => false,
    };
    report.absent.contains(&number) || report.outliers.iter().any(|it| is_it(it.subject))
}

/// Returns the expected rates, and the outliers with their causes, in lines of at most `width` characters.
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

fn cell_title(report: &MeshReport, cell: &Cell) -> String {
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

/// Returns the colour of a cell for its part of the expected rate, and the colour of its letters.
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
