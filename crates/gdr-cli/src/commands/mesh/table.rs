//! Matrix of `gdr mesh` as text.

use gdr_perf::mesh::{Cell, CellOutcome, Link, MeshReport};
use gdr_perf::{Result, Wire};
use gdr_render::Table;

use super::{Crowd, outliers};
use crate::counted::Counted;
use crate::output::Output;
use crate::units::figure;

/// Returns which wire carried the packets of these directions, as the end of a sentence.
fn wires(report: &MeshReport, link: Link) -> &'static str {
    let of_link = report.cells.iter().filter(|cell| cell.link == link);
    let mut wires = of_link.filter_map(|cell| match cell.outcome {
        CellOutcome::Measured { wire, .. } => wire,
        CellOutcome::Failed { .. } => None,
    });
    let Some(first) = wires.next() else {
        return "";
    };
    match (wires.all(|wire| wire == first), first) {
        (true, Wire::Memory) => ", by shared memory",
        (true, Wire::Udp) => ", by UDP",
        (false, _) => ", some by shared memory and some by UDP",
    }
}

/// Writes the ranks, the matrix and the outliers.
pub(super) fn write(report: &MeshReport, crowd: Option<Crowd>, output: &mut Output) -> Result<()> {
    for member in &report.members {
        let gpu = member.gpu.as_deref().unwrap_or("host memory");
        output.line(format_args!(
            "rank {:<4} {}, {}, {gpu}",
            member.rank, member.host, member.device
        ))?;
    }
    let matrix = matrix(report);
    if matrix.iter().all(|line| line.len() <= output.width()) {
        output.line("\nGB/s from the rank of the row to the rank of the column")?;
        matrix.iter().try_for_each(|line| output.line(line))?;
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
            "{link}: {}, median {} GB/s ({} Gb/s), {} to {} GB/s{}",
            Counted(expected.measured, "direction"),
            figure(expected.median_gb_per_s),
            figure(expected.median_gb_per_s * 8.0),
            figure(slowest),
            figure(fastest),
            wires(report, expected.link)
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
    for outlier in report.outliers.iter().take(outliers::MOST_LISTED) {
        output.paragraph("outlier   ", indent, &outliers::sentence(report, outlier))?;
    }
    for cause in outliers::causes_of_all(report) {
        output.paragraph("cause     ", indent, &cause)?;
    }
    if let Some(more) = outliers::not_listed(report) {
        output.line(format_args!("{indent}{more}"))?;
    }
    if let Some(crowd) = crowd {
        output.paragraph("rates     ", indent, &crowd.to_string())?;
    }
    let directions = report.ranks * (report.ranks - 1);
    output.line(match report.passed {
        true => format!(
            "PASS: {directions} directions between {} ranks, the last messages of each compared",
            report.ranks
        ),
        false => format!(
            "FAIL: {} of {directions} directions between {} ranks measured, the last messages of each compared",
            report.cells.iter().filter_map(Cell::gb_per_s).count(),
            report.ranks
        ),
    })
}

/// Returns the matrix in lines; the first has the ranks that were written to.
fn matrix(report: &MeshReport) -> Vec<String> {
    let ranks = || 0..report.ranks;
    let heads: Vec<String> = ranks().map(|rank| rank.to_string()).collect();
    let heads: Vec<&str> = std::iter::once("")
        .chain(heads.iter().map(String::as_str))
        .collect();
    let mut table = Table::new(&heads).align_right(1..heads.len());
    for from in ranks() {
        let cells = ranks().map(|to| {
            if from == to {
                return "-".to_owned();
            }
            let is_here = |cell: &&Cell| (cell.from, cell.to) == (from, to);
            match report.cells.iter().find(is_here).map(|cell| &cell.outcome) {
                Some(CellOutcome::Measured { gb_per_s, .. }) => figure(*gb_per_s),
                Some(CellOutcome::Failed { .. }) => "failed".to_owned(),
                None => "?".to_owned(),
            }
        });
        let head = std::iter::once(format!("rank {from}"));
        table.row(head.chain(cells).collect());
    }
    table.whole_lines()
}

/// Returns a kind of link in words.
pub(super) fn name(link: Link) -> &'static str {
    match link {
        Link::SameHost => "on one host",
        Link::BetweenHosts => "between hosts",
    }
}

#[cfg(test)]
mod tests {
    use gdr_perf::mesh::{self, DoctorAnswer, DoctorFinding, Member, PROTOCOL_VERSION};
    use gdr_perf::report::Schema;
    use serde_json::Value;
    use snapshot::assert_contains;

    use super::super::{heat_map, outliers};
    use super::*;

    const RANKS: usize = 6;

    fn host(rank: usize) -> String {
        if rank < 3 { "a" } else { "<b>" }.to_owned()
    }

    /// Returns the report of six ranks on two hosts: rank 1 sends slowly, rank 4 has ended, and the direction from rank
    /// 3 to rank 2 is slow.
    fn report() -> MeshReport {
        let directions = (0..RANKS).flat_map(|from| (0..RANKS).map(move |to| (from, to)));
        let cell = |(from, to): (usize, usize)| {
            let link = match from / 3 == to / 3 {
                true => Link::SameHost,
                false => Link::BetweenHosts,
            };
            let healthy = match link {
                Link::SameHost => 40.123 + from as f64 / 7.0 + to as f64 / 11.0,
                Link::BetweenHosts => 11.0 + from as f64 / 13.0 + to as f64 / 17.0,
            };
            let outcome = match (from, to) {
                (4, _) | (_, 4) => CellOutcome::Failed {
                    reason: "rank 4 on <b> has ended".into(),
                },
                (1, _) | (3, 2) => CellOutcome::Measured {
                    gb_per_s: healthy / 90.0,
                    wire: Some(Wire::Udp),
                },
                _ => CellOutcome::Measured {
                    gb_per_s: healthy,
                    wire: Some(Wire::Udp),
                },
            };
            Cell {
                from,
                to,
                link,
                outcome,
            }
        };
        let cells: Vec<Cell> = directions
            .filter(|(from, to)| from != to)
            .map(cell)
            .collect();
        let expected = mesh::expected(&cells);
        let mut outliers = mesh::outliers(&cells, &expected, 0.7);
        for outlier in &mut outliers {
            for rank in outlier.subject.ranks() {
                let finding = DoctorFinding {
                    check: "link.width".into(),
                    summary: format!("mlx5_{rank}: the link has 4 of 16 lanes"),
                    fix: Some("reseat the adapter".into()),
                };
                outlier.doctor.push(DoctorAnswer {
                    rank,
                    host: host(rank),
                    findings: (rank < 3).then_some(finding).into_iter().collect(),
                });
            }
        }
        let member = |rank: usize| Member {
            version: PROTOCOL_VERSION,
            rank,
            ranks: RANKS,
            host: host(rank),
            device: "mlx5_0".into(),
            gpu: None,
            simulated: false,
            listens: "127.0.0.1:1".parse().unwrap(),
        };
        MeshReport {
            schema: Schema::first("gdr.mesh"),
            simulated: false,
            ranks: RANKS,
            members: (0..RANKS).map(member).collect(),
            absent: Vec::new(),
            size: 4096,
            cells,
            expected,
            least: 0.7,
            outliers,
            passed: false,
        }
    }

    #[test]
    fn text_csv_json_and_picture_have_the_same_numbers() {
        let report = report();
        let json = serde_json::to_value(&report).unwrap();
        let csv = report.csv();
        let text: Vec<Vec<String>> = matrix(&report)
            .iter()
            .map(|line| {
                assert!(line.chars().count() <= 100, "{line}");
                line.split_whitespace().map(str::to_owned).collect()
            })
            .collect();
        let picture = heat_map::svg(&report);
        let cells = json["cells"].as_array().unwrap();
        assert_eq!((cells.len(), csv.lines().count()), (30, 31));
        for (cell, line) in cells.iter().zip(csv.lines().skip(1)) {
            let fields: Vec<_> = line.split(',').collect();
            let (from, to) = (&cell["from"], &cell["to"]);
            assert_eq!([fields[0], fields[1]], [from.to_string(), to.to_string()]);
            assert_eq!(fields[2], cell["link"]);
            // The line begins with `rank` and the number.
            let shown =
                &text[from.as_u64().unwrap() as usize + 1][to.as_u64().unwrap() as usize + 2];
            let title = format!("<title>rank {from} to rank {to}: ");
            let Some(rate) = cell["gb_per_s"].as_f64() else {
                assert_eq!((fields[3], shown.as_str()), ("", "failed"));
                assert!(picture.contains(&(title + "failed: ")), "{picture}");
                continue;
            };
            let numbers = [3, 4].map(|at| fields[at].parse::<f64>().unwrap());
            assert_eq!(numbers, [rate, rate * 8.0]);
            assert_eq!(*shown, figure(rate));
            let part: f64 = fields[5].parse().unwrap();
            let percent = figure(part * 100.0);
            let title = format!(
                "{title}{} GB/s, {percent} % of what is expected",
                figure(rate)
            );
            assert!(picture.contains(&title), "{title}: {picture}");
        }
        for expected in &report.expected {
            let rate = figure(expected.median_gb_per_s);
            let line = format!("expected {}: {rate} GB/s", name(expected.link));
            assert!(picture.contains(&line), "{line}: {picture}");
        }
    }

    #[test]
    fn an_outlier_and_its_likely_cause_are_named_in_every_format() {
        let report = report();
        let json: Value = serde_json::to_value(&report).unwrap();
        let named: Vec<_> = json["outliers"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| (it["outlier"].as_str(), it["side"].as_str()))
            .collect();
        let rank = Some("rank");
        assert_eq!(
            named,
            [
                (rank, Some("both")),
                (rank, Some("outgoing")),
                (Some("direction"), None)
            ]
        );
        let sentences: Vec<_> = report
            .outliers
            .iter()
            .map(|it| outliers::sentence(&report, it))
            .collect();
        assert_eq!(
            sentences,
            [
                "rank 4 on <b>: 10 of the 10 directions from and to it failed: rank 4 on <b> has ended",
                // The failure of the direction to rank 4 is already explained.
                "rank 1 on a: 5 of the 5 directions from it at 1 % of the expected rate",
                "rank 3 on <b> to rank 2 on a at 1 % of the expected rate",
            ]
        );
        let causes = outliers::causes_of_all(&report);
        let likely = "likely on rank 1 on a: mlx5_1: the link has 4 of 16 lanes (link.width); \
                      reseat the adapter";
        assert_eq!(causes[0], likely);
        assert!(
            causes[1].starts_with("likely on rank 2 on a: "),
            "{causes:?}"
        );
        // Once for all of them.
        assert!(
            causes[2].starts_with("the doctor finds nothing wrong for ranks 3, 4: "),
            "{causes:?}"
        );
        assert_eq!(causes.len(), 3);
        let picture = heat_map::svg(&report);
        // The numbers of both ranks, each at a row and at a column.
        assert_eq!(picture.matches("fill=\"#d1242f\"").count(), 4);
        assert_contains!(picture, "; outlier: rank 1 outgoing</title>");
        assert_contains!(picture, "the link has 4 of 16 lanes");
        // Text from a peer is not treated as markup.
        assert!(
            picture.contains("&lt;b&gt;") && !picture.contains("<b>"),
            "{picture}"
        );
        let csv = report.csv();
        assert_contains!(
            csv,
            ",\"rank 1 outgoing\",\"\",\"rank 1: link.width: mlx5_1: "
        );
        assert!(
            csv.contains("3,2,between_hosts,") && csv.contains("\"rank 3 to rank 2\""),
            "{csv}"
        );
    }
}
