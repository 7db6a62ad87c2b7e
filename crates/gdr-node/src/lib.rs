//! The hardware of a node: its PCI tree, NUMA nodes, GPUs and RDMA devices, and the distances
//! between them.
//!
//! This crate reads and computes; it never changes a node, and it does not judge. It reads through the
//! [`Source`] trait, which is implemented for the running machine ([`ThisNode`]), a directory laid out
//! like a node's root ([`LiveRoot`]), an [`archive`], and, for tests, [`MemorySource`]. Each fact is a
//! [`Datum`]: a value, or the reason why the value is unknown.
//!
//! - [`pci`] covers PCI functions, their config space and capabilities, and the tree they form.
//! - [`Inventory`] is a snapshot of the devices that matter to GPUDirect RDMA.
//! - [`NumaLayout`], [`RdmaDevice`] and [`Netdev`] are read from sysfs.
//! - [`topology`] computes the distance between two functions in the terms of nvidia-smi, NCCL and UCX,
//!   with the ports and the bandwidth of the path, and the rule that decided.
//! - [`collect`] records a node in an [`archive`], which answers every read as the node did.
//! - [`compare`] reports differences between nodes of one cluster.
//! - [`example`] is a fictional node for tests and demonstrations.
//! - [`import`] reads the output of other tools: lspci, `nvidia-smi topo -m`, NCCL's topology files.
//!
//! ```
//! use gdr_node::topology::{SmiClass, Topology};
//! use gdr_node::{LiveRoot, NumaLayout, import::lspci, pci};
//!
//! // The running machine; `None` if its PCI functions cannot be listed.
//! let source = LiveRoot::new();
//! let tree = pci::read_functions(&source).ok();
//! let numa = NumaLayout::read(&source);
//! # let _ = (tree, numa);
//!
//! // Another machine, from the output of lspci.
//! let tree = lspci::read(
//!     "40:01.1 PCI bridge: Root port\n\tBus: primary=40, secondary=41, subordinate=41\n\
//!      40:03.1 PCI bridge: Root port\n\tBus: primary=40, secondary=42, subordinate=42\n\
//!      41:00.0 3D controller: NVIDIA Corporation GH100\n\
//!      42:00.0 Infiniband controller: Mellanox Technologies MT2910\n",
//! )?
//! .into_tree();
//! let numa = NumaLayout::of_nodes(2);
//! let (gpu, nic) = ("41:00.0".parse()?, "42:00.0".parse()?);
//! let relation = Topology::new(&tree, &numa).relation(gpu, nic)?;
//! assert_eq!(relation.smi, SmiClass::Phb);
//! assert!(relation.why.contains("share no bridge"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod archive;
pub mod collect;
pub mod compare;
mod cpu_set;
mod devices;
pub mod example;
pub mod import;
mod inventory;
pub mod kernel_log;
mod live;
mod numa;
mod nvlink;
mod os_release;
pub mod pci;
mod probe;
mod rdma;
mod rdma_gid;
pub mod render;
mod source;
pub mod topology;

pub use cpu_set::{CpuSet, InvalidCpuSet};
pub use devices::{Device, DeviceKind, UnknownDevice, is_rdma_nic};
pub use gdr_pci::{Bdf, ParseBdfError};
pub use inventory::{GpuDevice, GpuIndex, Inventory};
pub use live::{LiveRoot, ThisNode};
pub use numa::NumaLayout;
pub use nvlink::NvLinks;
pub use os_release::{DistributionFamily, OsRelease};
pub use probe::{
    DmaBufImport, GpuFacts, GpuProcess, NvLinkEnd, NvLinkKind, PortFacts, Probe, RdmaFacts,
};
pub use rdma::{Netdev, PortState, RdmaDevice, RdmaPort};
pub use rdma_gid::RdmaGid;
pub use source::{
    Absence, Datum, DatumExt, Errno, MAX_ENTRIES, MAX_FILE, MemorySource, Overlay, Source,
    virtual_path,
};

// Compiles and runs the README's example as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
