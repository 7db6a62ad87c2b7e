//! What a text says about the machine that it comes from, as far as this helps to choose between reasons and remedies.

use serde::Serialize;

/// A fact about a machine, found in its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Fact {
    /// A GeForce GPU, for which NVIDIA's driver offers no GPUDirect RDMA.
    GeForce,
    /// A DGX Spark or another machine with a GB10, whose GPU has no memory of its own.
    Spark,
    /// A virtual machine.
    VirtualMachine,
    /// A peer-memory module is loaded.
    PeermemLoaded,
    /// UCX offers only TCP devices.
    TcpOnly,
    /// PyTorch allocates with expandable segments.
    ExpandableSegments,
    /// The driver found no NVSwitch.
    NoNvSwitch,
    /// A baseboard of the fifth NVLink generation (HGX B200, B300).
    NvLink5,
}

/// Each fact with a regular expression over one line, case ignored.
pub(crate) const FACTS: &[(Fact, &str)] = &[
    (Fact::GeForce, r"\bgeforce\b"),
    (Fact::Spark, r"dgx[ _]spark\b|\bgb10\b"),
    (
        Fact::VirtualMachine,
        r"hypervisor detected|\b(dmi|hardware name): (qemu|vmware|xen|amazon ec2|google|red hat kvm|openstack)|\bhypervisor vendor:",
    ),
    (
        Fact::PeermemLoaded,
        r"^(nvidia_peermem|nv_peer_mem) +\d+ +\d|\bloaded nvidia[_-]peermem\b",
    ),
    (
        Fact::TcpOnly,
        r"please use one or more of: ('[^']{1,40}'\(tcp\),? ?)+$",
    ),
    (
        Fact::ExpandableSegments,
        r"expandable[_ ]segments[ :=]*true",
    ),
    (
        Fact::NoNvSwitch,
        r"nvswitch\b.{0,80}\bnv_warn_nothing_to_do\b",
    ),
    (
        Fact::NvLink5,
        r"\bnvl5\+? system\b|\b(hgx|dgx)[ -]?b[23]00\b|\bnvidia b[23]00\b",
    ),
];
