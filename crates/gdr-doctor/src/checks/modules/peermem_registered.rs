use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.registered"),
    title: "the peer-memory module is registered with the RDMA stack",
    why: "A loaded peer-memory module works only if it is registered with ib_core. If the RDMA \
          stack was replaced after the module was built, the module may be loaded without being \
          registered.",
    inputs: "/proc/modules: whether the module uses ib_core; \
             /sys/kernel/mm/memory_peers/{nv_mem,nv_mem_nc}.",
    criteria: "pass: either shows it. warn: loaded, but neither shows it. skip: no such module is \
               loaded. unknown: the list of modules is not known.",
    sources: &[
        "https://github.com/leptonai/gpud components/accelerator/nvidia/peermem",
        "NCCL src/transport/net_ib/gdr.cc (/sys/kernel/mm/memory_peers)",
    ],
    workloads: Workload::RDMA,
    symptom_of: &["peermem.symbol", "peermem.conflict"],
    scope: Scope::Node(run),
    ..super::CHECK
};

const CLIENTS: &str = "/sys/kernel/mm/memory_peers";

fn run(context: &Context<'_>) -> Judgement {
    let module = gpudirect_support::peer_module(context).known_or_skip(
        "the list of loaded modules",
        "no peer-memory module is loaded",
    )?;
    let clients = context.source.list(CLIENTS).ok();
    let client = clients
        .unwrap_or_default()
        .into_iter()
        .find(|name| name.starts_with("nv_mem"));
    if let Some(client) = client {
        return Ok(
            Finding::pass(format!("{module} is registered with ib_core")).evidence(CLIENTS, client),
        );
    }
    let core = context.facts().module("ib_core");
    let users = match &core {
        Ok(core) => core.users.join(","),
        Err(Absence::Missing) => "ib_core is not a module".to_owned(),
        absent => {
            return Ok(Finding::unknown("the list of users of ib_core", absent));
        }
    };
    let registered = users.split(',').any(|user| user == module);
    let made_up_for = gpudirect_support::dmabuf_everywhere(context) == Ok(true);
    let finding =
        if registered {
            Finding::pass(format!("{module} is registered with ib_core"))
        } else {
            Finding::new(
            super::unless(made_up_for, Verdict::Warn),
            format!("{module} is loaded, but not registered with ib_core: no NIC can use it"),
        )
        .fix(
            Fix::now(
                "Reload it",
                Action::UnloadModule {
                    module: module.to_owned(),
                },
            )
            .then(Action::load(module.to_owned()))
            .risk(Risk::Medium, "running jobs lose their registrations of GPU memory"),
        )
        .fix(Fix::manual(
            "Rebuild it",
            "reinstall the NVIDIA driver after the RDMA stack, so that the module is built against \
             the loaded one",
        ))
        };
    Ok(finding.evidence("/proc/modules, users of ib_core", users))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn unregistered() -> MemorySource {
        example::healthy()
            .without("/sys/kernel/mm/memory_peers")
            .without(virtual_path::VERBS_DEVICES)
            .file(
                "/proc/modules",
                "nvidia_peermem 1 0 - Live 0x0\nib_core 1 1 ib_uverbs, Live 0x0\n",
            )
    }

    #[test]
    fn a_registered_module_is_found_by_sysfs_or_by_the_users_of_ib_core() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let by_users = example::healthy().without("/sys/kernel/mm/memory_peers");
        assert_eq!(verdict(&CHECK, &by_users), Pass);
    }

    #[test]
    fn an_unregistered_module_is_a_warning() {
        assert_eq!(verdict(&CHECK, &unregistered()), Warn);
    }

    #[test]
    fn a_node_without_a_module_is_skipped() {
        assert_eq!(verdict(&CHECK, &without_peermem()), Skip);
    }
}
