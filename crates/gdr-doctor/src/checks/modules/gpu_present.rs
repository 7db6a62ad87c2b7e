//! `gpu.present`: a GPU of NVIDIA's answers on the PCI bus.

use gdr_node::Datum;
use gdr_node::pci::ConfigSpace;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("gpu.present"),
    group: Group::Modules,
    title: "NVIDIA GPUs are on the PCI bus and answer",
    documentation: Documentation {
        means: "Without a GPU there is nothing to reach. A GPU whose config space reads as ones \
                has fallen off the bus: nothing reaches it until it is powered anew.",
        reads: "/sys/bus/pci/devices/*/{vendor,class,config}: vendor 0x10de, class 0x0300xx or \
                0x0302xx.",
        judges: "fail: no GPU, or one that reads as ones. unknown: PCI functions are not known.",
        sources: &[
            "PCI Code and ID Assignment Specification, base class 03h",
            "PCI Express Base Specification 2.3.2: unsupported requests read as ones",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    if !context.inventory.tree.is_present() {
        return vec![Finding::unknown(
            Subject::Node,
            "the list of PCI functions",
            &context.inventory.tree,
        )];
    }
    let identified = |tree: &gdr_node::pci::Tree| {
        tree.is_empty()
            || tree
                .functions()
                .any(|function| function.identity.class.is_some())
    };
    if !context.inventory.tree.present().is_some_and(identified) {
        let unknown = Datum::<()>::NotCollected;
        let what = "what the PCI functions are";
        return vec![Finding::unknown(Subject::Node, what, &unknown)];
    }
    let mut findings = Vec::new();
    for gpu in context.gpus() {
        let path = format!("/sys/bus/pci/devices/{}/config", gpu.bdf);
        let gone = context
            .source
            .read(&path)
            .into_present()
            .and_then(|bytes| ConfigSpace::new(bytes, gdr_node::pci::Unread::Denied).ok())
            .is_some_and(|config| config.is_gone());
        let subject = Subject::gpu(gpu);
        findings.push(if gone {
            Finding::fail(
                subject,
                "it has fallen off the bus: its config space reads as ones",
            )
            .evidence(path, "ff ff ff ff …")
            .fix(
                Fix::manual(
                    "Power the GPU anew",
                    "power the machine off and on; if it comes back, reseat the card and its \
                         power cables, then look for Xid 79 in the kernel log",
                )
                .risk(Risk::Medium, "everything on the machine stops"),
            )
        } else {
            Finding::pass(subject, "it answers").evidence("PCI address", gpu.bdf.to_string())
        });
    }
    if findings.is_empty() {
        findings.push(
            Finding::fail(Subject::Node, "there is no NVIDIA GPU")
                .evidence(
                    "/sys/bus/pci/devices",
                    "no function with vendor 0x10de, class 0x03",
                )
                .fix(Fix::manual(
                    "Make a GPU visible",
                    "seat the card and its power; in a virtual machine, pass the GPU through",
                )),
        );
    }
    findings
}

#[cfg(test)]
mod tests {
    use gdr_node::MemorySource;

    use super::*;
    use crate::checks::fixture;
    use crate::finding::Verdict;

    fn verdicts(node: &MemorySource) -> Vec<Verdict> {
        fixture::verdicts(&CHECK, node)
    }

    fn gpu(config: &[u8]) -> MemorySource {
        let place = "/sys/devices/pci0000:00/0000:00:03.0";
        MemorySource::new()
            .link_to(
                "/sys/bus/pci/devices/0000:00:03.0",
                "../../../devices/pci0000:00/0000:00:03.0",
            )
            .file(&format!("{place}/vendor"), "0x10de\n")
            .file(&format!("{place}/class"), "0x030200\n")
            .file(&format!("{place}/config"), config)
    }

    #[test]
    fn a_gpu_that_answers_passes() {
        let mut config = vec![0; 64];
        config[..4].copy_from_slice(&[0xde, 0x10, 0x30, 0x23]);
        config[8..12].copy_from_slice(&[0, 0, 2, 3]);
        assert_eq!(verdicts(&gpu(&config)), [Verdict::Pass]);
    }

    #[test]
    fn a_gpu_that_fell_off_the_bus_and_no_gpu_at_all_fail() {
        assert_eq!(verdicts(&gpu(&[0xff; 64])), [Verdict::Fail]);
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdicts(&bare), [Verdict::Fail]);
    }

    #[test]
    fn a_tree_of_addresses_alone_says_nothing_of_gpus() {
        let node = MemorySource::partial();
        let tree = gdr_node::import::lspci::read("-[0000:00]-+-00.0\n           \\-01.0\n");
        let tree = Datum::Present(tree.unwrap().into_tree());
        let inventory = gdr_node::Inventory::of_tree(tree, gdr_node::NumaLayout::unknown());
        let found = run(&Context::new(&node, &inventory));
        assert_eq!(found[0].verdict, Verdict::Unknown);
    }

    #[test]
    fn a_capture_without_pci_says_nothing_of_gpus() {
        assert_eq!(verdicts(&MemorySource::partial()), [Verdict::Unknown]);
    }
}
