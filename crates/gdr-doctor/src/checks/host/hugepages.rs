use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("hugepages"),
    title: "the amount of memory reserved as huge pages is known",
    why: "DPDK and similar programs keep their packets in huge pages that are reserved at boot. \
          Verbs do not need them. Other programs cannot use reserved memory.",
    inputs: "HugePages_Total and Hugepagesize in /proc/meminfo.",
    criteria: "info: the amount, which is enough for DPDK from 500 MB on. unknown: not collected.",
    sources: &[
        "Linux Documentation/admin-guide/mm/hugetlbpage.rst",
        "https://docs.nvidia.com/holoscan/ (high-performance networking: huge pages)",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let bytes = context.text("/proc/meminfo").map(|text| {
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
                .unwrap_or(0)
        };
        (field("HugePages_Total:"), field("Hugepagesize:"))
    });
    let (pages, kib) = bytes.known("the count of huge pages")?;
    let mib = pages.saturating_mul(kib) >> 10;
    let summary = if pages == 0 {
        "no memory is reserved as huge pages, and verbs do not need any".to_owned()
    } else {
        format!("{mib} MiB of memory are reserved as huge pages, which verbs do not need")
    };
    Ok(Finding::info(summary).evidence("/proc/meminfo", format!("{pages} pages of {kib} kB")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn the_amount_is_shown() {
        let found = judged(&CHECK, &example::healthy(), Info);
        assert!(found.summary.starts_with("2048 MiB"), "{}", found.summary);
        let none = MemorySource::new().file("/proc/meminfo", "MemTotal: 1 kB\n");
        assert!(worst(&CHECK, &none).summary.starts_with("no memory"));
    }
}
