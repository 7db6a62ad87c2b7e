use crate::checks::prelude::*;

const DRIVER: &str = "/sys/devices/system/cpu/cpuidle/current_driver";

pub(super) const CHECK: Check = Check {
    id: CheckId("cpu.cstates"),
    title: "the allowed idle states of CPUs are known",
    why: "A CPU in a deep idle state takes up to some hundred microseconds to wake up. Programs \
          that wait by interrupt pay for it; programs that poll keep their CPU awake.",
    inputs: "/sys/devices/system/cpu/cpuidle/current_driver and the kernel arguments \
             intel_idle.max_cstate, processor.max_cstate and idle.",
    criteria: "info: deep idle states are allowed. pass: only light ones, or none. unknown: not \
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
        "the idle driver of the CPUs",
        "Linux does not control the idle states of these CPUs",
    )?;
    if driver == "none" {
        return Ok(Finding::pass("CPUs do not use deep idle states").evidence(DRIVER, driver));
    }
    let facts = context.facts();
    let limit = ["intel_idle.max_cstate", "processor.max_cstate", "idle"]
        .into_iter()
        .find_map(|name| Some((name, *facts.argument(name).as_ref().ok()?)));
    Ok(match limit {
        Some((name, value)) if matches!(value, "0" | "1" | "poll" | "halt") => {
            Finding::pass("CPUs use only light idle states")
                .evidence("/proc/cmdline", format!("{name}={value}"))
        }
        _ => Finding::info(format!(
            "CPUs may use deep idle states ({driver}): programs that wait by interrupt wake up \
             later"
        ))
        .evidence(DRIVER, driver)
        .fix(
            Fix::run(
                "Use a profile for low latency",
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
    fn deep_idle_states_are_info_and_a_limit_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Info]);
        let limited = example::healthy().file("/proc/cmdline", "quiet intel_idle.max_cstate=1\n");
        assert_eq!(verdict(&CHECK, &limited), Pass);
        let none = example::healthy().file(DRIVER, "none\n");
        assert_eq!(verdict(&CHECK, &none), Pass);
    }

    #[test]
    fn a_node_without_idle_driver_is_skipped() {
        assert_eq!(verdict(&CHECK, &MemorySource::new()), Skip);
    }
}
