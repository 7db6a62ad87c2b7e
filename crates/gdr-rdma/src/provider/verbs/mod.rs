//! The verbs provider: kernel devices through libibverbs.

mod completion_queue;
mod context;
mod device;
mod discover;
mod gid_table;
mod memory_region;
mod outstanding;
mod protection_domain;
mod queue_pair;

pub(crate) use self::context::Context;
pub(crate) use self::discover::discover;
pub use self::discover::{DeviceAttributes, DmaBufSupport, VerbsDevice, VerbsGid, VerbsPort};
