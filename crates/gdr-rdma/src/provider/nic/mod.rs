//! The provider of the software NIC: `gdr-nic` with requests that keep their memory registered.

mod completion_queue;
mod device;
mod domain;
mod queue_pair;
mod shared_receive_queue;
mod ud_queue_pair;
mod work_request;

pub(crate) use self::device::NicDevice;
