use super::bar1_size::window;
use crate::checks::prelude::*;

/// Address bits that RDMA NICs and GPUs with GPUDirect RDMA drive at least: NVIDIA's driver sets 47
/// for GPUs since Pascal, and mlx5_core and its like set 64.
const LOW: u32 = 46;

pub(super) const CHECK: Check = Check {
    id: CheckId("bar1.56bit"),
    title: "every GPU's window (BAR1) lies at addresses that its peers can reach",
    why: "Firmware may put large BARs very high, at 56 TB on some hosts. A device that drives \
          fewer address bits than that cannot reach them: transfers between peers fail or go \
          astray although everything is set right.",
    inputs: "/sys/bus/pci/devices/<GPU>/resource; the address bits of the NICs in \
          /sys/bus/pci/devices/<NIC>/dma_mask_bits and of the GPUs in \
          /proc/driver/nvidia/gpus/<GPU>/information.",
    criteria: "pass: every window ends below the reach of every NIC and every other GPU, or below \
          2^46 where no device says how far it reaches. warn: one does not. unknown: the addresses \
          are hidden, or a window lies higher and no device says how far it reaches.",
    sources: &[
        "https://github.com/linux-rdma/perftest/issues/173",
        "Linux Documentation/ABI/testing/sysfs-bus-pci: dma_mask_bits",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let gpus = runner::gpus(context)?;
    let reaches = reaches(context);
    Ok(runner::each(gpus, |(gpu, function)| {
        (Subject::gpu(gpu), judge(context, function, &reaches))
    }))
}

fn judge(context: &Context<'_>, function: &Function, reaches: &[Reach]) -> Judgement {
    let Some(bar) = window(function).filter(|bar| bar.start != 0) else {
        let bars = function.bars.by_ref();
        return Err(Unjudged::Unknown(
            "the address of its window".into(),
            bars.err().unwrap_or(Absence::Denied),
        ));
    };
    if context.nics().is_empty() && context.inventory.gpus.len() == 1 {
        return Err(Unjudged::skip("it has no peers here"));
    }
    let end = bar.start.saturating_add(bar.size - 1);
    let needed = end.checked_ilog2().map_or(0, |bit| bit + 1);
    let peers: Vec<&Reach> = (reaches.iter())
        .filter(|it| it.bdf != function.bdf)
        .collect();
    let short: Vec<&&Reach> = peers.iter().filter(|peer| peer.bits < needed).collect();
    let path = format!("/sys/bus/pci/devices/{}/resource", function.bdf);
    let range = format!("{:#x} to {end:#x}", bar.start);
    let finding = if let Some(Reach { name, bits, .. }) = short.first() {
        Finding::warn(format!(
            "its window needs {needed} address bits, and {} of its peers drive fewer \
             ({name}: {bits})",
            short.len()
        ))
        .fix(Fix::manual(
            "Put the window lower",
            "in the BIOS lower the MMIO base (\"MMIO High Base\", \"Memory Mapped I/O base\") to 12 \
             TB or 512 GB; on a hypervisor, lower that of the guest",
        ))
    } else if !peers.is_empty() {
        Finding::pass(format!(
            "its window ends below 2^{needed}, in reach of its peers"
        ))
    } else if needed <= LOW {
        Finding::pass(format!(
            "its window ends below 2^{needed}, where every RDMA NIC reaches it"
        ))
    } else {
        let absent = Err::<(), _>(Absence::NotCollected);
        Finding::unknown("how far its peers' addresses reach", &absent)
    };
    let first = short
        .first()
        .map(|it| (it.file.clone(), it.bits.to_string()));
    Ok(finding.evidence(path, range).evidence_all(first))
}

/// How many address bits a device drives.
struct Reach {
    name: String,
    bdf: Bdf,
    bits: u32,
    /// Where that is written.
    file: String,
}

/// How many address bits each device drives, as far as it is known.
fn reaches(context: &Context<'_>) -> Vec<Reach> {
    let of_nics = context.nics().iter().filter_map(|nic| {
        let file = format!("/sys/bus/pci/devices/{}/dma_mask_bits", nic.bdf);
        let bits = context.text(&file).ok()?.parse().ok()?;
        let (name, bdf) = (nic.name.clone(), nic.bdf);
        Some(Reach {
            name,
            bdf,
            bits,
            file,
        })
    });
    let of_gpus = context.gpus().filter_map(|gpu| {
        let file = format!("/proc/driver/nvidia/gpus/{}/information", gpu.bdf);
        let text = context.text(&file).ok()?;
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix("DMA Size:"))?;
        let bits = line.split_whitespace().next()?.parse().ok()?;
        let (name, bdf) = (gpu.index.to_string(), gpu.bdf);
        Some(Reach {
            name,
            bdf,
            bits,
            file,
        })
    });
    of_nics.chain(of_gpus).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn windows_within_reach_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
    }

    #[test]
    fn a_nic_of_few_address_bits_does_not_reach_them() {
        let path = format!("/sys/bus/pci/devices/{}/dma_mask_bits", example::NICS[1]);
        let node = example::healthy().file(&path, "44\n");
        let found = worst(&CHECK, &node);
        assert_eq!(found.verdict, Warn);
        assert!(found.summary.contains("mlx5_1: 44"), "{}", found.summary);
    }

    #[test]
    fn hidden_addresses_and_silent_peers_are_unknown() {
        let path = format!("/sys/bus/pci/devices/{}/resource", example::GPUS[0]);
        let node = example::healthy().file(&path, "0x0 0x0 0x0\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        // The windows of the example lie low; one at 64 TB may be out of reach.
        let node = example::healthy().without("/proc/driver/nvidia/gpus");
        assert_eq!(verdicts(&CHECK, &node), [Pass; 8]);
        let high = "0x0 0x0 0x0\n0x400000000000 0x401fffffffff 0x14220c\n";
        let node = node.file(&path, high);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
