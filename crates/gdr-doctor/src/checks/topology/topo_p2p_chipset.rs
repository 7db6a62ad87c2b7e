use gdr_node::topology::Ancestor;

use crate::checks::cpu::{CpuInfo, CpuMaker};
use crate::checks::prelude::*;

pub(super) const CHECK: Check = Check {
    id: CheckId("topo.p2p_chipset"),
    title: "the CPU forwards traffic between root ports if a pair needs it",
    why: "If a GPU and its NIC are below different root ports, the CPU has to forward their \
          traffic. Server CPUs do. Intel's desktop CPUs forward at most writes: reads of GPU \
          memory fail with syndrome 0x89, and the peer reports `Remote operation error`.",
    inputs: "vendor_id, model and model name in /proc/cpuinfo; the distances of GPUs and their \
             nearest NICs.",
    criteria: "pass: every pair is below one switch, or the CPU is a server CPU or AMD's. warn: an \
               Intel Core. fail: Arrow Lake, on which reads are known to fail. skip: no pair, or a \
               guest. unknown: the CPU is not known.",
    sources: &[
        "https://github.com/NVIDIA/open-gpu-kernel-modules/issues/1253",
        "https://github.com/linux-rdma/perftest/issues/200",
        "Linux drivers/pci/p2pdma.c (pci_p2pdma_whitelist)",
    ],
    symptom_of: &["topo.pair"],
    scope: Scope::Node(run),
    ..super::CHECK
};

/// The models of Arrow Lake in family 6 (Linux `arch/x86/include/asm/intel-family.h`: ARROWLAKE_H
/// 0xc5, ARROWLAKE 0xc6, ARROWLAKE_U 0xb5).
const ARROW_LAKE: [u32; 3] = [0xb5, 0xc5, 0xc6];

fn run(context: &Context<'_>) -> Judgement {
    let pairs = runner::pairs(context)?;
    if context.is_guest() {
        return Err(Unjudged::skip("in a guest the host's CPU is not known"));
    }
    let across: Vec<_> = (pairs.iter())
        .filter(|pair| !matches!(pair.relation.ancestor, Ancestor::Bridge(_)))
        .collect();
    let Some(first) = across.first() else {
        return Ok(Finding::pass(
            "each GPU and its NICs are below one switch: their traffic does not reach the CPU",
        ));
    };
    let cpu = CpuInfo::read(context).known("the CPU")?;
    let called = cpu.field("model name").unwrap_or("this CPU");
    let intel = cpu.maker() == CpuMaker::Intel;
    let desktop = intel && called.contains("Core") && !called.contains("Xeon");
    let arrow_lake = desktop
        && cpu.field("cpu family") == Some("6")
        && (cpu.field("model").and_then(|model| model.parse().ok()))
            .is_some_and(|model| ARROW_LAKE.contains(&model));
    let way = format!("{} - {}", first.gpu.index, first.nic.name);
    let (verdict, summary) = if arrow_lake {
        (
            Verdict::Fail,
            format!("{way} crosses {called}, which forwards writes, but fails reads of GPU memory"),
        )
    } else if desktop {
        (
            Verdict::Warn,
            format!(
                "{way} crosses {called}, a desktop CPU that may forward writes only: test reads"
            ),
        )
    } else {
        (
            Verdict::Pass,
            format!("{way} crosses {called}, which forwards between root ports"),
        )
    };
    let finding = Finding::new(verdict, summary)
        .evidence("/proc/cpuinfo", called)
        .evidence(
            way,
            format!("{}: {}", first.relation.smi, first.relation.why),
        );
    Ok(if verdict.is_bad() {
        finding.fix(Fix::hardware(
            "Put the GPU and the NIC below one switch",
            "use slots below one switch, bifurcate one root port, or use a server CPU",
        ))
    } else {
        finding
    })
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    /// Returns the example with one NIC, which has its own root port.
    fn across(model: u32, name: &str) -> MemorySource {
        without_nics(example::healthy(), 1..10).file(
            "/proc/cpuinfo",
            format!(
                "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {model}\n\
                     model name\t: {name}\nflags\t: fpu\n"
            ),
        )
    }

    #[test]
    fn pairs_below_one_switch_pass_on_any_cpu() {
        assert_eq!(verdict(&CHECK, &example::healthy()), Pass);
    }

    #[test]
    fn servers_pass_desktops_are_a_warning_and_arrow_lake_fails() {
        let xeon = across(143, "Intel(R) Xeon(R) Platinum 8468");
        assert_eq!(verdict(&CHECK, &xeon), Pass);
        let core = across(183, "13th Gen Intel(R) Core(TM) i9-13900K");
        assert_eq!(verdict(&CHECK, &core), Warn);
        let found = judged(&CHECK, &across(198, "Intel(R) Core(TM) Ultra 9 285K"), Fail);
        assert_contains!(found.summary, "reads");
    }

    #[test]
    fn a_guest_is_skipped_and_an_unread_cpu_is_unknown() {
        let guest = across(198, "Intel(R) Core(TM) Ultra 9 285K")
            .file("/proc/cpuinfo", "flags : hypervisor\n");
        assert_eq!(verdict(&CHECK, &guest), Skip);
        let unread = across(1, "x").not_collected("/proc/cpuinfo");
        assert_eq!(verdict(&CHECK, &unread), Unknown);
    }
}
