//! `/dev/infiniband/rdma_cm`: the kernel's connection manager as librdmacm uses it, for the devices of this
//! library.
//!
//! The installed librdmacm stays in use, with all that is above its 25 commands: events, `rdma_getaddrinfo`,
//! rsockets. It opens the character device, writes commands to it, polls it, and fetches events by a command.
//! These functions of the C library, which the library for `LD_PRELOAD` replaces, answer for that device:
//!
//! - [`descriptor`] has the functions, and knows which descriptors are open on the device;
//! - [`channel`] is an open device: a queue of events;
//! - [`command`] reads commands and writes answers, by the layouts in [`abi`];
//! - [`address`] binds identifiers to addresses and ports, and finds their devices;
//! - [`id`] is a communication identifier (`rdma_cm_id`);
//! - [`membership`] is an identifier's membership in a multicast group;
//! - [`agent`] connects the identifiers of a device with the management queue pair of its address;
//! - [`state`] keeps all of them under one lock.
//!
//! Multicast groups have no subnet manager in RoCE: a join succeeds at once, and librdmacm then attaches the queue pair.
//! Not there are addresses of the family AF_IB, and paths that a program sets. A process that exits ends its connections. That one was killed its peers on the same host notice; those on
//! other hosts learn it at their next request.

mod abi;
mod address;
mod agent;
mod channel;
mod command;
mod descriptor;
mod id;
#[cfg(test)]
mod interposed_tests;
mod membership;
mod state;

pub(crate) use self::descriptor::{
    NUMBER, are_any_open, device_number, device_of, is_refused, opened,
};

/// `RDMA_USER_CM_ABI_VERSION`.
pub(crate) const ABI_VERSION: u64 = 4;
