//! Result of a mesh, also as CSV.

use serde::Serialize;

use super::matrix::{Cell, Expected, part_of_expected};
use super::outlier::Outlier;
use super::protocol::Member;
use crate::report::Schema;

/// Result of a mesh.
#[derive(Clone, Debug, Serialize)]
pub struct MeshReport {
    /// `gdr.mesh`.
    #[serde(flatten)]
    pub schema: Schema,
    /// Whether a GPU was simulated. If so, the figures do not describe hardware.
    pub simulated: bool,
    /// The number of ranks.
    pub ranks: usize,
    /// Those that joined.
    pub members: Vec<Member>,
    /// Those that did not.
    pub absent: Vec<usize>,
    /// Bytes of a message.
    pub size: u64,
    /// Each direction between two ranks.
    pub cells: Vec<Cell>,
    /// What is expected of each kind of link.
    pub expected: Vec<Expected>,
    /// The part of the expected rate that is required to pass.
    pub least: f64,
    /// Ranks and directions that are slower, or failed.
    pub outliers: Vec<Outlier>,
    /// Whether every rank joined and there is no outlier.
    pub passed: bool,
}

impl MeshReport {
    /// Returns the rate of a direction divided by the expected one; `None` if it was not measured.
    pub fn part_of_expected(&self, cell: &Cell) -> Option<f64> {
        part_of_expected(cell, &self.expected)
    }

    /// Returns the outlier that a slow or failed direction is part of. Other outliers of the same rank do not count.
    pub fn outlier_of(&self, cell: &Cell) -> Option<&Outlier> {
        if self
            .part_of_expected(cell)
            .is_some_and(|part| part >= self.least)
        {
            return None;
        }
        let includes = |outlier: &&Outlier| outlier.subject.includes(cell.from, cell.to);
        self.outliers.iter().find(includes)
    }

    /// Returns the host of a rank that joined.
    pub fn host(&self, rank: usize) -> Option<&str> {
        let member = self.members.iter().find(|member| member.rank == rank)?;
        Some(&member.host)
    }

    /// Formats the directions as CSV with a header line. Texts are quoted; `likely_cause` contains the doctor's checks
    /// that found something, each with its rank.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "from,to,link,gb_per_s,gbit_per_s,of_expected,outlier,failed,likely_cause\n",
        );
        for cell in &self.cells {
            let number = |value: Option<f64>| value.map(|it| it.to_string()).unwrap_or_default();
            let rate = cell.gb_per_s();
            let outlier = self.outlier_of(cell);
            let subject = outlier.map(|it| it.subject.to_string());
            let causes: Vec<String> = outlier
                .iter()
                .flat_map(|outlier| &outlier.doctor)
                .flat_map(|answer| {
                    let rank = answer.rank;
                    let of_rank = answer.findings.iter();
                    of_rank.map(move |it| format!("rank {rank}: {}: {}", it.check, it.summary))
                })
                .collect();
            text += &format!(
                "{},{},{},{},{},{},{},{},{}\n",
                cell.from,
                cell.to,
                cell.link.name(),
                number(rate),
                number(rate.map(|rate| rate * 8.0)),
                number(self.part_of_expected(cell)),
                quoted(&subject.unwrap_or_default()),
                quoted(cell.failure().unwrap_or_default()),
                quoted(&causes.join("; "))
            );
        }
        text
    }
}

/// Returns a field as RFC 4180 has it, in one line.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\n', " ").replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::super::matrix::expected;
    use super::super::matrix::tests::{cells, usual};
    use super::super::outlier::{DoctorAnswer, DoctorFinding, outliers};
    use super::*;

    fn report(cells: Vec<Cell>) -> MeshReport {
        let expected = expected(&cells);
        MeshReport {
            schema: Schema::first("gdr.mesh"),
            simulated: false,
            ranks: 3,
            members: Vec::new(),
            absent: Vec::new(),
            size: 4096,
            outliers: outliers(&cells, &expected, 0.7),
            cells,
            expected,
            least: 0.7,
            passed: false,
        }
    }

    #[test]
    fn csv_has_a_line_for_each_direction_with_its_outlier_and_cause() {
        let cells = cells(3, |from, to| match (from, to) {
            (2, 1) => None,
            (2, _) => Some(10.0),
            _ => Some(usual(from, to)),
        });
        let mut report = report(cells);
        report.outliers[0].doctor.push(DoctorAnswer {
            rank: 2,
            host: "c".into(),
            findings: vec![DoctorFinding {
                check: "link.width".into(),
                summary: "the link has \"x1\", not x16".into(),
                fix: None,
            }],
        });
        let text = report.csv();
        assert_eq!(text.lines().count(), 7);
        for line in [
            "0,1,same_host,40,320,1,\"\",\"\",\"\"\n",
            "2,0,same_host,10,80,0.25,\"rank 2 outgoing\",\"\",\
             \"rank 2: link.width: the link has \"\"x1\"\", not x16\"\n",
            "2,1,same_host,,,,\"rank 2 outgoing\",\"1 is gone\",\
             \"rank 2: link.width: the link has \"\"x1\"\", not x16\"\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        assert_eq!(report.host(2), None);
    }

    #[test]
    fn a_direction_that_is_as_expected_is_none_of_an_outlier() {
        let cells = cells(8, |from, to| {
            let slow = from == 5 && to != 0;
            Some(usual(from, to) * if slow { 0.3 } else { 1.0 })
        });
        let report = report(cells);
        let outlier_of = |from, to| {
            let mut cells = report.cells.iter();
            let cell = cells.find(|cell| (cell.from, cell.to) == (from, to));
            report
                .outlier_of(cell.unwrap())
                .map(|it| it.subject.to_string())
        };
        assert_eq!(outlier_of(5, 1).as_deref(), Some("rank 5 outgoing"));
        assert_eq!(outlier_of(5, 0), None);
        assert_eq!(outlier_of(1, 5), None);
    }
}
