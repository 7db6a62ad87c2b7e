use std::collections::BTreeMap;

use crate::checks::prelude::*;

const CPUFREQ: &str = "/sys/devices/system/cpu/cpufreq";

/// Drivers whose `powersave` lets the CPU choose its clock, which it raises under load.
const SELF_GOVERNED: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.governor"),
    title: "CPUs run at full speed (scaling governor)",
    why: "A CPU that polls for completions at a low clock sees them late: latency rises and \
          message rates fall. Copies through CPU mappings slow down with the clock too.",
    inputs: "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor and scaling_driver.",
    criteria: "pass: performance. info: another governor, which follows the load. warn: powersave, \
               if it means the lowest clock. skip: Linux does not control the clock. unknown: not \
               collected.",
    sources: &[
        "Linux Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst",
        "DAQIRI tune_system.py",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let names = context.source.list(CPUFREQ).known_or_skip(
        "the governor of the CPUs",
        "Linux does not control the clock of these CPUs",
    )?;
    let mut governors: BTreeMap<String, usize> = BTreeMap::new();
    let mut absence = Err(Absence::Missing);
    for policy in names.iter().filter(|name| name.starts_with("policy")) {
        match context.text(&format!("{CPUFREQ}/{policy}/scaling_governor")) {
            Ok(governor) => *governors.entry(governor).or_default() += 1,
            absent => absence = absent,
        }
    }
    if governors.is_empty() {
        return Ok(match absence {
            Err(Absence::Missing) => Finding::skip(
                "Linux does not control the clock of these \
                                                    CPUs",
            ),
            absent => Finding::unknown("the governor of the CPUs", &absent),
        });
    }
    let driver = context
        .text(&format!("{CPUFREQ}/policy0/scaling_driver"))
        .ok()
        .unwrap_or_default();
    let shown = governors
        .iter()
        .map(|(governor, count)| format!("{governor} ({count})"))
        .collect::<Vec<_>>()
        .join(", ");
    let path = format!("{CPUFREQ}/policy*/scaling_governor");
    if governors.keys().all(|governor| governor == "performance") {
        return Ok(Finding::pass("every CPU runs at full speed").evidence(path, shown));
    }
    let lowest = governors.contains_key("powersave") && !SELF_GOVERNED.contains(&driver.as_str());
    let finding = if lowest {
        Finding::warn("CPUs run at their lowest clock (powersave)")
    } else {
        Finding::info(
            "the clock of the CPUs follows their load: latency is lower with \
                       `performance`",
        )
    };
    let mut finding = finding.evidence(path, shown);
    if !driver.is_empty() {
        finding = finding.evidence(format!("{CPUFREQ}/policy0/scaling_driver"), driver);
    }
    Ok(finding.fix(
        Fix::run(
            "Run the CPUs at full speed",
            "cpupower frequency-set -g performance",
        )
        .risk(Risk::Low, "the machine draws more power"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn governed(governor: &str, driver: &str) -> MemorySource {
        example::healthy()
            .file(&format!("{CPUFREQ}/policy0/scaling_governor"), governor)
            .file(&format!("{CPUFREQ}/policy0/scaling_driver"), driver)
    }

    #[test]
    fn full_speed_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn governors_that_follow_the_load_are_info_and_the_lowest_clock_is_a_warning() {
        for (governor, driver, expected) in [
            ("schedutil", "acpi-cpufreq", Info),
            ("powersave", "intel_pstate", Info),
            ("powersave", "acpi-cpufreq", Warn),
        ] {
            assert_eq!(verdict(&CHECK, &governed(governor, driver)), expected);
        }
    }

    #[test]
    fn a_node_without_clock_control_is_skipped() {
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Skip);
    }
}
