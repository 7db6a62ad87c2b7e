use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.persistence"),
    title: "the GPUs stay initialised between jobs",
    why: "Without nvidia-persistenced the first process of each job initialises the GPUs again. \
          That takes seconds and resets settings such as relaxed ordering and clocks.",
    inputs: "/run/nvidia-persistenced; the unit nvidia-persistenced.service; in a capture the \
             persistence mode of nvidia-smi.",
    criteria: "pass: it runs. warn: installed, but not running. info: not installed, or the mode of a GPU is off. skip: no \
               driver, or a container.",
    sources: &["NVIDIA driver persistence documentation"],
    symptom_of: &["nvidia.version"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const RUN: &str = "/run/nvidia-persistenced";

fn run(context: &Context<'_>) -> Judgement {
    let facts = context.facts();
    if facts.nvidia == Err(Absence::Missing) {
        return Err(Unjudged::skip("NVIDIA's driver is not loaded"));
    }
    let unit = context.unit("nvidia-persistenced.service");
    let marks = context.source.list(RUN);
    let marked = (marks.as_ref().ok()).is_some_and(|names| {
        names
            .iter()
            .any(|name| name == "socket" || name.ends_with(".pid"))
    });
    let says = |name: &str, value: &str| {
        (unit.as_ref()).is_ok_and(|unit| unit.property(name) == Some(value))
    };
    let finding = if marked {
        Finding::pass("nvidia-persistenced is running").evidence(RUN, "in use")
    } else if says("ActiveState", "active") {
        Finding::pass("nvidia-persistenced is running")
            .evidence("nvidia-persistenced.service", "ActiveState=active")
    } else if context.is_container() {
        Finding::skip("in a container nvidia-persistenced runs on the host")
    } else if says("LoadState", "loaded") {
        Finding::warn(
            "nvidia-persistenced is installed, but does not run: each job initialises the GPUs \
             again",
        )
        .evidence("nvidia-persistenced.service", "not active")
        .fix(
            Fix::run(
                "Start it, now and at every boot",
                "systemctl enable --now nvidia-persistenced",
            )
            .persistence(Persistence::Permanent)
            .risk(Risk::None, "none"),
        )
    } else if marks.is_unknown() && unit.is_unknown() {
        match persistence_mode(context) {
            Some(true) => Finding::pass("the persistence mode of every GPU is on"),
            Some(false) => Finding::info(
                "the persistence mode of a GPU is off: unless a process runs, each job initialises \
                 it again",
            ),
            None => Finding::unknown("whether nvidia-persistenced runs", &unit),
        }
    } else {
        Finding::info("nvidia-persistenced is not installed: each job initialises the GPUs again")
    };
    Ok(finding)
}

/// Returns whether nvidia-smi reports the persistence mode of every GPU as on.
fn persistence_mode(context: &Context<'_>) -> Option<bool> {
    let answer = context.facts().nvml.as_ref().ok()?;
    let modes: Option<Vec<bool>> = answer.devices.iter().map(|gpu| gpu.persistence).collect();
    let modes = modes.filter(|modes| !modes.is_empty())?;
    Some(modes.into_iter().all(|on| on))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    const UNIT: &str = "@systemd/nvidia-persistenced.service";

    #[test]
    fn a_running_daemon_is_found_by_its_files_or_its_unit() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        assert_eq!(verdict(&CHECK, &example::healthy().without(RUN)), Pass);
    }

    #[test]
    fn an_installed_daemon_that_does_not_run_is_a_warning() {
        let stopped = example::healthy()
            .without(RUN)
            .file(UNIT, "LoadState=loaded\nActiveState=inactive\n");
        assert_eq!(verdict(&CHECK, &stopped), Warn);
        assert_eq!(verdict(&CHECK, &stopped.clone().without(UNIT)), Info);
        assert_eq!(verdict(&CHECK, &stopped.file("/.dockerenv", "")), Skip);
    }
}
