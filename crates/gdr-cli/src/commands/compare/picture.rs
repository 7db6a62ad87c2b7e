//! Times and ratio of `gdr compare` over the sizes.

use gdr_perf::loopback::pipeline::{FrameFigures, PipelineReport, PipelineRow};

use super::table::{device_in_words, frames_in_words, sentence};
use crate::chart::{BLUE, Chart, Curve, GREEN, ORANGE, Panel, Scale};
use crate::commands::describe;
use crate::units::figure;

/// Returns the picture of a report: the medians of both modes, their ratio, and the size at which the faster mode
/// changes.
pub(super) fn svg(report: &PipelineReport) -> String {
    let times = |name: &str, color, of: fn(&PipelineRow) -> Option<FrameFigures>| Curve {
        name: name.to_owned(),
        color,
        show: |value| format!("{} us", figure(value)),
        points: report
            .rows
            .iter()
            .filter_map(|row| Some((row.size, of(row)?.total.median_ns / 1000.0)))
            .collect(),
    };
    let mut panels = vec![Panel {
        heading: String::new(),
        title: "us, median",
        height: 300.0,
        scale: Scale::Logarithmic,
        baseline: None,
        curves: vec![times("staged", ORANGE, |row| Some(row.staged))],
    }];
    if report.direct.is_some() {
        panels[0]
            .curves
            .push(times("direct", BLUE, |row| row.direct));
        let ratios = report.rows.iter();
        panels.push(Panel {
            heading: String::new(),
            title: "staged / direct",
            height: 140.0,
            scale: Scale::Logarithmic,
            // Above 1, the direct mode is faster.
            baseline: Some(1.0),
            curves: vec![Curve {
                name: "staged / direct".to_owned(),
                color: GREEN,
                show: |value| format!("{value:.2}x"),
                points: ratios
                    .filter_map(|row| Some((row.size, row.ratio?)))
                    .collect(),
            }],
        });
    }
    let mut notes = device_in_words(report)
        .map(|(what, words)| format!("{what}: {words}"))
        .to_vec();
    notes.push(format!("frames: {}", frames_in_words(&report.source)));
    notes.push(format!(
        "GPU: {}, {}",
        describe(&report.subject),
        report.allocated_by
    ));
    let by_the_costs = |crossing| format!("by the fitted costs, {}", sentence(crossing));
    let mark =
        (report.crossing).and_then(|crossing| Some((crossing.bytes()?, by_the_costs(crossing))));
    if mark.is_none() {
        notes.extend(report.crossing.map(by_the_costs));
    }
    let chart = Chart {
        title: "gdr compare: a frame until the kernel's result is in host memory".to_owned(),
        notes,
        is_simulated: report.subject.simulated,
        sizes_of: "a frame",
        panels,
        mark,
    };
    chart.svg()
}
