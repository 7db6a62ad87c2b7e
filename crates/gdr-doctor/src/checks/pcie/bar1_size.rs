use gdr_node::pci::{Bar, BarKind};

use crate::checks::prelude::*;

/// The largest BAR1, in bytes, that is meant for a display and little else.
const SMALL: u64 = 512 << 20;

pub(super) const CHECK: Check = Check {
    id: CheckId("bar1.size"),
    title: "the BAR1 of a GPU is as large as its memory",
    why: "NICs and CPU mappings access a GPU's memory through BAR1. All memory that is registered \
          at one time must fit into it. With 256 MiB small registrations work and large ones fail \
          with \"Bad address\" or \"Cannot allocate memory\".",
    inputs: "/sys/bus/pci/devices/<GPU>/resource: the first prefetchable range after the \
             registers; the Resizable BAR capability (0x0015) for the possible sizes; the size of \
             the memory that CUDA reports.",
    criteria: "pass: not smaller than the memory. warn: smaller, or smaller than it could be. \
               fail: 512 MiB or less. unknown: the ranges are not known.",
    sources: &[
        "https://github.com/Mellanox/nv_peer_memory/issues/101",
        "https://github.com/openucx/ucx/issues/8049",
        "https://docs.nvidia.com/cuda/gpudirect-rdma/ (BAR sizes)",
        "PCI Express Base Specification 6.0, 7.8.6 Resizable BAR",
    ],
    symptom_of: &["gpu.present"],
    scope: Scope::Gpu(judge),
    ..super::CHECK
};

/// Returns the range that NVIDIA calls BAR1: PCI BAR 1 after 32-bit registers, PCI BAR 2 after 64-bit ones. 64-bit
/// registers are prefetchable too, and come first.
pub(super) fn bar1(function: &Function) -> Option<Bar> {
    let bars = function.bars.as_ref().ok()?;
    bars.iter()
        .find(|bar| bar.kind == BarKind::Prefetchable && bar.number > 0)
        .copied()
}

fn judge(context: &Context<'_>, _: &GpuDevice, function: &Function) -> Judgement {
    let path = format!("/sys/bus/pci/devices/{}/resource", function.bdf);
    let bars = function.bars.by_ref();
    bars.known("the list of its address ranges")?;
    let Some(bar) = bar1(function) else {
        // A listing of lspci may have lost the line.
        context
            .text(&path)
            .known("the list of all its address ranges")?;
        return Ok(Finding::fail("it has no BAR1: firmware did not assign one")
            .evidence(path, "no prefetchable range after the first")
            .fix(larger_bar1()));
    };
    let facts = context.facts().gpu(function.bdf);
    let memory = facts.and_then(|gpu| gpu.total_memory);
    let largest = function.resizable_bars.as_ref().ok().and_then(|bars| {
        let same = bars.iter().find(|it| it.bar == bar.number)?;
        same.largest()
    });
    let has = size(bar.size);
    let (verdict, summary) = match (memory, largest) {
        _ if bar.size <= SMALL => (
            Verdict::Fail,
            format!("its BAR1 is {has}: registering more memory than that fails"),
        ),
        (Some(memory), _) if bar.size < memory => (
            Verdict::Warn,
            format!(
                "its BAR1 is {has} for {} of memory: not all of it can be registered at once",
                size(memory)
            ),
        ),
        (Some(_), _) => (
            Verdict::Pass,
            format!("its BAR1 is {has} and covers all of its memory"),
        ),
        (None, Some(largest)) if bar.size < largest => (
            Verdict::Warn,
            format!("its BAR1 is {has} and could be {}", size(largest)),
        ),
        (None, _) => (Verdict::Pass, format!("its BAR1 is {has}")),
    };
    let mut finding =
        Finding::new(verdict, summary).evidence(path, format!("BAR {} of {has}", bar.number));
    if let Some(largest) = largest {
        finding = finding.evidence("Resizable BAR, largest", size(largest));
    }
    if let Some(memory) = memory {
        finding = finding.evidence("total memory (CUDA)", size(memory));
    }
    if verdict.is_bad() {
        let can_grow = largest.is_some_and(|largest| largest > bar.size);
        finding = finding.fix(larger_bar1());
        if can_grow {
            finding = finding.fix(
                Fix::at_boot(
                    "Make the driver resize BAR1",
                    Action::file(
                        "/etc/modprobe.d/nvidia-rebar.conf",
                        "options nvidia NVreg_EnableResizableBar=1\n",
                    ),
                )
                .risk(
                    Risk::Low,
                    "it works only if the bridges above have enough address space",
                ),
            );
        }
        finding = finding.fix(Fix {
            privilege: Privilege::User,
            effect: Effect::AtRestart,
            persistence: Persistence::UntilExit,
            risk: Risk::None,
            ..Fix::manual(
                "Work with a small BAR1",
                "register less memory than BAR1 at a time, or stage through host memory: `gdr \
                 loopback --staged`",
            )
        });
    }
    Ok(finding)
}

fn larger_bar1() -> Fix {
    Fix::manual(
        "Enlarge BAR1 in the firmware",
        "in the BIOS turn on \"Above 4G decoding\" and \"Resizable BAR\"; for workstation GPUs with \
         a display mode of 256 MiB, switch to the compute mode with NVIDIA's displaymodeselector",
    )
    .risk(
        Risk::Medium,
        "a machine with old firmware may not boot with these settings",
    )
}

fn size(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        // The memory that CUDA reports is a little less than the nominal size.
        format!("{} GiB", bytes.saturating_add(1 << 29) >> 30)
    } else {
        format!("{} MiB", bytes >> 20)
    }
}

#[cfg(test)]
mod tests {
    use snapshot::assert_contains;

    use super::*;
    use crate::checks::fixture::*;

    fn with_bar1(bytes: u64) -> MemorySource {
        let range = |start: u64, size: u64| {
            format!(
                "{start:#018x} {:#018x} 0x000000000014220c\n",
                start + size - 1
            )
        };
        let text = format!(
            "{}0x0 0x0 0x0\n{}",
            range(1 << 45, 16 << 20),
            range(1 << 44, bytes)
        );
        let path = format!("/sys/bus/pci/devices/{}/resource", example::GPUS[0]);
        example::healthy().file(&path, text)
    }

    #[test]
    fn a_bar1_as_large_as_the_memory_passes() {
        assert_eq!(verdicts(&CHECK, &example::healthy()), [Pass; 8]);
    }

    #[test]
    fn a_bar1_of_256_mib_fails_and_one_smaller_than_the_memory_is_a_warning() {
        let small = worst(&CHECK, &with_bar1(256 << 20));
        assert_eq!(small.verdict, Fail);
        assert_contains!(small.summary, "256 MiB");
        assert_eq!(small.fixes.len(), 3);
        assert_eq!(verdict(&CHECK, &with_bar1(32 << 30)), Warn);
    }

    #[test]
    fn without_cuda_bar1_is_compared_with_its_largest_size() {
        let node = with_bar1(32 << 30).without("@cuda/devices.json");
        let found = judged(&CHECK, &node, Warn);
        assert_contains!(found.summary, "could be 128 GiB");
        let node = example::healthy().without("@cuda/devices.json");
        assert_eq!(verdict(&CHECK, &node), Pass);
    }

    #[test]
    fn an_uncollected_range_is_unknown() {
        let path = format!("/sys/bus/pci/devices/{}/resource", example::GPUS[2]);
        let node = example::healthy().not_collected(&path);
        assert_eq!(verdict(&CHECK, &node), Unknown);
    }
}
