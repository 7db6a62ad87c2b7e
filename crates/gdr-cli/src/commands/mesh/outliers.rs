//! Outliers of `gdr mesh` in words.

use gdr_perf::mesh::{DoctorFinding, MeshReport, Outlier, OutlierSubject, RankSide};

/// Maximum number of outliers that text and picture list.
pub(super) const MOST_LISTED: usize = 16;

/// Returns what is slow, or failed, and how much.
pub(super) fn sentence(report: &MeshReport, outlier: &Outlier) -> String {
    let named = |rank: usize| match report.host(rank) {
        Some(host) => format!("rank {rank} on {host}"),
        None => format!("rank {rank}"),
    };
    let subject = match outlier.subject {
        OutlierSubject::Rank {
            rank,
            side,
            affected,
            of,
        } => {
            let directions = match side {
                RankSide::Outgoing => "directions from it",
                RankSide::Incoming => "directions to it",
                RankSide::Both => "directions from and to it",
            };
            format!("{}: {affected} of the {of} {directions}", named(rank))
        }
        OutlierSubject::Direction { from, to } => format!("{} to {}", named(from), named(to)),
    };
    match (outlier.of_expected, &outlier.reason) {
        (_, Some(reason)) => format!("{subject} failed: {reason}"),
        (Some(part), None) => {
            format!("{subject} at {} % of the expected rate", percent(part))
        }
        (None, None) => format!("{subject} not measured"),
    }
}

/// Formats a share in percent. Below 1 % it keeps significant digits, so that it is not shown as 0.
fn percent(part: f64) -> String {
    match part * 100.0 {
        percent if percent < 1.0 => crate::units::figure(percent),
        percent => format!("{percent:.0}"),
    }
}

/// Returns what the doctor says about the listed outliers: a sentence for each finding, and one for the ranks without
/// findings.
pub(super) fn causes_of_all(report: &MeshReport) -> Vec<String> {
    let listed = report.outliers.iter().take(MOST_LISTED);
    let mut answers: Vec<_> = listed.flat_map(|outlier| &outlier.doctor).collect();
    answers.sort_by_key(|answer| answer.rank);
    answers.dedup_by_key(|answer| answer.rank);
    let (healthy, sick): (Vec<_>, Vec<_>) = answers
        .into_iter()
        .partition(|answer| answer.findings.is_empty());
    let mut sentences = Vec::new();
    for answer in sick {
        let place = format!("rank {} on {}", answer.rank, answer.host);
        let likely = answer.findings.iter();
        sentences.extend(likely.map(|finding| format!("likely on {place}: {}", found(finding))));
    }
    let ranks: Vec<String> = healthy
        .iter()
        .map(|answer| answer.rank.to_string())
        .collect();
    let of = match ranks.len() {
        0 => return sentences,
        1 => "rank",
        _ => "ranks",
    };
    sentences.push(format!(
        "the doctor finds nothing wrong for {of} {}: look at cables, switch ports and what else runs there",
        ranks.join(", ")
    ));
    sentences
}

fn found(finding: &DoctorFinding) -> String {
    let DoctorFinding {
        check,
        summary,
        fix,
    } = finding;
    match fix {
        Some(fix) => format!("{summary} ({check}); {fix}"),
        None => format!("{summary} ({check})"),
    }
}

/// Returns how many outliers are not listed, if any.
pub(super) fn not_listed(report: &MeshReport) -> Option<String> {
    let more = report.outliers.len().saturating_sub(MOST_LISTED);
    (more > 0).then(|| format!("and {more} more, which --json lists"))
}
