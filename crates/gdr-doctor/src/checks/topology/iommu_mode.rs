use super::direct;
use super::iommu::{self, Domain};
use crate::checks::prelude::*;
use crate::gpudirect_support;

pub(super) const CHECK: Check = Check {
    id: CheckId("iommu.mode"),
    title: "the IOMMU does not translate addresses of GPUs and NICs",
    why: "A NIC accesses GPU memory by its bus address. If the IOMMU translates addresses of \
          either device, every request goes through the root complex. A peer-memory module that \
          does not support translation gives the NIC addresses that fault. dma-buf maps through \
          the IOMMU and works, but is slower.",
    inputs: "/sys/class/iommu; /sys/kernel/iommu_groups/*/type of the groups of GPUs and NICs. If \
             the kernel shows no type, its arguments iommu=, intel_iommu=, amd_iommu= and \
             iommu.passthrough=.",
    criteria: "pass: no IOMMU, or identity. info: translated, with ATS on at the NIC; or assigned \
               to a guest. warn: DMA or DMA-FQ. fail: the same if dma-buf is known not to work. \
               skip: no GPU or no NIC.",
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

/// A device and its IOMMU domain.
struct Device {
    subject: Subject,
    bdf: Bdf,
    path: String,
    domain: Datum<Domain>,
    /// Whether its requests are translated beforehand.
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
                    translated: is_translated_beforehand(context, &direct, bdf),
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
        Ok(Domain::Off) => Finding::pass("no IOMMU is on"),
        Ok(Domain::Identity) => Finding::pass("the IOMMU does not translate"),
        Ok(Domain::Handed) => Finding::info("the IOMMU maps it for the guest that owns it"),
        Ok(Domain::Translated) => translated(context, device, pairs),
        absent => Finding::unknown("the type of its IOMMU domain", absent),
    };
    let seen = context.text(&device.path);
    Ok(match (seen, &device.domain) {
        (Ok(text), _) => finding.evidence(&device.path, text),
        (_, Ok(Domain::Off)) => finding.evidence(&device.path, "empty"),
        (absent, _) => finding.evidence(&device.path, absent.shown()),
    })
}

fn translated(context: &Context<'_>, device: &Device, pairs: &[&Pair<'_>]) -> Finding {
    if device.translated {
        return Finding::info(
            "the IOMMU translates, and the NIC requests translations beforehand (ATS)",
        );
    }
    let of_device =
        (pairs.iter()).filter(|pair| pair.gpu.bdf == device.bdf || pair.nic.bdf == device.bdf);
    let mut by_dmabuf = of_device.map(|pair| gpudirect_support::dmabuf_of_pair(context, pair));
    let (verdict, summary) = if by_dmabuf.any(|works| works == Ok(false)) {
        (
            Verdict::Fail,
            "the IOMMU translates addresses and dma-buf does not work: the addresses of a \
             peer-memory module fault",
        )
    } else {
        (
            Verdict::Warn,
            "the IOMMU translates addresses: traffic between GPU and NIC goes through the root \
             complex, which is slower",
        )
    };
    Finding::new(verdict, summary)
        .fix(
            Fix::at_boot(
                "Make the IOMMU pass addresses through",
                Action::boot(argument(context).to_owned()),
            )
            .risk(
                Risk::Low,
                "devices of the host can then access all of its memory",
            ),
        )
        .fix(Fix::manual(
            "Pass through this device's group only",
            format!(
                "unbind the driver of {0}, `echo identity > \
                 /sys/bus/pci/devices/{0}/iommu_group/type`, bind it again (Linux 5.11 and later)",
                device.bdf
            ),
        ))
}

/// Returns whether a device's requests are translated beforehand: a NIC with ATS on, or a GPU whose
/// DMA function has ATS on.
fn is_translated_beforehand(context: &Context<'_>, paths: &[direct::DirectPath], bdf: Bdf) -> bool {
    let ats = |bdf: Bdf| {
        context
            .function(bdf)
            .and_then(|function| function.ats.as_ref().ok())
            .is_some_and(|ats| ats.enabled)
    };
    ats(bdf) || paths.iter().any(|path| path.gpu == bdf && ats(path.dma))
}

/// Returns the kernel argument for identity domains on x86 or on ARM.
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
    fn translation_is_a_warning_with_dma_buf_and_a_failure_without() {
        let found = judged(&CHECK, &all_groups("DMA-FQ"), Warn);
        assert_eq!(found.subject, Subject::Node);
        assert!(found.fixes[0].actions[0].to_string().ends_with("iommu=pt"));
        let old = all_groups("DMA")
            .without(virtual_path::CUDA_DEVICES)
            .file("/proc/sys/kernel/osrelease", "5.4.0\n");
        assert_eq!(verdict(&CHECK, &old), Fail);
    }

    #[test]
    fn the_finding_names_the_device_that_differs() {
        let path = format!("/sys/bus/pci/devices/{}/iommu_group/type", example::GPUS[7]);
        let found = judged(&CHECK, &example::healthy().file(&path, "DMA\n"), Warn);
        assert_eq!(found.subject.to_string(), "GPU6");
    }

    #[test]
    fn ats_and_guests_are_info() {
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
        // In the example the GPU and the NIC of one switch share a group.
        assert!(!verdict(&CHECK, &node).is_bad());
        assert_eq!(verdict(&CHECK, &all_groups("unmanaged")), Info);
    }

    #[test]
    fn without_group_types_the_command_line_decides() {
        let mut node = example::healthy();
        for group in 0..40 {
            node = node.without(&format!("/sys/kernel/iommu_groups/{group}/type"));
        }
        assert_eq!(verdict(&CHECK, &node), Pass);
        let node = node.file("/proc/cmdline", "quiet\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
