//! `peermem.conflict`: the old and the new peer-memory module do not meet.

use gdr_node::{Datum, virtual_path};

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Action, Effect, Fix, Persistence, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.conflict"),
    group: Group::Modules,
    title: "nv_peer_mem and nvidia_peermem do not meet",
    documentation: Documentation {
        means: "nvidia_peermem took the place of nv_peer_mem. Where both are loaded or the old \
                one's service still starts, they answer for the same memory, and which of them \
                serves a registration is chance.",
        reads: "/proc/modules; the units nv_peer_mem.service and nvidia-peermem.service.",
        judges: "pass: at most one. fail: both are loaded. warn: nvidia_peermem is loaded and the \
                 service of the other is enabled. skip: no GPU.",
        sources: &["NVIDIA driver README, chapter GPUDirect RDMA Peer Memory Client"],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

const OLD: &str = "nv_peer_mem";

fn run(context: &Context<'_>) -> Vec<Finding> {
    if context.inventory.tree.is_present() && context.inventory.gpus.is_empty() {
        return vec![super::no_gpu(context)];
    }
    let facts = context.facts();
    if !facts.modules.is_present() {
        return vec![Finding::unknown(
            Subject::Node,
            "the list of loaded modules",
            &facts.modules,
        )];
    }
    let new = facts.module("nvidia_peermem").is_present();
    let old = facts.module(OLD).is_present();
    let unit = context.text(&format!("{}/{OLD}.service", virtual_path::SYSTEMD));
    let enabled = unit
        .present()
        .is_some_and(|unit| unit.lines().any(|line| line == "UnitFileState=enabled"));
    let loaded = match (new, old) {
        (true, true) => "nvidia_peermem and nv_peer_mem",
        (true, false) => "nvidia_peermem",
        (false, true) => "nv_peer_mem",
        (false, false) => "neither",
    };
    let finding = match (new, old, enabled) {
        (true, true, _) => Finding::fail(
            Subject::Node,
            "nvidia_peermem and nv_peer_mem are both loaded",
        )
        .fix(remove()),
        (true, false, true) => Finding::warn(
            Subject::Node,
            "nvidia_peermem is loaded, and the service of nv_peer_mem is enabled beside it",
        )
        .fix(remove()),
        (false, true, _) => Finding::pass(
            Subject::Node,
            "only nv_peer_mem is loaded, which nvidia_peermem has replaced since driver 470",
        ),
        _ => Finding::pass(Subject::Node, "at most one peer-memory module is there"),
    };
    let finding = finding.evidence("/proc/modules", loaded);
    vec![match (enabled, unit) {
        (true, Datum::Present(_)) => finding.evidence("nv_peer_mem.service", "enabled"),
        _ => finding,
    }]
}

fn remove() -> Fix {
    Fix::now(
        "Take nv_peer_mem out",
        Action::UnloadModule {
            module: OLD.to_owned(),
        },
    )
    .then(Action::Command {
        line: "systemctl disable --now nv_peer_mem".to_owned(),
    })
    .effect(Effect::Now)
    .persistence(Persistence::Permanent)
    .risk(Risk::Medium, "jobs that have GPU memory registered lose it")
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    #[test]
    fn one_module_passes_and_two_fail() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let both = example::healthy().file(
            "/proc/modules",
            "nv_peer_mem 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n",
        );
        let found = worst(&CHECK, &both);
        assert_eq!(found.verdict, Verdict::Fail);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "modprobe -r nv_peer_mem"
        );
    }

    #[test]
    fn a_service_that_is_left_over_is_warned_of() {
        let node = example::healthy().file(
            "@systemd/nv_peer_mem.service",
            "Id=nv_peer_mem.service\nUnitFileState=enabled\n",
        );
        assert_eq!(verdict(&CHECK, &node), Verdict::Warn);
    }

    #[test]
    fn what_was_not_collected_is_not_judged() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
