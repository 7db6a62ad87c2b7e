//! The names of checks, their groups and the workloads that they matter for.

use std::fmt;

use serde::{Serialize, Serializer};

/// A check's stable name, as `--only` takes it: `acs.path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct CheckId(pub &'static str);

impl fmt::Display for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The group of a check, in the order of reports.
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
    /// Messages of the kernel log.
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

    /// Returns its name on the command line (`--group`).
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

    /// Returns its heading in reports.
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

/// The workload that a node is meant for. A diagnosis leaves out checks that do not matter for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Workload {
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

impl Workload {
    /// Every workload.
    pub const ALL: [Self; 5] = [
        Self::Nccl,
        Self::Ucx,
        Self::Nvshmem,
        Self::Perftest,
        Self::Gdrcopy,
    ];

    /// The workloads that use an RDMA NIC.
    pub const RDMA: &'static [Self] = &[Self::Nccl, Self::Ucx, Self::Nvshmem, Self::Perftest];

    /// Returns its name on the command line (`--for`).
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

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
