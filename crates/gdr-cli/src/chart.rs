//! Curves over message sizes, as SVG.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Context as _, Result};
use gdr_process::WholeFile;
use gdr_render::svg::{Element, Number};

use crate::units::{binary, figure};

const WIDTH: f64 = 900.0;
/// Space beside the panels.
const LEFT: f64 = 90.0;
const RIGHT: f64 = 30.0;
/// Distance from the last line of the heading to the first panel, and between panels.
const GAP: f64 = 28.0;
/// Height below the last panel, for the sizes and their title.
const BOTTOM: f64 = 62.0;
/// Height of a line of the heading, and maximum number of characters in it.
const LINE: f64 = 18.0;
const MOST_CHARACTERS: usize = 125;
/// Maximum number of sizes with a label.
const MOST_LABELS: u32 = 10;
/// Minimum number of values with a label, if the range has that many.
const LEAST_TICKS: usize = 3;

const GRID: &str = "#d8dee4";
pub(crate) const FAINT: &str = "#57606a";
pub(crate) const WARNING: &str = "#d1242f";

/// The colours of curves.
pub(crate) const BLUE: &str = "#0969da";
pub(crate) const ORANGE: &str = "#bc4c00";
pub(crate) const GREEN: &str = "#1a7f37";

/// A picture: a heading, and panels with the same sizes, stacked vertically.
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Lines below the title.
    pub(crate) notes: Vec<String>,
    /// Whether the figures come from a simulation.
    pub(crate) is_simulated: bool,
    /// What a size is the size of.
    pub(crate) sizes_of: &'static str,
    pub(crate) panels: Vec<Panel>,
    /// A size to mark in every panel, with its meaning.
    pub(crate) mark: Option<(u64, String)>,
}

/// A panel: curves on one scale.
pub(crate) struct Panel {
    /// What its curves have in common; may be empty.
    pub(crate) heading: String,
    /// Title of the value axis, with the unit.
    pub(crate) title: &'static str,
    pub(crate) height: f64,
    pub(crate) scale: Scale,
    /// A value to mark, which the range then includes.
    pub(crate) baseline: Option<f64>,
    pub(crate) curves: Vec<Curve>,
}

/// The scale of the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// From 0.
    Linear,
    Logarithmic,
}

/// A curve.
pub(crate) struct Curve {
    pub(crate) name: String,
    pub(crate) color: &'static str,
    /// Formats a value with its unit.
    pub(crate) show: fn(f64) -> String,
    /// Values by size. Values outside the scale are left out.
    pub(crate) points: Vec<(u64, f64)>,
}

impl Chart {
    /// Returns the picture. The title of each point has its values.
    pub(crate) fn svg(&self) -> String {
        let heading = self.notes.len() + usize::from(self.is_simulated);
        let mut top = 30.0 + LINE * heading as f64 + GAP;
        let panels = self.panels.iter();
        let panels: f64 = panels
            .map(|panel| panel.legend_height() + panel.height + GAP)
            .sum();
        let height = top + panels - GAP + BOTTOM;
        let mut text = String::new();
        self.heading(&mut text);
        let sizes = self.sizes();
        let first = top + self.panels.first().map_or(0.0, Panel::legend_height);
        for panel in &self.panels {
            top += panel.legend_height();
            Plot::new(panel, sizes, top).draw(&mut text);
            top += panel.height + GAP;
        }
        let bottom = top - GAP;
        self.draw_sizes(&mut text, sizes, bottom);
        self.draw_mark(&mut text, sizes, first, bottom);
        on_white((WIDTH, height), &text)
    }

    fn heading(&self, text: &mut String) {
        title((LEFT, 28.0), shortened(&self.title)).put(text);
        let mut y = 28.0;
        for note in &self.notes {
            y += LINE;
            faint((LEFT, y), shortened(note)).put(text);
        }
        if self.is_simulated {
            simulated((LEFT, y + LINE)).put(text);
        }
    }

    fn sizes(&self) -> Sizes {
        let curves = self.panels.iter().flat_map(|panel| &panel.curves);
        let sizes = curves.flat_map(|curve| curve.points.iter().map(|(size, _)| *size));
        let (least, most) = sizes.fold((u64::MAX, 1), |(least, most), size| {
            (least.min(size), most.max(size))
        });
        Sizes {
            least: (least.clamp(1, most) as f64).log2(),
            most: (most as f64).log2(),
        }
    }

    /// Writes powers of two below the last panel, with a line in each panel.
    fn draw_sizes(&self, text: &mut String, sizes: Sizes, bottom: f64) {
        for size in sizes.labels() {
            let at = (sizes.x(size), bottom + 18.0);
            Element::text(at, binary(size)).centered().put(text);
        }
        let middle = ((LEFT + WIDTH - RIGHT) / 2.0, bottom + 42.0);
        let words = format!("bytes of {}", self.sizes_of);
        faint(middle, words).centered().put(text);
    }

    fn draw_mark(&self, text: &mut String, sizes: Sizes, top: f64, bottom: f64) {
        let Some((size, meaning)) = &self.mark else {
            return;
        };
        let x = sizes.x(*size);
        // Put the text on the side with more room.
        let (at, anchor) = match x > WIDTH / 2.0 {
            true => (x - 6.0, "end"),
            false => (x + 6.0, "start"),
        };
        Element::line((x, top), (x, bottom))
            .with("stroke", FAINT)
            .with("stroke-dasharray", "5 4")
            .put(text);
        faint((at, bottom - 8.0), meaning)
            .with("text-anchor", anchor)
            .with("paint-order", "stroke")
            .with("stroke", "white")
            .with("stroke-width", 4)
            .put(text);
    }
}

impl Panel {
    /// Returns the names of the curves with their places in lines above the panel; one curve needs none.
    fn legend(&self) -> Vec<(f64, f64, &Curve)> {
        let (mut x, mut line) = (LEFT, 0.0);
        if !self.heading.is_empty() {
            line += 1.0;
        }
        let mut places = Vec::new();
        for curve in self.curves.iter().filter(|_| self.curves.len() > 1) {
            let width = 56.0 + 7.0 * curve.name.chars().count() as f64;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, line) = (LEFT, line + 1.0);
            }
            places.push((x, line, curve));
            x += width;
        }
        places
    }

    fn legend_height(&self) -> f64 {
        let last = self.legend().last().map(|(_, line, _)| line + 1.0);
        let lines = last.unwrap_or(if self.heading.is_empty() { 0.0 } else { 1.0 });
        LINE * lines
    }
}

/// Writes a picture to a file.
pub(crate) fn write(path: &Path, svg: &str) -> Result<()> {
    WholeFile::write(path, svg.as_bytes())
        .with_context(|| format!("the picture cannot be written to {}", path.display()))
}

/// Returns a picture of this size on white, with the letters of charts.
pub(crate) fn on_white(size: (f64, f64), content: &str) -> String {
    let background = Element::rect((0.0, 0.0), size).with("fill", "white");
    let root = Element::root(size)
        .with("font-family", "system-ui, DejaVu Sans, sans-serif")
        .with("font-size", 12)
        .lines(&format!("{background}\n{content}"));
    format!("{root}\n")
}

/// Returns the title of a picture.
pub(crate) fn title(at: (f64, f64), words: impl Display) -> Element {
    let text = Element::text(at, words).with("font-size", 16);
    text.with("font-weight", 600)
}

/// Returns a text beside what is shown.
pub(crate) fn faint(at: (f64, f64), words: impl Display) -> Element {
    Element::text(at, words).with("fill", FAINT)
}

/// Returns the note about a simulated GPU.
pub(crate) fn simulated(at: (f64, f64)) -> Element {
    let words = "SIMULATED: these figures describe no hardware";
    Element::text(at, words).with("fill", WARNING)
}

/// Returns the beginning of a text that is too long for the picture.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// Range of sizes, by their logarithms.
#[derive(Clone, Copy)]
struct Sizes {
    least: f64,
    most: f64,
}

impl Sizes {
    fn x(self, size: u64) -> f64 {
        let width = WIDTH - LEFT - RIGHT;
        match self.most > self.least {
            true => {
                let log = (size.max(1) as f64).log2().clamp(self.least, self.most);
                LEFT + width * (log - self.least) / (self.most - self.least)
            }
            // A single size is in the middle.
            false => LEFT + width / 2.0,
        }
    }

    /// Returns the powers of two in the range, as many as there is room for; if there is a single size, that size.
    fn labels(self) -> Vec<u64> {
        if self.most <= self.least {
            return vec![self.least.exp2().round() as u64];
        }
        let (first, last) = (self.least.ceil() as u32, self.most.floor() as u32);
        let step = (last.saturating_sub(first) / MOST_LABELS + 1) as usize;
        (first..=last.min(63))
            .step_by(step)
            .map(|power| 1 << power)
            .collect()
    }
}

/// Position of a panel in the picture, and the range of its values.
struct Plot<'a> {
    panel: &'a Panel,
    sizes: Sizes,
    top: f64,
    /// Smallest and largest value; on a logarithmic scale, their logarithms.
    range: (f64, f64),
}

impl<'a> Plot<'a> {
    fn new(panel: &'a Panel, sizes: Sizes, top: f64) -> Self {
        let values = panel.curves.iter().flat_map(|curve| &curve.points);
        let values = values.map(|(_, value)| *value).chain(panel.baseline);
        let values = values.filter_map(|value| panel.scale.place(value));
        let (least, most) = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), at| {
            (least.min(at), most.max(at))
        });
        let range = match (panel.scale, least <= most) {
            (_, false) => (0.0, 1.0),
            (Scale::Linear, true) if most > 0.0 => (0.0, most * 1.05),
            (Scale::Linear, true) => (0.0, 1.0),
            (Scale::Logarithmic, true) => {
                let room = ((most - least) * 0.06).max(0.02);
                (least - room, most + room)
            }
        };
        Self {
            panel,
            sizes,
            top,
            range,
        }
    }

    /// Returns the height of a value; `None` if the scale does not include it.
    fn y(&self, value: f64) -> Option<f64> {
        let (least, most) = self.range;
        let part = (self.panel.scale.place(value)? - least) / (most - least);
        Some(self.top + self.panel.height * (1.0 - part))
    }

    fn draw(&self, text: &mut String) {
        self.draw_axes(text);
        for curve in &self.panel.curves {
            self.draw_curve(text, curve);
        }
        self.draw_legend(text);
    }

    fn draw_axes(&self, text: &mut String) {
        let (top, right, height) = (self.top, WIDTH - RIGHT, self.panel.height);
        let across = |y| Element::line((LEFT, y), (right, y));
        for value in self.panel.scale.ticks(self.range) {
            let Some(y) = self.y(value) else { continue };
            across(y).with("stroke", GRID).put(text);
            let label = Element::text((LEFT - 8.0, y + 4.0), figure(value));
            label.with("text-anchor", "end").put(text);
        }
        for size in self.sizes.labels() {
            let x = self.sizes.x(size);
            let line = Element::line((x, top), (x, top + height));
            line.with("stroke", GRID).put(text);
        }
        if let Some(y) = self.panel.baseline.and_then(|value| self.y(value)) {
            let line = across(y).with("stroke", FAINT);
            line.with("stroke-width", 1.5).put(text);
        }
        Element::rect((LEFT, top), (right - LEFT, height))
            .with("fill", "none")
            .with("stroke", FAINT)
            .put(text);
        let (x, middle) = (24.0, top + height / 2.0);
        let turned = format!("rotate(-90 {x} {})", Number(middle));
        let title = faint((x, middle), self.panel.title).centered();
        title.with("transform", turned).put(text);
    }

    fn draw_curve(&self, text: &mut String, curve: &Curve) {
        let color = curve.color;
        let points: Vec<_> = curve
            .points
            .iter()
            .filter_map(|(size, value)| Some((*size, *value, self.y(*value)?)))
            .collect();
        let line: Vec<String> = points
            .iter()
            .map(|(size, _, y)| format!("{},{}", Number(self.sizes.x(*size)), Number(*y)))
            .collect();
        Element::new("polyline")
            .with("fill", "none")
            .with("stroke", color)
            .with("stroke-width", 2)
            .with("points", line.join(" "))
            .put(text);
        for (size, value, y) in points {
            let (shown, name) = ((curve.show)(value), &curve.name);
            Element::new("circle")
                .pair(["cx", "cy"], (self.sizes.x(size), y))
                .with("r", 3.5)
                .with("fill", color)
                .titled(format_args!("{size} bytes: {shown}, {name}"))
                .put(text);
        }
    }

    /// Draws the heading and the names of the curves above the panel, where they do not hide a curve.
    fn draw_legend(&self, text: &mut String) {
        let first = self.top - self.panel.legend_height() + 4.0;
        if !self.panel.heading.is_empty() {
            let heading = Element::text((LEFT, first), &self.panel.heading);
            heading.with("font-weight", 600).put(text);
        }
        for (x, line, curve) in self.panel.legend() {
            let y = first + LINE * line;
            Element::line((x, y - 4.0), (x + 22.0, y - 4.0))
                .with("stroke", curve.color)
                .with("stroke-width", 3)
                .put(text);
            Element::text((x + 28.0, y), &curve.name).put(text);
        }
    }
}

impl Scale {
    /// Returns the place of a value on the scale; `None` if the scale does not include it.
    fn place(self, value: f64) -> Option<f64> {
        let place = match self {
            Self::Linear => value,
            Self::Logarithmic => value.log10(),
        };
        (place.is_finite() && (self == Self::Logarithmic || place >= 0.0)).then_some(place)
    }

    /// Returns the values with a label.
    fn ticks(self, (least, most): (f64, f64)) -> Vec<f64> {
        match self {
            Self::Linear => round_steps(least, most),
            Self::Logarithmic => {
                let sets: [&[f64]; 3] = [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0]];
                let of = |mantissas: &[f64]| -> Vec<f64> {
                    let decades = least.floor() as i32..=most.floor() as i32;
                    decades
                        .flat_map(|decade| mantissas.iter().map(move |m| m * 10_f64.powi(decade)))
                        .filter(|value| (least..=most).contains(&value.log10()))
                        .collect()
                };
                let found = sets.into_iter().map(of);
                found
                    .into_iter()
                    .find(|ticks| ticks.len() >= LEAST_TICKS)
                    .unwrap_or_else(|| round_steps(10_f64.powf(least), 10_f64.powf(most)))
            }
        }
    }
}

/// Returns three to nine multiples of 1, 2 or 5 times a power of ten.
fn round_steps(least: f64, most: f64) -> Vec<f64> {
    let rough = (most - least) / 8.0;
    if !(rough.is_finite() && rough > 0.0) {
        return Vec::new();
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough)
        .unwrap_or(rough);
    let first = (least / step).ceil() as i64;
    (first..first + 12)
        .map(|number| number as f64 * step)
        .take_while(|value| *value <= most)
        .collect()
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;

    fn chart(scale: Scale, points: Vec<(u64, f64)>) -> Chart {
        Chart {
            title: "a < b".to_owned(),
            notes: vec!["x".repeat(500)],
            is_simulated: true,
            sizes_of: "a message",
            panels: vec![Panel {
                heading: "to GPU".to_owned(),
                title: "us",
                height: 200.0,
                scale,
                baseline: Some(1.0),
                curves: vec![Curve {
                    name: "median".to_owned(),
                    color: BLUE,
                    show: |value| format!("{} us", figure(value)),
                    points,
                }],
            }],
            mark: Some((64, "here & there".to_owned())),
        }
    }

    #[test]
    fn every_scale_has_labels_in_its_range() {
        for (range, expected) in [
            ((0.0, 3.0), vec![1.0, 10.0, 100.0, 1000.0]),
            ((0.0, 1.0), vec![1.0, 2.0, 5.0, 10.0]),
            ((0.0, 0.4), vec![1.0, 1.5, 2.0]),
        ] {
            assert_eq!(Scale::Logarithmic.ticks(range), expected);
        }
        let narrow = Scale::Logarithmic.ticks((0.04, 0.09));
        assert!(narrow.len() >= LEAST_TICKS, "{narrow:?}");
        assert_eq!(Scale::Linear.ticks((0.0, 9.0)), [0.0, 2.0, 4.0, 6.0, 8.0]);
        let shown: Vec<_> = round_steps(0.955, 1.96).into_iter().map(figure).collect();
        assert_eq!(shown, ["1", "1.2", "1.4", "1.6", "1.8"]);
    }

    #[test]
    fn texts_are_no_markup_and_as_long_as_the_picture_is_wide() {
        let svg = chart(Scale::Linear, vec![(4, 1.0)]).svg();
        assert!(svg.contains("a &lt; b") && svg.contains("here &amp; there"));
        assert!(!svg.contains(&"x".repeat(200)));
        assert_contains!(svg, "<title>4 bytes: 1 us, median</title>");
    }

    #[test]
    fn sizes_have_a_label_each_until_there_is_no_room() {
        let labels = |least: f64, most: f64| Sizes { least, most }.labels();
        assert_eq!(labels(6.0, 6.0), [64]);
        assert_eq!(labels(1.5, 4.0), [4, 8, 16]);
        assert_eq!(labels(2.0, 26.0).len(), 9);
        assert_eq!(labels(0.0, 64.0).last(), Some(&(1 << 63)));
    }

    #[test]
    fn every_point_that_is_drawn_is_in_the_picture() {
        let values = [
            0.0,
            -0.0,
            -1.0,
            1.0,
            f64::MIN_POSITIVE,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        let sizes = [0, 1, 4, 1 << 40, u64::MAX];
        let pairs = || {
            sizes
                .iter()
                .flat_map(|size| values.map(|value| (*size, value)))
        };
        let each = pairs().map(|pair| vec![pair]);
        for points in each.chain([pairs().collect(), Vec::new()]) {
            for scale in [Scale::Linear, Scale::Logarithmic] {
                let svg = chart(scale, points.clone()).svg();
                for (name, most) in [("cx=\"", WIDTH), ("cy=\"", 400.0)] {
                    for part in svg.split(name).skip(1) {
                        let value: f64 = part.split('"').next().unwrap().parse().unwrap();
                        assert!((0.0..=most).contains(&value), "{value}: {points:?}");
                    }
                }
            }
        }
    }
}
