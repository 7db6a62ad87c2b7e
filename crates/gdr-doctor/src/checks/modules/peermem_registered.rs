use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.registered"),
    title: "the peer-memory module has joined the RDMA stack",
    why: "A peer-memory module that is loaded is of no use unless it registered itself with \
          ib_core: after the RDMA stack was replaced under it, it may be loaded and serve no device.",
    inputs: "/proc/modules: whether ib_core is used by the module; \
          /sys/kernel/mm/memory_peers/{nv_mem,nv_mem_nc}.",
    criteria: "pass: either shows it. warn: loaded, and neither does. skip: no such module is \
          loaded. unknown: the modules are not known.",
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
            Finding::pass(format!("{module} is a client of ib_core")).evidence(CLIENTS, client)
        );
    }
    let core = context.facts().module("ib_core");
    let users = match &core {
        Ok(core) => core.users.join(","),
        Err(Absence::Missing) => "ib_core is not a module here".to_owned(),
        absent => {
            return Ok(Finding::unknown("who uses ib_core", absent));
        }
    };
    let joined = users.split(',').any(|user| user == module);
    let made_up_for = gpudirect_support::dmabuf_everywhere(context) == Ok(true);
    let finding = if joined {
        Finding::pass(format!("{module} is a client of ib_core"))
    } else {
        Finding::new(
            super::unless(made_up_for, Verdict::Warn),
            format!("{module} is loaded and has not joined ib_core: it serves no NIC"),
        )
        .fix(
            Fix::now(
                "Load it again",
                Action::UnloadModule {
                    module: module.to_owned(),
                },
            )
            .then(Action::load(module.to_owned()))
            .risk(Risk::Medium, "jobs that have GPU memory registered lose it"),
        )
        .fix(Fix::manual(
            "Build it again",
            "reinstall the NVIDIA driver after the RDMA stack, so that the module is built \
             against what is loaded",
        ))
    };
    Ok(finding.evidence("/proc/modules, users of ib_core", users))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn not_joined() -> MemorySource {
        example::healthy()
            .without("/sys/kernel/mm/memory_peers")
            .without(virtual_path::VERBS_DEVICES)
            .file(
                "/proc/modules",
                "nvidia_peermem 1 0 - Live 0x0\nib_core 1 1 ib_uverbs, Live 0x0\n",
            )
    }

    #[test]
    fn a_client_passes_by_either_sign() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
        let by_users = example::healthy().without("/sys/kernel/mm/memory_peers");
        assert_eq!(verdict(&CHECK, &by_users), Pass);
    }

    #[test]
    fn one_that_is_loaded_and_serves_no_device_is_warned_of() {
        assert_eq!(verdict(&CHECK, &not_joined()), Warn);
    }

    #[test]
    fn without_a_module_it_does_not_apply() {
        let none = example::healthy()
            .file("/proc/modules", "ib_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
