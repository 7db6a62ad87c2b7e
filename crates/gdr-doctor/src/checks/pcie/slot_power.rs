use super::devices;
use crate::checks::prelude::*;

/// The message of mlx5_core (Linux drivers/net/ethernet/mellanox/mlx5/core/events.c).
const WORDS: &str = "insufficient power on the PCIe slot";

pub(super) const CHECK: Check = Check {
    id: CheckId("pci.slotpower"),
    title: "slots give NICs the power that they need",
    why: "A slot reports to its card how much power it may draw. A NIC with too little power turns \
          off its ports or its optical modules, or runs them slower.",
    inputs: "\"Detected insufficient power on the PCIe slot\" of mlx5_core in the kernel log.",
    criteria: "pass: no such message. warn: such a message about a NIC. info: one on a DGX Spark, \
               where healthy machines print it. unknown: the kernel log is not known.",
    sources: &[
        "Linux drivers/net/ethernet/mellanox/mlx5/core/events.c: pcie_core",
        "https://github.com/leptonai/gpud (kmsg matchers)",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Several(run),
    ..super::CHECK
};

fn run(context: &Context<'_>) -> Result<Vec<Finding>, Unjudged> {
    let log = match context.text(virtual_path::KERNEL_LOG) {
        Ok(log) => log,
        absent => {
            runner::nics(context)?;
            absent.known("the kernel log")?
        }
    };
    // NVIDIA/dgx-spark-playbooks, pull request 108: healthy machines print it at every boot.
    let is_benign = context.is_spark();
    let mut findings: Vec<Finding> = Vec::new();
    for line in log.lines().filter(|line| line.contains(WORDS)) {
        let bdf: Option<Bdf> = line.split_whitespace().find_map(|word| {
            let word = word.trim_end_matches(':');
            word.contains(':').then(|| word.parse().ok()).flatten()
        });
        if bdf.is_some_and(|bdf| devices::is_left_out(context, bdf)) {
            continue;
        }
        let nic = context.nics().iter().find(|nic| Some(nic.bdf) == bdf);
        let subject = match (nic, bdf) {
            (Some(nic), _) => Subject::nic(nic),
            (None, Some(bdf)) => Subject::Function(bdf),
            (None, None) => Subject::Node,
        };
        if findings.iter().any(|found| found.subject == subject) {
            continue;
        }
        if is_benign {
            findings.push(
                Finding::info(
                    "it reports too little power, as the NIC of every healthy DGX Spark does",
                )
                .about(subject)
                .evidence(virtual_path::KERNEL_LOG, line.trim()),
            );
            continue;
        }
        findings.push(
            Finding::warn("its slot gives it less power than it needs")
                .about(subject)
                .evidence(virtual_path::KERNEL_LOG, line.trim())
                .fix(Fix::hardware(
                    "Give it more power",
                    "raise the slot's power limit in the BIOS to 75 W; or move the card to a slot \
                     with 75 W; if the slot has 75 W and reports less, update the BIOS",
                )),
        );
    }
    if findings.is_empty() {
        runner::nics(context)?;
        findings.push(Finding::pass("no NIC has reported too little power"));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    #[test]
    fn a_quiet_log_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass]);
    }

    #[test]
    fn the_message_is_benign_on_a_spark_and_needs_no_list_of_nics() {
        let line = "[    9.1] mlx5_core 0000:01:00.0: mlx5_pcie_event:301:(pid 8): Detected \
                    insufficient power on the PCIe slot (27W).\n";
        let of = |text: String| MemorySource::partial().file(virtual_path::KERNEL_LOG, text);
        assert_eq!(verdicts(&CHECK, &of(line.to_owned())), [Warn]);
        let spark = "[    0.0] DMI: NVIDIA NVIDIA_DGX_Spark/P4242, BIOS 5.36\n";
        assert_eq!(verdicts(&CHECK, &of(format!("{spark}{line}"))), [Info]);
    }

    #[test]
    fn a_nic_with_too_little_power_has_one_finding() {
        let line = "mlx5_core 0000:19:00.0: mlx5_pcie_event:304:(pid 1): Detected insufficient \
                    power on the PCIe slot (27W).\n";
        let log = format!("[    9.1] {line}[   11.2] {line}");
        let node = example::healthy().file(virtual_path::KERNEL_LOG, log);
        assert_eq!(verdicts(&CHECK, &node), [Warn]);
        assert_eq!(worst(&CHECK, &node).subject.to_string(), "mlx5_1");
    }
}
