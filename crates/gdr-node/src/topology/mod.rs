//! How far apart two devices are, in the words of those who ask.
//!
//! [`Topology::relation`] answers for one pair from the PCI tree and the NUMA layout;
//! [`NcclGraph`] answers as NCCL does, from the same tree or from one of NCCL's own files.

mod class;
mod nccl;
mod nccl_build;
mod relation;
mod route;
mod ucx;

pub use class::{NcclClass, ParseClassError, SmiClass};
pub use nccl::{NcclGraph, NcclPath, NcclRoute};
pub use relation::{Ancestor, Note, Relation, Topology, UnknownFunction};
pub use route::{Place, Step};
pub use ucx::{UcxClass, UcxDistance};
