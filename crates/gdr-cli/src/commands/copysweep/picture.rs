//! Curves of a sweep over the sizes.

use gdr_perf::copysweep::{Method, Report};

use super::{Group, Quantity, planned_by};
use crate::chart::{BLUE, Chart, Curve, GREEN, ORANGE, Panel, Scale};
use crate::commands::describe;
use crate::units::figure;

const PURPLE: &str = "#8250df";
const GREY: &str = "#6e7781";
const BLACK: &str = "#1f2328";

/// Colours of paths: one thread, several threads, then the copy engine and the methods beside them.
const CPU: [&str; 4] = [BLUE, "#00a0a8", "#80ccff", "#b6e3ff"];

fn color(method: Method, at: usize) -> &'static str {
    match method {
        Method::Path(gdr_copy::plan::CopyPath::CopyEngine) => ORANGE,
        Method::Path(gdr_copy::plan::CopyPath::Resident) => GREEN,
        Method::Path(_) => CPU[at.min(CPU.len() - 1)],
        Method::CuMemcpy => GREY,
        Method::Library => PURPLE,
        Method::Planned => BLACK,
    }
}

/// Returns the picture of a report: a panel for each direction and kind of memory, and the ratio of the planned copies
/// to the fastest.
pub(super) fn svg(report: &Report, quantity: Quantity) -> String {
    let mut panels = Vec::new();
    for group in Group::all(report) {
        let methods = group.methods().into_iter().enumerate();
        panels.push(Panel {
            heading: format!("{}, {} memory", group.direction, group.host),
            title: quantity.title(),
            height: 240.0,
            scale: Scale::Logarithmic,
            baseline: None,
            curves: methods
                .map(|(at, method)| Curve {
                    name: method.to_string(),
                    color: color(method, at),
                    show: match quantity {
                        Quantity::Time => |value| format!("{} us", figure(value)),
                        Quantity::Rate => |value| format!("{} GB/s", figure(value)),
                    },
                    points: group.points(method, quantity),
                })
                .collect(),
        });
    }
    let ratios = Group::all(report)
        .into_iter()
        .zip([BLUE, PURPLE, ORANGE, GREEN]);
    panels.push(Panel {
        heading: "the planner's choice against the fastest path".to_owned(),
        title: "planned / fastest",
        height: 140.0,
        scale: Scale::Logarithmic,
        // At 1, the planner has chosen the fastest path.
        baseline: Some(1.0),
        curves: ratios
            .map(|(group, color)| Curve {
                name: format!("{}, {}", group.direction, group.host),
                color,
                show: |value| format!("{value:.2}x"),
                points: group
                    .choices
                    .iter()
                    .map(|choice| (choice.cell.size, choice.ratio))
                    .collect(),
            })
            .collect(),
    });
    let chart = Chart {
        title: "gdr: every path of copies between host and GPU".to_owned(),
        notes: vec![
            format!(
                "GPU: {}, {}",
                describe(&report.subject),
                report.allocated_by
            ),
            format!(
                "CPU: {}, {} mapping, routine {}, up to {} threads",
                report.cpu, report.caching, report.routine, report.max_threads
            ),
            planned_by(report),
        ],
        is_simulated: report.subject.simulated,
        sizes_of: "a copy",
        panels,
        mark: None,
    };
    chart.svg()
}
