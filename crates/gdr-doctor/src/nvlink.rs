//! Whether the GPUs of a node have equally many NVLinks.

use crate::finding::Finding;
use crate::fix::Fix;

/// NVLinks between two GPUs, by their places in the list of GPUs.
pub(crate) struct Links {
    pub(crate) between: (usize, usize),
    pub(crate) count: u8,
}

/// Returns the finding about GPUs of one kind; `None` if no GPU has links.
pub(crate) fn judge(gpus: &[String], links: &[Links]) -> Option<Finding> {
    let mut sums = vec![0_u32; gpus.len()];
    for link in links {
        for place in [link.between.0, link.between.1] {
            if let Some(sum) = sums.get_mut(place) {
                *sum += u32::from(link.count);
            }
        }
    }
    let most = sums.iter().copied().max().filter(|most| *most > 0)?;
    let fewer: Vec<(&String, u32)> = (gpus.iter().zip(&sums))
        .filter(|(_, sum)| **sum < most)
        .map(|(gpu, sum)| (gpu, *sum))
        .collect();
    if fewer.is_empty() {
        return Some(Finding::pass("all GPUs have equally many NVLinks"));
    }
    let names: Vec<&str> = fewer.iter().map(|(gpu, _)| gpu.as_str()).collect();
    let has = if names.len() == 1 { "has" } else { "have" };
    let none = fewer.iter().all(|(_, sum)| *sum == 0);
    let how_many = if none { "no NVLink" } else { "fewer NVLinks" };
    let names = names.join(", ");
    // Bridges between cards may join a part of them only; switches and boards join all.
    let is_fault = 2 * fewer.len() < gpus.len();
    let summary = format!("{names} {has} {how_many}, unlike the other GPUs");
    let finding = if is_fault {
        Finding::warn(summary)
            .fix(Fix::user(
                "See which links are down, and whether the fabric manager has the GPU",
                "nvidia-smi nvlink --status; nvidia-smi -q | grep -A 4 Fabric; journalctl -u \
                 nvidia-fabricmanager",
            ))
            .fix(Fix::run(
                "Reset the GPU, then start the fabric manager again",
                "nvidia-smi --gpu-reset; systemctl restart nvidia-fabricmanager",
            ))
    } else {
        Finding::info(summary)
    };
    Some(
        (gpus.iter().zip(&sums)).fold(finding, |finding, (gpu, sum)| {
            finding.evidence(gpu.clone(), format!("{sum} links to other GPUs"))
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Verdict;

    fn of(gpus: usize, count: impl Fn(usize, usize) -> u8) -> Option<Finding> {
        let names: Vec<String> = (0..gpus).map(|gpu| format!("GPU{gpu}")).collect();
        let pairs = (0..gpus).flat_map(|a| (a + 1..gpus).map(move |b| (a, b)));
        let links: Vec<Links> = pairs
            .map(|(a, b)| Links {
                between: (a, b),
                count: count(a, b),
            })
            .collect();
        judge(&names, &links)
    }

    #[test]
    fn a_gpu_outside_the_fabric_is_a_warning_and_an_equal_fabric_passes() {
        assert_eq!(of(8, |_, _| 18).unwrap().verdict, Verdict::Pass);
        let found = of(8, |a, b| if a == 2 || b == 2 { 0 } else { 18 }).unwrap();
        assert_eq!(found.verdict, Verdict::Warn);
        assert_eq!(found.summary, "GPU2 has no NVLink, unlike the other GPUs");
        let found = of(8, |a, b| if a == 2 || b == 2 { 16 } else { 18 }).unwrap();
        assert_eq!(
            found.summary,
            "GPU2 has fewer NVLinks, unlike the other GPUs"
        );
    }

    #[test]
    fn bridges_between_some_cards_are_no_fault() {
        assert_eq!(
            of(4, |a, b| u8::from((a, b) == (0, 1)) * 12)
                .unwrap()
                .verdict,
            Verdict::Info
        );
        assert_eq!(
            of(4, |a, b| u8::from(a / 2 == b / 2) * 12).unwrap().verdict,
            Verdict::Pass
        );
        assert!(of(4, |_, _| 0).is_none());
    }
}
