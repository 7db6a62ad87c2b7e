//! `virt`: what the machine is, seen from inside.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::facts::{Container, Machine};
use crate::finding::{Finding, Subject};

pub(super) const CHECK: Check = Check {
    id: CheckId("virt"),
    group: Group::Host,
    title: "whether this is a guest or a container is known",
    documentation: Documentation {
        means: "In a guest the PCI tree may be made up and the host decides about ACS and the \
                IOMMU; in a container modules, limits and device nodes are the host's to give. \
                Other checks judge by it.",
        reads: "The flag `hypervisor` in /proc/cpuinfo; /.dockerenv, /run/.containerenv and \
                /proc/1/cgroup; /sys/class/dmi/id; /proc/version for gVisor.",
        judges: "info: what it is. unknown: not collected.",
        sources: &[
            "Linux arch/x86/kernel/cpu/hypervisor.c",
            "systemd-detect-virt(1)",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let facts = context.facts();
    if !facts.machine.is_present() && !facts.container.is_present() {
        return vec![Finding::unknown(
            Subject::Node,
            "whether this is a guest or a container",
            &facts.machine,
        )];
    }
    let machine = match facts.machine {
        Datum::Present(Machine::Bare) => Some("no guest"),
        Datum::Present(Machine::Virtual) => Some("a guest of a hypervisor"),
        _ => None,
    };
    let gvisor = context
        .text("/proc/version")
        .present()
        .is_some_and(|text| text.contains("gVisor"));
    let container = match facts.container {
        _ if gvisor => Some("a sandbox of gVisor"),
        Datum::Present(Container::Yes) => Some("a container"),
        Datum::Present(Container::No) => Some("no container"),
        _ => None,
    };
    let known: Vec<&str> = machine.into_iter().chain(container).collect();
    let mut finding = Finding::info(Subject::Node, format!("this is {}", known.join(" and ")));
    for name in ["sys_vendor", "product_name"] {
        let path = format!("/sys/class/dmi/id/{name}");
        if let Datum::Present(text) = context.text(&path) {
            finding = finding.evidence(path, text);
        }
    }
    vec![finding]
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    #[test]
    fn what_it_is_is_told() {
        let found = worst(&CHECK, &example::healthy());
        assert_eq!(found.verdict, Verdict::Info);
        assert_eq!(found.summary, "this is no guest and no container");
        let guest = example::healthy()
            .file("/proc/cpuinfo", "flags\t: fpu hypervisor\n")
            .file("/.dockerenv", "");
        let found = worst(&CHECK, &guest);
        assert_eq!(
            found.summary,
            "this is a guest of a hypervisor and a container"
        );
    }

    #[test]
    fn what_was_not_collected_is_unknown() {
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
