use crate::checks::prelude::*;

const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.cstates"),
    title: "how deep idle CPUs sleep is known",
    why: "A CPU in a deep sleep takes up to some hundred microseconds to wake, which who waits by \
          interrupt pays. Who polls keeps its CPU awake.",
    inputs: "/sys/devices/system/cpu/cpuidle/current_driver and the kernel's arguments \
          intel_idle.max_cstate, processor.max_cstate, idle.",
    criteria: "info: what sleeps are allowed. pass: only light ones, or none. unknown: not \
          collected.",
    sources: &[
        "Linux Documentation/admin-guide/pm/cpuidle.rst",
        "https://github.com/Mellanox/mlnx-tools (mlnx_tune)",
    ],
    scope: Scope::Node(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Judgement {
    let driver = context.text(DRIVER).known_or_skip(
        "what puts idle CPUs to sleep",
        "Linux does not decide how these CPUs sleep",
    )?;
    if driver == "none" {
        return Ok(Finding::pass("idle CPUs do not sleep deeply").evidence(DRIVER, driver));
    }
    let facts = context.facts();
    let limit = ["intel_idle.max_cstate", "processor.max_cstate", "idle"]
        .into_iter()
        .find_map(|name| Some((name, *facts.argument(name).as_ref().ok()?)));
    Ok(match limit {
        Some((name, value)) if matches!(value, "0" | "1" | "poll" | "halt") => {
            Finding::pass("idle CPUs sleep only lightly")
                .evidence("/proc/cmdline", format!("{name}={value}"))
        }
        _ => Finding::info(format!(
            "idle CPUs may sleep deeply ({driver}): who waits by interrupt wakes later"
        ))
        .evidence(DRIVER, driver)
        .fix(
            Fix::run(
                "Choose a profile for low latency",
                "tuned-adm profile latency-performance",
            )
            .risk(Risk::Low, "the machine draws more power"),
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn deep_sleep_is_reported_and_a_limit_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info]);
        let limited = example::healthy().file("/proc/cmdline", "quiet intel_idle.max_cstate=1\n");
        assert_eq!(verdict(&CHECK, &limited), Pass);
        let none = example::healthy().file(DRIVER, "none\n");
        assert_eq!(verdict(&CHECK, &none), Pass);
    }

    #[test]
    fn what_was_not_collected_is_unknown_and_nothing_to_decide_is_no_question() {
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Skip);
    }
}
