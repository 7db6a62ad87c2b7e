//! The provider of the software NIC: `gdr-nic`, with requests that keep their memory registered. The types come from
//! that crate, and so do the methods that an implementation here calls under the same name.

mod completion_queue;
mod device;
mod domain;
mod queue_pair;
pub(crate) mod work_request;

pub(crate) use self::queue_pair::{post_recv, with_queues};
