use super::bar1_size::bar1;
use crate::checks::prelude::*;

/// The address bits that every RDMA NIC and every GPU with GPUDirect RDMA has: NVIDIA's driver sets
/// 47 for GPUs since Pascal; mlx5_core and other drivers set 64.
const LOW: u32 = 46;

pub(super) const CHECK: Check = Check {
    id: CheckId("bar1.56bit"),
    title: "the BAR1 of every GPU is at addresses that its peers can reach",
    why: "Firmware may place large BARs at very high addresses, such as 56 TB. A device with fewer \
          address bits cannot reach them: transfers between peers fail or go to wrong addresses \
          although all settings are right.",
    inputs: "/sys/bus/pci/devices/<GPU>/resource; the address bits of NICs in \
             /sys/bus/pci/devices/<NIC>/dma_mask_bits and of GPUs in \
             /proc/driver/nvidia/gpus/<GPU>/information.",
    criteria: "pass: every BAR1 ends below the limit of every NIC and every other GPU, or below \
               2^46 if no limit is known. warn: one does not. unknown: the addresses are hidden, \
               or a BAR1 ends above 2^46 and no limit is known.",
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
    let Some(bar) = bar1(function).filter(|bar| bar.start != 0) else {
        let bars = function.bars.by_ref();
        return Err(Unjudged::Unknown(
            "the address of its BAR1".into(),
            bars.err().unwrap_or(Absence::Denied),
        ));
    };
    if context.nics().is_empty() && context.inventory.gpus.len() == 1 {
        return Err(Unjudged::skip("it has no peers"));
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
            "its BAR1 needs {needed} address bits, and {} of its peers have fewer ({name}: {bits})",
            short.len()
        ))
        .fix(Fix::manual(
            "Move BAR1 to lower addresses",
            "in the BIOS lower the MMIO base (\"MMIO High Base\", \"Memory Mapped I/O base\") to \
             12 TB or 512 GB; on a hypervisor, lower the guest's",
        ))
    } else if !peers.is_empty() {
        Finding::pass(format!(
            "its BAR1 ends below 2^{needed}, which its peers can reach"
        ))
    } else if needed <= LOW {
        Finding::pass(format!(
            "its BAR1 ends below 2^{needed}, which every RDMA NIC can reach"
        ))
    } else {
        let absent = Err::<(), _>(Absence::NotCollected);
        Finding::unknown("the number of address bits of its peers", &absent)
    };
    let first = short
        .first()
        .map(|it| (it.file.clone(), it.bits.to_string()));
    Ok(finding.evidence(path, range).evidence_all(first))
}

/// The number of address bits of a device.
struct Reach {
    name: String,
    bdf: Bdf,
    bits: u32,
    /// The file that has the number.
    file: String,
}

/// Returns the numbers of address bits of the devices for which they are known.
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
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn reachable_bars_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
    }

    #[test]
    fn a_nic_with_too_few_address_bits_is_a_warning() {
        let path = format!("/sys/bus/pci/devices/{}/dma_mask_bits", example::NICS[1]);
        let node = example::healthy().file(&path, "44\n");
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.summary, "mlx5_1: 44");
    }

    #[test]
    fn hidden_addresses_and_unknown_limits_are_unknown() {
        let path = format!("/sys/bus/pci/devices/{}/resource", example::GPUS[0]);
        let node = example::healthy().file(&path, "0x0 0x0 0x0\n");
        assert_eq!(verdict(&CHECK, &node), Unknown);
        // The BARs of the example are at low addresses. One at 64 TB may be out of reach.
        let node = example::healthy().without("/proc/driver/nvidia/gpus");
        assert_eq!(verdicts(&CHECK, &node), [Pass; 8]);
        let high = "0x0 0x0 0x0\n0x400000000000 0x401fffffffff 0x14220c\n";
        let node = node.file(&path, high);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
