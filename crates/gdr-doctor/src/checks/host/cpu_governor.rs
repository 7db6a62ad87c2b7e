//! `cpu.governor`: CPUs run at full speed.

use std::collections::BTreeMap;

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

const CPUFREQ: &str = "/sys/devices/system/cpu/cpufreq";

/// Drivers whose `powersave` leaves the choice to the CPU, which raises its speed under load.
const SELF_GOVERNED: [&str; 3] = ["intel_pstate", "amd-pstate-epp", "amd_pstate_epp"];

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.governor"),
    group: Group::Host,
    title: "CPUs run at full speed (scaling governor)",
    documentation: Documentation {
        means: "A CPU that polls for completions at a low clock sees them late: latency rises, \
                message rates fall. Copies through CPU mappings slow down with the clock too.",
        reads: "/sys/devices/system/cpu/cpufreq/policy*/scaling_governor and scaling_driver.",
        judges: "pass: performance. info: another governor, which follows the load. warn: \
                 powersave, where it means the lowest clock. skip: the clock is not Linux's to \
                 set. unknown: not collected.",
        sources: &[
            "Linux Documentation/admin-guide/pm/cpufreq.rst and intel_pstate.rst",
            "DAQIRI tune_system.py",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let names = match context.source.list(CPUFREQ) {
        Datum::Present(names) => names,
        Datum::Missing => {
            return vec![Finding::skip("Linux does not set the clock of these CPUs")];
        }
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the governor of CPUs",
                &absent,
            )];
        }
    };
    let mut governors: BTreeMap<String, usize> = BTreeMap::new();
    let mut absence = Datum::Missing;
    for policy in names.iter().filter(|name| name.starts_with("policy")) {
        match context.text(&format!("{CPUFREQ}/{policy}/scaling_governor")) {
            Datum::Present(governor) => *governors.entry(governor).or_default() += 1,
            absent => absence = absent,
        }
    }
    if governors.is_empty() {
        return vec![match absence {
            Datum::Missing => Finding::skip("Linux does not set the clock of these CPUs"),
            absent => Finding::unknown(Subject::Node, "the governor of CPUs", &absent),
        }];
    }
    let driver = context
        .text(&format!("{CPUFREQ}/policy0/scaling_driver"))
        .into_present()
        .unwrap_or_default();
    let shown = governors
        .iter()
        .map(|(governor, count)| format!("{governor} ({count})"))
        .collect::<Vec<_>>()
        .join(", ");
    let path = format!("{CPUFREQ}/policy*/scaling_governor");
    if governors.keys().all(|governor| governor == "performance") {
        return vec![
            Finding::pass(Subject::Node, "every CPU runs at full speed").evidence(path, shown),
        ];
    }
    let lowest = governors.contains_key("powersave") && !SELF_GOVERNED.contains(&driver.as_str());
    let finding = if lowest {
        Finding::warn(Subject::Node, "CPUs run at their lowest clock (powersave)")
    } else {
        Finding::info(
            Subject::Node,
            "the clock of CPUs follows their load: latency is lower with `performance`",
        )
    };
    let mut finding = finding.evidence(path, shown);
    if !driver.is_empty() {
        finding = finding.evidence(format!("{CPUFREQ}/policy0/scaling_driver"), driver);
    }
    vec![
        finding.fix(
            Fix::now(
                "Run at full speed",
                Action::Command {
                    line: "cpupower frequency-set -g performance".into(),
                },
            )
            .risk(Risk::Low, "the machine draws more power"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    fn governed(governor: &str, driver: &str) -> MemorySource {
        example::healthy()
            .file(&format!("{CPUFREQ}/policy0/scaling_governor"), governor)
            .file(&format!("{CPUFREQ}/policy0/scaling_driver"), driver)
    }

    #[test]
    fn full_speed_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass]);
    }

    #[test]
    fn governors_that_follow_the_load_are_told_of_and_the_lowest_clock_warned_of() {
        assert_eq!(
            verdict(&CHECK, &governed("schedutil", "acpi-cpufreq")),
            Verdict::Info
        );
        assert_eq!(
            verdict(&CHECK, &governed("powersave", "intel_pstate")),
            Verdict::Info
        );
        assert_eq!(
            verdict(&CHECK, &governed("powersave", "acpi-cpufreq")),
            Verdict::Warn
        );
    }

    #[test]
    fn a_guest_without_clocks_is_no_question_and_what_was_not_collected_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
