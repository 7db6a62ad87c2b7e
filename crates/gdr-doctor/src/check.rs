//! What a check is.

use std::fmt;

use serde::{Serialize, Serializer};

use crate::context::Context;
use crate::finding::Finding;

/// A check's stable name, as `--only` takes it: `acs.path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct CheckId(pub &'static str);

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// What a check is about. The order is that of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// Devices, drivers and kernel modules.
    Modules,
    /// Distances, ACS and the IOMMU.
    Topology,
    /// Links, BARs and registers of PCI functions.
    Pcie,
    /// Limits, device nodes, containers, CPUs.
    Host,
    /// Ports, GIDs, MTU, flow control.
    Network,
    /// What the kernel has logged.
    KernelLog,
}

impl Group {
    /// Every group, in the order of reports.
    pub const ALL: [Self; 6] = [
        Self::Modules,
        Self::Topology,
        Self::Pcie,
        Self::Host,
        Self::Network,
        Self::KernelLog,
    ];

    /// As `--group` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Modules => "modules",
            Self::Topology => "topology",
            Self::Pcie => "pcie",
            Self::Host => "host",
            Self::Network => "network",
            Self::KernelLog => "kernel-log",
        }
    }

    /// As the heading of a report.
    pub const fn title(self) -> &'static str {
        match self {
            Self::Modules => "Devices, drivers and modules",
            Self::Topology => "Topology, ACS and IOMMU",
            Self::Pcie => "PCIe links and settings",
            Self::Host => "Host, limits and containers",
            Self::Network => "Network",
            Self::KernelLog => "Kernel log",
        }
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Group {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// What the node is wanted for: narrows a diagnosis to what matters there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// NCCL over InfiniBand or RoCE.
    Nccl,
    /// UCX, and MPI over it.
    Ucx,
    /// NVSHMEM, including GPU-initiated transports.
    Nvshmem,
    /// perftest between two nodes.
    Perftest,
    /// CPU mappings of GPU memory.
    Gdrcopy,
}

impl Purpose {
    /// Every purpose.
    pub const ALL: [Self; 5] = [
        Self::Nccl,
        Self::Ucx,
        Self::Nvshmem,
        Self::Perftest,
        Self::Gdrcopy,
    ];

    /// All that move data with an RDMA NIC.
    pub const RDMA: &'static [Self] = &[Self::Nccl, Self::Ucx, Self::Nvshmem, Self::Perftest];

    /// As `--for` takes it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nccl => "nccl",
            Self::Ucx => "ucx",
            Self::Nvshmem => "nvshmem",
            Self::Perftest => "perftest",
            Self::Gdrcopy => "gdrcopy",
        }
    }
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What `gdr doctor show` says of a check: each a sentence or more of plain text.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Documentation {
    /// Why it matters.
    pub means: &'static str,
    /// What is read, by file, register or attribute.
    pub reads: &'static str,
    /// What makes which verdict.
    pub judges: &'static str,
    /// Where the rule comes from: specification section, kernel file, issue thread.
    pub sources: &'static [&'static str],
}

/// One question about a node, and how to answer it.
pub struct Check {
    /// Its name.
    pub id: CheckId,
    /// What it is about.
    pub group: Group,
    /// One line: what is fine when it passes.
    pub title: &'static str,
    /// Its documentation.
    pub documentation: Documentation,
    /// For whom it matters; empty is for all.
    pub purposes: &'static [Purpose],
    /// Checks whose bad findings explain a bad finding of this one, where both are about the same
    /// thing: such a finding is a symptom, and is reported under its cause.
    pub symptom_of: &'static [CheckId],
    /// Answers it. Gives one finding at least: a check that does not apply says so with
    /// [`Verdict::Skip`](crate::Verdict::Skip), one that cannot tell with
    /// [`Verdict::Unknown`](crate::Verdict::Unknown).
    pub run: fn(&Context<'_>) -> Vec<Finding>,
}

impl Check {
    /// Whether it matters for a purpose.
    pub fn serves(&self, purpose: Purpose) -> bool {
        self.purposes.is_empty() || self.purposes.contains(&purpose)
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Check").field(&self.id.0).finish()
    }
}
