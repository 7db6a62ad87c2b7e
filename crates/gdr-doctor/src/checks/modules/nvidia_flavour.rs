//! `nvidia.flavour`: NVIDIA's kernel modules are the open ones.

use gdr_node::Datum;

use crate::check::{Check, CheckId, Documentation, Group};
use crate::context::Context;
use crate::facts::Flavour;
use crate::finding::{Finding, Subject};
use crate::fix::{Fix, Risk};

pub(super) const CHECK: Check = Check {
    id: CheckId("nvidia.flavour"),
    group: Group::Modules,
    title: "NVIDIA's kernel modules are the open ones",
    documentation: Documentation {
        means: "Only the open modules export GPU memory as dma-buf. With the proprietary ones a \
                peer-memory module is the only way for a NIC into GPU memory.",
        reads: "/proc/driver/nvidia/version (`Open Kernel Module`), /sys/module/nvidia/taint (P: \
                proprietary).",
        judges: "pass: open. warn: proprietary. skip: not loaded, or no GPU; nvidia.version tells.",
        sources: &[
            "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/gpu-operator-rdma.html",
            "https://github.com/openucx/ucx/pull/11002",
        ],
    },
    purposes: &[],
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    if context.inventory.tree.is_present() && context.inventory.gpus.is_empty() {
        return vec![super::no_gpu(context)];
    }
    let driver = match &context.facts().nvidia {
        Datum::Present(driver) => driver,
        Datum::Missing => return vec![Finding::skip("NVIDIA's driver is not loaded")],
        absent => {
            return vec![Finding::unknown(
                Subject::Node,
                "the flavour of NVIDIA's driver",
                absent,
            )];
        }
    };
    let finding = match driver.flavour {
        Flavour::Open => Finding::pass(
            Subject::Node,
            "the open modules are loaded, which can export dma-buf",
        ),
        Flavour::Proprietary if before_turing(context) => Finding::warn(
            Subject::Node,
            "the proprietary modules are loaded, which these GPUs need: a peer-memory module is \
             the only way for NICs into their memory",
        ),
        Flavour::Proprietary => Finding::warn(
            Subject::Node,
            "the proprietary modules are loaded, which export no dma-buf: a peer-memory module is \
             the only way for NICs into GPU memory",
        )
        .fix(
            Fix::manual(
                "Install the open modules",
                "install nvidia-open in place of the proprietary package, of the same version",
            )
            .risk(
                Risk::Medium,
                "every process on the GPUs ends; open modules serve Turing and later only",
            ),
        ),
    };
    let text = context.text("/proc/driver/nvidia/version").into_present();
    let line = text.unwrap_or_default();
    let mut finding = finding.evidence(
        "/proc/driver/nvidia/version",
        line.lines().next().unwrap_or_default(),
    );
    if let Datum::Present(taint) = context.text("/sys/module/nvidia/taint") {
        finding = finding.evidence("/sys/module/nvidia/taint", taint);
    }
    vec![finding]
}

/// Whether a GPU is known to be older than Turing (compute capability 7.5), which the open modules
/// do not serve.
fn before_turing(context: &Context<'_>) -> bool {
    let Some(cuda) = context.facts().cuda.present() else {
        return false;
    };
    cuda.devices.iter().any(|device| {
        let capability = device.compute_capability.as_deref();
        let numbers =
            capability
                .and_then(|text| text.split_once('.'))
                .and_then(|(major, minor)| {
                    Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?))
                });
        numbers.is_some_and(|capability| capability < (7, 5))
    })
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example, virtual_path};

    use super::*;
    use crate::checks::fixture::{verdict, worst};
    use crate::finding::Verdict;

    const CLOSED: &str = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue\n";

    #[test]
    fn open_modules_pass_and_proprietary_ones_are_warned_of() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Verdict::Pass);
        let closed = example::healthy().file("/proc/driver/nvidia/version", CLOSED);
        let found = worst(&CHECK, &closed);
        assert_eq!((found.verdict, found.fixes.len()), (Verdict::Warn, 1));
    }

    #[test]
    fn gpus_that_the_open_modules_do_not_serve_are_not_told_to_take_them() {
        let volta = example::healthy()
            .file("/proc/driver/nvidia/version", CLOSED)
            .file(
                virtual_path::CUDA_DEVICES,
                "{\"devices\":[{\"pci\":\"0000:18:00.0\",\"compute_capability\":\"7.0\"}]}",
            );
        assert!(worst(&CHECK, &volta).fixes.is_empty());
    }

    #[test]
    fn what_is_not_loaded_or_not_known_is_not_judged() {
        let none = example::healthy().without("/proc/driver/nvidia/version");
        assert_eq!(verdict(&CHECK, &none), Verdict::Skip);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }
}
