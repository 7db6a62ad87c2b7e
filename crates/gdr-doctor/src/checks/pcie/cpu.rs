//! Who made the CPUs.

use gdr_node::Datum;

use crate::context::Context;

/// Who made the CPUs, of those between whom a check distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuMaker {
    Amd,
    Arm,
    Intel,
    Other,
}

/// Who made the CPUs, as `/proc/cpuinfo` says.
pub(super) fn maker(context: &Context<'_>) -> Datum<CpuMaker> {
    context.text("/proc/cpuinfo").map(|text| {
        let field = |name: &str| {
            text.lines()
                .filter_map(|line| line.split_once(':'))
                .find(|(key, _)| key.trim() == name)
                .map(|(_, value)| value.trim())
        };
        match field("vendor_id") {
            Some("AuthenticAMD" | "HygonGenuine") => CpuMaker::Amd,
            Some("GenuineIntel") => CpuMaker::Intel,
            _ if field("CPU implementer").is_some() => CpuMaker::Arm,
            _ => CpuMaker::Other,
        }
    })
}
