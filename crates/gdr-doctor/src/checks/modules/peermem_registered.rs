//! `peermem.registered`: the peer-memory module that is loaded has joined the RDMA stack.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject, Verdict};
use crate::fix::{Action, Fix, Risk};
use crate::reach;

pub(super) const CHECK: Check = Check {
    id: CheckId("peermem.registered"),
    group: Group::Modules,
    title: "the peer-memory module has joined the RDMA stack",
    documentation: Documentation {
        means: "A peer-memory module that is loaded is of no use unless it registered itself with \
                ib_core: after the RDMA stack was replaced under it, it may be loaded and serve \
                nobody.",
        reads: "/proc/modules: whether ib_core is used by the module; \
                /sys/kernel/mm/memory_peers/{nv_mem,nv_mem_nc}.",
        judges: "pass: either shows it. warn: loaded, and neither does. skip: no such module is \
                 loaded. unknown: the modules are not known.",
        sources: &[
            "https://github.com/leptonai/gpud components/accelerator/nvidia/peermem",
            "NCCL src/transport/net_ib/gdr.cc (/sys/kernel/mm/memory_peers)",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[CheckId("peermem.symbol"), CheckId("peermem.conflict")],
    run,
};

const CLIENTS: &str = "/sys/kernel/mm/memory_peers";

fn run(context: &Context<'_>) -> Vec<Finding> {
    let module = match reach::peer_module(context) {
        Datum::Present(module) => module,
        Datum::Missing => return vec![Finding::skip("no peer-memory module is loaded")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the list of loaded modules",
                &absent,
            )];
        }
    };
    let clients = context.source.list(CLIENTS).into_present();
    let client = clients
        .unwrap_or_default()
        .into_iter()
        .find(|name| name.starts_with("nv_mem"));
    if let Some(client) = client {
        return vec![
            Finding::pass(Subject::Node, format!("{module} is a client of ib_core"))
                .evidence(CLIENTS, client),
        ];
    }
    let core = context.facts().module("ib_core");
    let users = match &core {
        Datum::Present(core) => core.users.join(","),
        Datum::Missing => "ib_core is not a module here".to_owned(),
        absent => {
            return vec![Finding::unknown(Subject::Node, "who uses ib_core", absent)];
        }
    };
    let joined = users.split(',').any(|user| user == module);
    let made_up_for = reach::dmabuf_everywhere(context) == Datum::Present(true);
    let finding = if joined {
        Finding::pass(Subject::Node, format!("{module} is a client of ib_core"))
    } else {
        Finding::new(
            super::unless(made_up_for, Verdict::Warn),
            Subject::Node,
            format!("{module} is loaded and has not joined ib_core: it serves no NIC"),
        )
        .fix(
            Fix::now(
                "Load it anew",
                Action::UnloadModule {
                    module: module.to_owned(),
                },
            )
            .then(Action::LoadModule {
                module: module.to_owned(),
            })
            .risk(Risk::Medium, "jobs that have GPU memory registered lose it"),
        )
        .fix(Fix::manual(
            "Build it anew",
            "reinstall the NVIDIA driver after the RDMA stack, so that the module is built \
             against what is loaded",
        ))
    };
    vec![finding.evidence("/proc/modules, users of ib_core", users)]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::verdict;

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
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let by_users = example::healthy().without("/sys/kernel/mm/memory_peers");
        assert_eq!(verdict(&CHECK, &by_users), Verdict::Pass);
    }

    #[test]
    fn one_that_is_loaded_and_serves_nobody_is_warned_of() {
        assert_eq!(verdict(&CHECK, &not_joined()), Verdict::Warn);
    }

    #[test]
    fn without_a_module_it_does_not_apply() {
        let none = example::healthy()
            .file("/proc/modules", "ib_core 1 0 - Live 0x0\n")
            .without("/sys/module/nvidia_peermem");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
