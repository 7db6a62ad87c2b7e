//! The verbs provider: devices of the kernel through libibverbs.

mod context;
mod domain;
mod error;
mod flush;
mod gid;
mod gid_table;
mod held;
mod list;
mod options;
mod own_link;
mod pair;
mod proof;
mod queue;
mod read_back;
mod region;

pub use error::VerbsError;
pub use flush::FlushPolicy;
pub use gid::{ChosenGid, GidEntry, GidType, choose as choose_gid};
pub use list::{DmaBufSupport, LinkLayer, Told, VerbsDevice, VerbsGid, VerbsPort};
pub use options::VerbsOptions;
pub use region::Registration;

pub(crate) use context::Context;
pub(crate) use domain::Domain;
pub(crate) use flush::{How, Listed};
pub(crate) use list::list;
pub(crate) use pair::Pair;
pub(crate) use proof::{Proof, prove};
pub(crate) use queue::Queue;
pub(crate) use read_back::ReadBack;
pub(crate) use region::{Refused, Region};
