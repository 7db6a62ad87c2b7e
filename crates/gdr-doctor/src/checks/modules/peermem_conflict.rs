use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.conflict"),
    title: "nv_peer_mem and nvidia_peermem do not meet",
    why: "nvidia_peermem took the place of nv_peer_mem. Where both are loaded or the old one's \
          service still starts, they answer for the same memory, and which of them serves a \
          registration is chance.",
    inputs: "/proc/modules; the units nv_peer_mem.service and nvidia-peermem.service.",
    criteria: "pass: at most one. fail: both are loaded. warn: nvidia_peermem is loaded and the \
          service of the other is enabled. skip: no GPU.",
    sources: &["NVIDIA driver README, chapter GPUDirect RDMA Peer Memory Client"],
    workloads: Workload::RDMA,
    scope: Scope::Node(run),
    ..super::CHECK
};

const OLD: &str = "nv_peer_mem";

fn run(context: &Context<'_>) -> Judgement {
    if context.inventory.tree.is_ok() && context.inventory.gpus.is_empty() {
        return Err(runner::no_gpu(context));
    }
    let facts = context.facts();
    facts.modules.by_ref().known("the list of loaded modules")?;
    let new = facts.module("nvidia_peermem").is_ok();
    let old = facts.module(OLD).is_ok();
    let unit = context.unit("nv_peer_mem.service");
    let enabled = unit.is_ok_and(|unit| unit.property("UnitFileState") == Some("enabled"));
    let loaded = match (new, old) {
        (true, true) => "nvidia_peermem and nv_peer_mem",
        (true, false) => "nvidia_peermem",
        (false, true) => "nv_peer_mem",
        (false, false) => "neither",
    };
    let finding = match (new, old, enabled) {
        (true, true, _) => {
            Finding::fail("nvidia_peermem and nv_peer_mem are both loaded").fix(remove())
        }
        (true, false, true) => Finding::warn(
            "nvidia_peermem is loaded, and the service of nv_peer_mem is enabled beside it",
        )
        .fix(remove()),
        (false, true, _) => Finding::pass(
            "only nv_peer_mem is loaded, which nvidia_peermem has replaced since driver 470",
        ),
        _ => Finding::pass("at most one peer-memory module is there"),
    };
    let finding = finding.evidence("/proc/modules", loaded);
    let service = enabled.then_some(("nv_peer_mem.service", "enabled"));
    Ok(finding.evidence_all(service))
}

fn remove() -> Fix {
    Fix::now(
        "Take nv_peer_mem out",
        Action::UnloadModule {
            module: OLD.to_owned(),
        },
    )
    .then(Action::run("systemctl disable --now nv_peer_mem"))
    .effect(Effect::Now)
    .persistence(Persistence::Permanent)
    .risk(Risk::Medium, "jobs that have GPU memory registered lose it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn one_module_passes_and_two_fail() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let both = example::healthy().file(
            "/proc/modules",
            "nv_peer_mem 1 0 - Live 0x0\nnvidia_peermem 1 0 - Live 0x0\n",
        );
        let found = worst(&CHECK, &both);
        assert_eq!(found.verdict, Fail);
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
        assert_eq!(verdict(&CHECK, &node), Warn);
    }
}
