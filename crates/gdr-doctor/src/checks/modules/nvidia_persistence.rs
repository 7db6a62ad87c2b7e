//! `nvidia.persistence`: the GPUs stay initialised between jobs.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::facts::Container;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Fix, Persistence, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.persistence"),
    group: Group::Modules,
    title: "the GPUs stay initialised between jobs",
    documentation: Documentation {
        means: "Without nvidia-persistenced a GPU is initialised anew by the first process of each \
                job, which takes seconds and forgets settings such as relaxed ordering and clocks.",
        reads: "/run/nvidia-persistenced; the unit nvidia-persistenced.service.",
        judges: "pass: running. warn: installed and not running. info: not installed. skip: no \
                 driver, or a container.",
        sources: &["NVIDIA driver persistence documentation"],
    },
    purposes: &[],
    symptom_of: &[CheckId("nvidia.version")],
    run,
};

const RUN: &str = "/run/nvidia-persistenced";

fn run(context: &Context<'_>) -> Vec<Finding> {
    let facts = context.facts();
    if facts.nvidia == Datum::Missing {
        return vec![Finding::skip("NVIDIA's driver is not loaded")];
    }
    let unit = context.text(&format!(
        "{}/nvidia-persistenced.service",
        virtual_path::SYSTEMD
    ));
    let marks = context.source.list(RUN);
    let marked = (marks.present()).is_some_and(|names| {
        names
            .iter()
            .any(|name| name == "socket" || name.ends_with(".pid"))
    });
    let says = |line: &str| (unit.present()).is_some_and(|unit| unit.lines().any(|it| it == line));
    let finding = if marked {
        Finding::pass(Subject::Node, "nvidia-persistenced is running").evidence(RUN, "in use")
    } else if says("ActiveState=active") {
        Finding::pass(Subject::Node, "nvidia-persistenced is running")
            .evidence("nvidia-persistenced.service", "ActiveState=active")
    } else if facts.container.present() == Some(&Container::Yes) {
        Finding::skip("this is a container: the host runs nvidia-persistenced")
    } else if says("LoadState=loaded") {
        Finding::warn(
            Subject::Node,
            "nvidia-persistenced is installed and does not run: each job initialises the GPUs anew",
        )
        .evidence("nvidia-persistenced.service", "not active")
        .fix(
            Fix::now(
                "Run it, now and at every boot",
                Action::Command {
                    line: "systemctl enable --now nvidia-persistenced".to_owned(),
                },
            )
            .persistence(Persistence::Permanent)
            .risk(Risk::None, "none"),
        )
    } else if marks.is_unknown() && unit.is_unknown() {
        Finding::unknown(Subject::Node, "whether nvidia-persistenced runs", &unit)
    } else {
        Finding::info(
            Subject::Node,
            "nvidia-persistenced is not there: each job initialises the GPUs anew",
        )
    };
    vec![finding]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::verdict;
    use crate::finding::Verdict;

    const UNIT: &str = "@systemd/nvidia-persistenced.service";

    #[test]
    fn a_running_daemon_passes_by_either_sign() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        assert_eq!(
            verdict(&CHECK, &example::healthy().without(RUN)),
            Verdict::Pass
        );
    }

    #[test]
    fn one_that_is_installed_and_stopped_is_warned_of() {
        let stopped = example::healthy()
            .without(RUN)
            .file(UNIT, "LoadState=loaded\nActiveState=inactive\n");
        assert_eq!(verdict(&CHECK, &stopped), Verdict::Warn);
        assert_eq!(
            verdict(&CHECK, &stopped.clone().without(UNIT)),
            Verdict::Info
        );
        assert_eq!(
            verdict(&CHECK, &stopped.file("/.dockerenv", "")),
            Verdict::Skip
        );
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
