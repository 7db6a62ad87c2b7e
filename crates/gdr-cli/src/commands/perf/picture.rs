//! Curve of `gdr perf` over the sizes.

use gdr_perf::transfer::{Metric, TransferReport, TransferRow};

use super::table::{end_in_words, plan_in_words};
use crate::chart::{BLUE, Chart, Curve, ORANGE, Panel, Scale};
use crate::units::figure;

/// Returns the picture of a report: the rate, or the median and the 99th percentile of the latency.
pub(super) fn svg(report: &TransferReport) -> String {
    let curve = |name: &str, color, show, value: fn(&TransferRow) -> f64| Curve {
        name: name.to_owned(),
        color,
        show,
        points: report
            .rows
            .iter()
            .map(|row| (row.size, value(row)))
            .collect(),
    };
    let panel = match report.plan.verb.metric() {
        Metric::Bandwidth => Panel {
            heading: String::new(),
            title: "Gb/s",
            height: 380.0,
            scale: Scale::Linear,
            baseline: None,
            curves: vec![curve(
                "rate",
                BLUE,
                |value| format!("{} Gb/s", figure(value)),
                |row| row.gbit_per_s,
            )],
        },
        Metric::Latency => {
            let us = |value| format!("{} us", figure(value));
            Panel {
                heading: String::new(),
                title: "us",
                height: 380.0,
                scale: Scale::Logarithmic,
                baseline: None,
                curves: vec![
                    curve("median", BLUE, us, |row| {
                        row.latency.summary.median_ns / 1000.0
                    }),
                    curve("p99", ORANGE, us, |row| row.latency.summary.p99_ns / 1000.0),
                ],
            }
        }
    };
    let notes = [
        ("client", end_in_words(&report.client)),
        ("server", end_in_words(&report.server)),
        ("measured", plan_in_words(report)),
    ];
    let chart = Chart {
        title: format!("gdr perf {}", report.plan.verb),
        notes: notes.map(|(what, words)| format!("{what}: {words}")).into(),
        is_simulated: report.simulated,
        sizes_of: "a message",
        panels: vec![panel],
        mark: None,
    };
    chart.svg()
}

#[cfg(test)]
mod tests {
    use gdr_perf::transfer::{Direction, Verb};

    use super::super::table::tests::report;
    use super::*;

    #[test]
    fn a_picture_holds_nothing_that_a_peer_could_make_markup_of() {
        let svg = svg(&report(Verb::WriteBw));
        assert!(
            svg.contains("node&lt;1&gt;") && !svg.contains("node<1>"),
            "{svg}"
        );
        assert_eq!(svg.matches("<circle").count(), 3);
    }

    #[test]
    fn a_picture_says_under_which_load_its_rates_are() {
        let mut report = report(Verb::WriteBw);
        report.plan.direction = Direction::BothWays;
        let depth = format!(
            "{} requests in flight each, both ways",
            report.plan.tx_depth
        );
        let svg = svg(&report);
        assert!(svg.contains(&depth), "{svg}");
    }

    #[test]
    fn one_size_and_no_value_still_have_a_place() {
        let mut one = report(Verb::WriteLat);
        one.rows.truncate(1);
        one.rows[0].latency.summary.median_ns = 0.0;
        one.rows[0].latency.summary.p99_ns = 0.0;
        assert!(!svg(&one).contains("NaN"));
    }
}
