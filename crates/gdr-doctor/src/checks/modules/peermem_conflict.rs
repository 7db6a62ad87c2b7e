use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.conflict"),
    title: "nv_peer_mem and nvidia_peermem are not used together",
    why: "nvidia_peermem replaces nv_peer_mem. If both are loaded, or the old module's service is \
          still enabled, both claim the same memory, and either may serve a registration.",
    inputs: "/proc/modules; the units nv_peer_mem.service and nvidia-peermem.service.",
    criteria: "pass: at most one. fail: both are loaded. warn: nvidia_peermem is loaded and the \
               service of nv_peer_mem is enabled. skip: no GPU.",
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
        (true, false, true) => {
            Finding::warn("nvidia_peermem is loaded, and the service of nv_peer_mem is enabled too")
                .fix(remove())
        }
        (false, true, _) => {
            Finding::pass("only nv_peer_mem is loaded; nvidia_peermem replaces it since driver 470")
        }
        _ => Finding::pass("at most one peer-memory module is in use"),
    };
    let finding = finding.evidence("/proc/modules", loaded);
    let service = enabled.then_some(("nv_peer_mem.service", "enabled"));
    Ok(finding.evidence_all(service))
}

fn remove() -> Fix {
    Fix::now(
        "Remove nv_peer_mem",
        Action::UnloadModule {
            module: OLD.to_owned(),
        },
    )
    .then(Action::run("systemctl disable --now nv_peer_mem"))
    .effect(Effect::Now)
    .persistence(Persistence::Permanent)
    .risk(
        Risk::Medium,
        "running jobs lose their registrations of GPU memory",
    )
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
        let found = judged(&CHECK, &both, Fail);
        assert_eq!(
            found.fixes[0].actions[0].to_string(),
            "modprobe -r nv_peer_mem"
        );
    }

    #[test]
    fn an_enabled_service_of_the_old_module_is_a_warning() {
        let node = example::healthy().file(
            "@systemd/nv_peer_mem.service",
            "Id=nv_peer_mem.service\nUnitFileState=enabled\n",
        );
        assert_eq!(verdict(&CHECK, &node), Warn);
    }
}
