//! The CPUs of a node, as `/proc/cpuinfo` describes them.

use gdr_node::Datum;

use crate::context::Context;

/// The makers of CPUs that checks tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CpuMaker {
    Amd,
    Arm,
    Intel,
    Other,
}

/// The text of `/proc/cpuinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CpuInfo(String);

impl CpuInfo {
    /// Reads it.
    pub(super) fn read(context: &Context<'_>) -> Datum<Self> {
        context.text("/proc/cpuinfo").map(Self)
    }

    /// Returns a field of the first CPU: `GenuineIntel` for `vendor_id`.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.0.lines().filter_map(|line| line.split_once(':'));
        fields
            .find(|(key, _)| key.trim() == name)
            .map(|(_, value)| value.trim())
    }

    /// Returns the maker of the CPUs.
    pub(super) fn maker(&self) -> CpuMaker {
        match self.field("vendor_id") {
            Some("AuthenticAMD" | "HygonGenuine") => CpuMaker::Amd,
            Some("GenuineIntel") => CpuMaker::Intel,
            _ if self.field("CPU implementer").is_some() => CpuMaker::Arm,
            _ => CpuMaker::Other,
        }
    }
}
