use super::direct;
use super::iommu::{self, Domain};
use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("iommu.mode"),
    title: "the IOMMU leaves the addresses of GPUs and NICs as they are",
    why: "A NIC asks for GPU memory by its address on the bus. Where the IOMMU translates the \
          addresses of either, every request has to go up to the root, and a peer-memory module \
          that knows nothing of translation hands out addresses that fault. dma-buf maps through \
          the IOMMU and works, slower.",
    inputs: "/sys/class/iommu, /sys/kernel/iommu_groups/*/type of the groups of GPUs and NICs; \
          where a kernel shows no type, the command line: iommu=, intel_iommu=, amd_iommu=, \
          iommu.passthrough=.",
    criteria: "pass: no IOMMU, or identity. info: translated, with ATS on at the NIC; or handed to \
          a guest. warn: DMA or DMA-FQ. fail: the same where dma-buf is known not to work. skip: \
          no GPU or no NIC.",
    sources: &[
        "Linux Documentation/ABI/testing/sysfs-kernel-iommu_groups",
        "CUDA GPUDirect RDMA guide, 2.2: physical addresses must be the same from the point \
             of view of all PCI devices",
        "https://github.com/NVIDIA/nccl/issues/1737",
    ],
    scope: Scope::Several(run),
    together: Some("GPUs and NICs"),
    ..super::CHECK
};

/// A device and what became of its addresses.
struct Device {
    subject: Subject,
    bdf: Bdf,
    path: String,
    domain: Datum<Domain>,
    /// Whether its traffic comes translated already.
    translated: bool,
}

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let pairs = runner::pairs(context)?;
    let direct = direct::paths(context);
    let mut devices: Vec<Device> = Vec::new();
    for pair in &pairs {
        for (subject, bdf) in [
            (Subject::gpu(&pair.gpu), pair.gpu.bdf),
            (Subject::nic(&pair.nic), pair.nic.bdf),
        ] {
            if devices.iter().all(|device| device.bdf != bdf) {
                let (path, domain) = iommu::domain(context, bdf);
                devices.push(Device {
                    subject,
                    bdf,
                    path,
                    domain,
                    translated: comes_translated(context, &direct, bdf),
                });
            }
        }
    }
    Ok(runner::each(&devices, |device| {
        (device.subject.clone(), judge(context, device, &pairs))
    }))
}

fn judge(context: &Context<'_>, device: &Device, pairs: &[&Pair<'_>]) -> Judgement {
    let finding = match &device.domain {
        Ok(Domain::Off) => Finding::pass("no IOMMU is in the way"),
        Ok(Domain::Identity) => Finding::pass("the IOMMU leaves addresses as they are"),
        Ok(Domain::Handed) => Finding::info("the IOMMU maps it for a guest that owns it"),
        Ok(Domain::Translated) => translated(context, device, pairs),
        absent => Finding::unknown("what the IOMMU does with addresses", absent),
    };
    let seen = context.text(&device.path);
    Ok(match (seen, &device.domain) {
        (Ok(text), _) => finding.evidence(&device.path, text),
        (_, Ok(Domain::Off)) => finding.evidence(&device.path, "nothing"),
        (absent, _) => finding.evidence(&device.path, absent.shown()),
    })
}

fn translated(context: &Context<'_>, device: &Device, pairs: &[&Pair<'_>]) -> Finding {
    if device.translated {
        return Finding::info(
            "the IOMMU translates, and the NIC asks it beforehand (ATS), as this platform wants it",
        );
    }
    let of_device =
        (pairs.iter()).filter(|pair| pair.gpu.bdf == device.bdf || pair.nic.bdf == device.bdf);
    let mut by_dmabuf = of_device.map(|pair| gpudirect_support::dmabuf_of_pair(context, pair));
    let (verdict, summary) = if by_dmabuf.any(|works| works == Ok(false)) {
        (
            Verdict::Fail,
            "the IOMMU translates addresses and dma-buf does not work: a peer-memory module hands \
             out addresses that the IOMMU refuses",
        )
    } else {
        (
            Verdict::Warn,
            "the IOMMU translates addresses: peers reach each other only through the root, which \
             is slower",
        )
    };
    Finding::new(verdict, summary)
        .fix(
            Fix::at_boot(
                "Let the IOMMU pass addresses through",
                Action::boot(argument(context).to_owned()),
            )
            .risk(
                Risk::Low,
                "devices of the host are then trusted with all of its memory",
            ),
        )
        .fix(Fix::manual(
            "Pass through only this device's group",
            format!(
                "unbind the driver of {0}, `echo identity > \
                 /sys/bus/pci/devices/{0}/iommu_group/type`, bind it again (Linux 5.11 and later)",
                device.bdf
            ),
        ))
}

/// Whether a device's traffic comes translated: a NIC with ATS on, or a device whose NIC has a DMA
/// function for GPUs.
fn comes_translated(context: &Context<'_>, paths: &[direct::DirectPath], bdf: Bdf) -> bool {
    let ats = |bdf: Bdf| {
        context
            .function(bdf)
            .and_then(|function| function.ats.as_ref().ok())
            .is_some_and(|ats| ats.enabled)
    };
    ats(bdf) || paths.iter().any(|path| path.gpu == bdf && ats(path.dma))
}

/// The argument that asks for identity domains, of x86 and of ARM.
fn argument(context: &Context<'_>) -> &'static str {
    let x86 = context.inventory.tree.as_ref().ok().is_none_or(|tree| {
        (tree.functions()).any(|function| {
            matches!(
                function.identity.vendor,
                Some(VendorId::INTEL | VendorId::AMD)
            )
        })
    });
    if x86 {
        "iommu=pt"
    } else {
        "iommu.passthrough=1"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    fn all_groups(kind: &str) -> MemorySource {
        let mut node = example::healthy();
        for bdf in example::GPUS.iter().chain(&example::NICS) {
            let path = format!("/sys/bus/pci/devices/{bdf}/iommu_group/type");
            node = node.file(&path, format!("{kind}\n"));
        }
        node
    }

    #[test]
    fn identity_and_no_iommu_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
        let off = example::healthy().without("/sys/class/iommu");
        assert_eq!(verdicts(&CHECK, &off), [Pass]);
    }

    #[test]
    fn translation_is_slow_with_dma_buf_and_broken_without() {
        let found = worst(&CHECK, &all_groups("DMA-FQ"));
        assert_eq!(found.verdict, Warn);
        assert_eq!(found.subject, Subject::Node);
        assert!(found.fixes[0].actions[0].to_string().ends_with("iommu=pt"));
        let old = all_groups("DMA")
            .without(virtual_path::CUDA_DEVICES)
            .file("/proc/sys/kernel/osrelease", "5.4.0\n");
        assert_eq!(verdict(&CHECK, &old), Fail);
    }

    #[test]
    fn one_group_that_differs_is_named() {
        let path = format!("/sys/bus/pci/devices/{}/iommu_group/type", example::GPUS[7]);
        let found = worst(&CHECK, &example::healthy().file(&path, "DMA\n"));
        assert_eq!(found.verdict, Warn);
        assert_eq!(found.subject.to_string(), "GPU6");
    }

    #[test]
    fn ats_and_guests_are_worth_knowing_only() {
        let mut node = all_groups("DMA-FQ");
        for nic in example::NICS {
            node = example::edit(node, nic, |space| {
                space.ats(true);
            });
        }
        for gpu in example::GPUS {
            let path = format!("/sys/bus/pci/devices/{gpu}/iommu_group/type");
            node = node.file(&path, "identity\n");
        }
        // GPU and NIC of one switch share a group here.
        assert!(!verdict(&CHECK, &node).is_bad());
        assert_eq!(verdict(&CHECK, &all_groups("unmanaged")), Info);
    }

    #[test]
    fn a_kernel_without_types_is_judged_by_its_command_line() {
        let mut node = example::healthy();
        for group in 0..40 {
            node = node.without(&format!("/sys/kernel/iommu_groups/{group}/type"));
        }
        assert_eq!(verdict(&CHECK, &node), Pass);
        let node = node.file("/proc/cmdline", "quiet\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }

    #[test]
    fn without_pairs_nothing_is_judged() {
        let none = example::healthy().without("/sys/class/infiniband");
        assert_eq!(verdict(&CHECK, &none), Skip);
    }
}
