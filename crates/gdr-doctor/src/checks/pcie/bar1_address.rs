//! `bar1.56bit`: no window lies where other devices cannot reach it.

use gdr_node::{Bdf, Datum};

use super::bar1_size::window;
use super::devices;
use crate::check::{Check, CheckId, Documentation, Group, Purpose};
use crate::context::Context;
use crate::finding::{Finding, Subject};
use crate::fix::Fix;

pub(super) const CHECK: Check = Check {
    id: CheckId("bar1.56bit"),
    group: Group::Pcie,
    title: "every GPU's window (BAR1) lies at addresses that its peers can reach",
    documentation: Documentation {
        means: "Firmware may put large BARs very high, at 56 TB on some hosts. A device that drives \
                fewer address bits than that cannot reach them: transfers between peers fail or go \
                astray although everything is set right.",
        reads: "/sys/bus/pci/devices/<GPU>/resource; the address bits of the NICs in \
                /sys/bus/pci/devices/<NIC>/dma_mask_bits and of the GPUs in \
                /proc/driver/nvidia/gpus/<GPU>/information.",
        judges: "pass: every window ends below the reach of every NIC and every other GPU. warn: \
                 one does not. unknown: the addresses are hidden, or no device says how far it \
                 reaches.",
        sources: &[
            "https://github.com/linux-rdma/perftest/issues/173",
            "Linux Documentation/ABI/testing/sysfs-bus-pci: dma_mask_bits",
        ],
    },
    purposes: Purpose::RDMA,
    symptom_of: &[],
    run,
};

fn run(context: &Context<'_>) -> Vec<Finding> {
    let gpus = match devices::gpus(context) {
        Ok(gpus) => gpus,
        Err(why) => return why,
    };
    let reaches: Vec<(String, Bdf, u32, String)> = reaches(context);
    let mut findings = Vec::new();
    for (gpu, function) in gpus {
        let subject = Subject::gpu(gpu);
        let Some(bar) = window(function).filter(|bar| bar.start != 0) else {
            let absent: Datum<()> = match &function.bars {
                Datum::Present(_) => Datum::Denied,
                absent => absent.as_ref().map(|_| ()),
            };
            findings.push(Finding::unknown(
                subject,
                "the address of its window",
                &absent,
            ));
            continue;
        };
        let end = bar.start.saturating_add(bar.size - 1);
        let needed = end.checked_ilog2().map_or(0, |bit| bit + 1);
        let peers = reaches.iter().filter(|(_, bdf, ..)| *bdf != gpu.bdf);
        let short: Vec<_> = peers
            .clone()
            .filter(|(_, _, bits, _)| *bits < needed)
            .collect();
        let range = format!("{:#x} to {end:#x}", bar.start);
        let path = format!("/sys/bus/pci/devices/{}/resource", gpu.bdf);
        if context.nics().is_empty() && context.inventory.gpus.len() == 1 {
            let mut finding = Finding::skip("it has no peers here");
            finding.subject = subject;
            findings.push(finding);
            continue;
        }
        findings.push(if let Some((name, _, bits, file)) = short.first() {
            Finding::warn(
                subject,
                format!(
                    "its window needs {needed} address bits, and {} of its peers drive fewer \
                     ({name}: {bits})",
                    short.len()
                ),
            )
            .evidence(path, range)
            .evidence(file.clone(), bits.to_string())
            .fix(Fix::manual(
                "Put the window lower",
                "in the BIOS lower the MMIO base (\"MMIO High Base\", \"Memory Mapped I/O base\") \
                 to 12 TB or 512 GB; on a hypervisor, lower that of the guest",
            ))
        } else if peers.count() == 0 {
            Finding::unknown(
                subject,
                "how far its peers' addresses reach",
                &Datum::<()>::NotCollected,
            )
            .evidence(path, range)
        } else {
            Finding::pass(
                subject,
                format!("its window ends below 2^{needed}, in reach of its peers"),
            )
            .evidence(path, range)
        });
    }
    findings
}

/// How many address bits each device drives, as far as it is known: name, function, bits, file.
fn reaches(context: &Context<'_>) -> Vec<(String, Bdf, u32, String)> {
    let mut reaches = Vec::new();
    for nic in context.nics() {
        let path = format!("/sys/bus/pci/devices/{}/dma_mask_bits", nic.bdf);
        let bits = context.text(&path).into_present();
        if let Some(bits) = bits.and_then(|text| text.parse().ok()) {
            reaches.push((nic.name.clone(), nic.bdf, bits, path));
        }
    }
    for gpu in context.gpus() {
        let path = format!("/proc/driver/nvidia/gpus/{}/information", gpu.bdf);
        let text = context.text(&path).into_present();
        let bits = text.and_then(|text| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix("DMA Size:"))?;
            line.split_whitespace().next()?.parse().ok()
        });
        if let Some(bits) = bits {
            reaches.push((gpu.index.to_string(), gpu.bdf, bits, path));
        }
    }
    reaches
}

#[cfg(test)]
mod tests {
    use gdr_node::{MemorySource, example};

    use super::*;
    use crate::checks::fixture::{verdict, verdicts, worst};
    use crate::finding::Verdict;

    #[test]
    fn windows_within_reach_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Verdict::Pass; 8]);
    }

    #[test]
    fn a_nic_of_few_address_bits_does_not_reach_them() {
        let path = format!("/sys/bus/pci/devices/{}/dma_mask_bits", example::NICS[1]);
        let node = example::healthy().file(&path, "44\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Verdict::Warn);
        assert!(found.summary.contains("mlx5_1: 44"), "{}", found.summary);
    }

    #[test]
    fn hidden_addresses_and_silent_peers_are_unknown() {
        let path = format!("/sys/bus/pci/devices/{}/resource", example::GPUS[0]);
        let node = example::healthy().file(&path, "0x0 0x0 0x0\n");
        assert_eq!(verdict(&CHECK, &node), Verdict::Unknown);
        let node = example::healthy().without("/proc/driver/nvidia/gpus");
        assert_eq!(verdicts(&CHECK, &node), [Verdict::Unknown; 8]);
        assert_eq!(verdict(&CHECK, &MemorySource::partial()), Verdict::Unknown);
    }

    #[test]
    fn no_gpu_is_no_question() {
        let bare = MemorySource::new().directory("/sys/bus/pci/devices");
        assert_eq!(verdict(&CHECK, &bare), Verdict::Skip);
    }
}
