//! Distances between devices, in the terms of nvidia-smi, NCCL and UCX.
//!
//! [`Topology::relation`] classifies one pair from the PCI tree and the NUMA layout.
//! [`NcclGraph`] searches paths as NCCL does, in the same tree or in one of NCCL's files.

mod class;
mod distances;
mod nccl;
mod nccl_build;
mod relation;
mod route;
mod tree_position;
mod ucx;

pub use class::{NcclClass, ParseClassError, SmiClass};
pub use distances::{DistanceClass, Distances};
pub use nccl::{NcclDevice, NcclGraph, NcclPath, NcclRoute};
pub use relation::{Ancestor, Note, Relation, RelationError, Topology, UnknownFunction};
pub use route::{Place, Step};
pub use ucx::{UcxClass, UcxDistance};
