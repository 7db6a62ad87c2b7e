//! `cpu.cstates`: how deep idle CPUs sleep.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Risk};

const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.cstates"),
    group: Group::Host,
    title: "how deep idle CPUs sleep is known",
    documentation: Documentation {
        means: "A CPU in a deep sleep takes up to some hundred microseconds to wake, which who \
                waits by interrupt pays. Who polls keeps its CPU awake.",
        reads: "/sys/devices/system/cpu/cpuidle/current_driver and the kernel's arguments \
                intel_idle.max_cstate, processor.max_cstate, idle.",
        judges: "info: what sleeps are allowed. pass: only light ones, or none. unknown: not \
                 collected.",
        sources: &[
            "Linux Documentation/admin-guide/pm/cpuidle.rst",
            "https://github.com/Mellanox/mlnx-tools (mlnx_tune)",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let driver = match context.text(DRIVER) {
        Datum::Present(driver) => driver,
        Datum::Missing => {
            return vec![Finding::skip("Linux does not decide how these CPUs sleep")];
        }
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "what puts idle CPUs to sleep",
                &absent,
            )];
        }
    };
    if driver == "none" {
        return vec![
            Finding::pass(Subject::Node, "idle CPUs do not sleep deeply").evidence(DRIVER, driver),
        ];
    }
    let facts = context.facts();
    let limit = ["intel_idle.max_cstate", "processor.max_cstate", "idle"]
        .into_iter()
        .find_map(|name| Some((name, *facts.argument(name).present()?)));
    vec![match limit {
        Some((name, value)) if matches!(value, "0" | "1" | "poll" | "halt") => {
            Finding::pass(Subject::Node, "idle CPUs sleep only lightly")
                .evidence("/proc/cmdline", format!("{name}={value}"))
        }
        _ => Finding::info(
            Subject::Node,
            format!("idle CPUs may sleep deeply ({driver}): who waits by interrupt wakes later"),
        )
        .evidence(DRIVER, driver)
        .fix(
            Fix::now(
                "Choose a profile for low latency",
                Action::Command {
                    line: "tuned-adm profile latency-performance".into(),
                },
            )
            .risk(Risk::Low, "the machine draws more power"),
        ),
    }]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts};
    use crate::finding::Verdict;

    #[test]
    fn deep_sleep_is_told_of_and_a_limit_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Info]);
        let limited = example::healthy().file("/proc/cmdline", "quiet intel_idle.max_cstate=1\n");
        assert_eq!(verdict(&CHECK, &limited), Verdict::Pass);
        let none = example::healthy().file(DRIVER, "none\n");
        assert_eq!(verdict(&CHECK, &none), Verdict::Pass);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_nothing_to_decide_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Verdict::Skip);
    }
}
