use gdr_node::CpuSet;

use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("irq.affinity"),
    title: "interrupts of NICs go to CPUs near them",
    why: "A completion that wakes its waiter by an interrupt on another socket arrives later. \
          Programs that poll are not affected. Drivers use near CPUs first and far CPUs when there \
          are more interrupts than near CPUs, so that some far interrupts are normal.",
    inputs: "/sys/bus/pci/devices/<NIC>/msi_irqs; /proc/irq/<n>/effective_affinity_list; \
             local_cpulist of the NIC.",
    criteria: "pass: all are near. info: some are far. warn: more than half are far. unknown: the \
               interrupts or the near CPUs are not known. skip: the NIC has no such interrupts.",
    sources: &[
        "Linux Documentation/core-api/irq/irq-affinity.rst",
        "https://github.com/Mellanox/mlnx-tools (set_irq_affinity)",
    ],
    workloads: Workload::RDMA,
    scope: Scope::Nic(judge),
    ..super::CHECK
};

fn judge(context: &Context<'_>, nic: &Nic<'_>, _: &Function) -> Judgement {
    let path = |name: &str| format!("/sys/bus/pci/devices/{}/{name}", nic.bdf);
    let near = context.text(&path("local_cpulist"));
    let near: CpuSet = near
        .by_ref()
        .and_then(|text| text.parse::<CpuSet>().map_err(|_| Absence::Missing))
        .known("which CPUs are near it")?;
    let irqs = context.source.list(&path("msi_irqs")).known_or_skip(
        "the list of its interrupts",
        "it has no message-signalled interrupts",
    )?;
    let mut known = 0;
    let mut far = Vec::new();
    let mut absence = Err(Absence::Missing);
    for irq in &irqs {
        let file = format!("/proc/irq/{irq}/effective_affinity_list");
        let text = context.text(&file);
        // An unused interrupt has no CPU.
        match text
            .by_ref()
            .and_then(|text| text.parse::<CpuSet>().map_err(|_| Absence::Missing))
        {
            Ok(cpus) if cpus.is_empty() => {}
            Ok(cpus) => {
                known += 1;
                if cpus.is_disjoint(&near) {
                    far.push((file, text.shown().to_string()));
                }
            }
            absent => absence = absent,
        }
    }
    if known == 0 && absence.is_unknown() {
        return Ok(Finding::unknown("the CPUs of its interrupts", &absence));
    }
    let Some((file, cpus)) = far.first() else {
        return Ok(
            Finding::pass(format!("its {known} interrupts go to CPUs near it"))
                .evidence(path("local_cpulist"), near_text(context, nic)),
        );
    };
    let share = format!(
        "{} of its {known} interrupts go to CPUs far from it",
        far.len()
    );
    let finding = if far.len() * 2 > known {
        Finding::warn(share).fix(Fix::run(
            "Move its interrupts to near CPUs",
            format!(
                "for irq in /sys/bus/pci/devices/{bdf}/msi_irqs/*; do cat \
                     /sys/bus/pci/devices/{bdf}/local_cpulist > \
                     \"/proc/irq/${{irq##*/}}/smp_affinity_list\"; done",
                bdf = nic.bdf
            ),
        ))
    } else {
        Finding::info(share)
    };
    Ok(finding
        .evidence(file, cpus)
        .evidence(path("local_cpulist"), near_text(context, nic)))
}

fn near_text(context: &Context<'_>, nic: &Nic<'_>) -> String {
    let path = format!("/sys/bus/pci/devices/{}/local_cpulist", nic.bdf);
    context.text(&path).shown().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with the first `count` interrupts of mlx5_1 on the other socket.
    fn far(count: u32) -> MemorySource {
        (208..208 + count).fold(example::healthy(), |node, irq| {
            node.file(&format!("/proc/irq/{irq}/effective_affinity_list"), "60\n")
        })
    }

    #[test]
    fn near_interrupts_pass() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 10]);
    }

    #[test]
    fn some_far_interrupts_are_info_and_most_are_a_warning() {
        assert_eq!(verdict(&CHECK, &far(2)), Info);
        let found = judged(&CHECK, &far(3), Warn);
        assert!(found.summary.starts_with("3 of its 4"), "{}", found.summary);
    }

    #[test]
    fn unreadable_affinities_are_unknown() {
        let node = example::healthy()
            .without("/proc/irq")
            .not_collected("/proc/irq");
        assert_eq!(verdict(&CHECK, &node), Pass);
        let node = (208..212).fold(example::healthy(), |node, irq| {
            node.denied(&format!("/proc/irq/{irq}/effective_affinity_list"))
        });
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
