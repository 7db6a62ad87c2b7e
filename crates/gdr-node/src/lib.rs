//! What a node is made of: its PCI tree, its NUMA nodes, its RDMA devices, and how far apart they
//! are.
//!
//! Nothing here judges and nothing here changes a node. All reading goes through one seam,
//! [`Source`]: the running machine ([`ThisNode`]), a capture of one, a test's own
//! ([`MemorySource`]). What is read is a [`Datum`]: a value, or the reason why there is none.
//!
//! - [`pci`] has the functions, their config space and capabilities, and the tree they form.
//! - [`Inventory`] is what of a node matters to GPUDirect RDMA, in one reading.
//! - [`NumaLayout`], [`RdmaDevice`] and [`Netdev`] are read from sysfs.
//! - [`topology`] says how far apart two functions are in the words of nvidia-smi, NCCL and UCX,
//!   over which ports, with what bandwidth and why.
//! - [`collect`] reads all that matters of a node into an [`archive`], which answers as the node
//!   did.
//! - [`compare`] says what of several nodes differs that should be the same.
//! - [`example`] is a node that does not exist: for looking around, and for tests.
//! - [`import`] reads what other tools print: lspci, `nvidia-smi topo -m`, NCCL's topology files.
//!
//! ```
//! use gdr_node::topology::{SmiClass, Topology};
//! use gdr_node::{LiveRoot, NumaLayout, import::lspci, pci};
//!
//! // The running machine; `None` where it shows no PCI functions.
//! let source = LiveRoot::new();
//! let tree = pci::read_functions(&source).into_present();
//! let numa = NumaLayout::read(&source);
//! # let _ = (tree, numa);
//!
//! // Another machine, by what lspci printed there.
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
mod devices;
pub mod example;
pub mod import;
mod inventory;
mod numa;
mod nvlink;
pub mod pci;
mod rdma;
pub mod render;
mod source;
mod this_node;
pub mod topology;

pub use devices::{Device, DeviceKind, UnknownDevice, is_rdma_nic};
pub use gdr_cuda::{Bdf, ParseBdfError};
pub use inventory::{GpuDevice, GpuIndex, Inventory};
pub use numa::NumaLayout;
pub use nvlink::NvLinks;
pub use rdma::{Netdev, RdmaDevice, RdmaPort};
pub use source::{
    Datum, Errno, LiveRoot, MAX_ENTRIES, MAX_FILE, MemorySource, Source, virtual_path,
};
pub use this_node::ThisNode;
