//! libibverbs' C interface on top of the software NIC `gdr-nic`: gives unmodified programs an RDMA device without
//! hardware, kernel modules or privileges.
//!
//! The crate exports only C functions. `cargo xtask verbs-library` links it into two libraries with the symbol
//! versions of rdma-core: `libgdr-verbs.so` for `LD_PRELOAD`, and `shadow/libibverbs.so.1` for a directory in
//! `LD_LIBRARY_PATH`.
//!
//! # Devices
//!
//! `GDR_NICS` is a comma-separated list of addresses or network interfaces, which become the devices `gdr0`, `gdr1`
//! and so on, in this order. Without it, there is a device for 127.0.0.1 and for the first IPv4 and IPv6 address of
//! every interface that is up. A device has one port and one GID: its address, of type RoCE v2, at index 0 and also
//! at 1 to 3, where programs written for other devices look for it. Listing, opening and querying a device does not
//! start its engine; the first protection domain or completion queue does.
//!
//! # Handles
//!
//! An installed libibverbs stays in use: its devices are listed after this library's, and once it has listed a
//! device, it receives calls with handles that this library never returned. A call with any handle of this library
//! never goes there. Newer functions that this library lacks find functions in its contexts that refuse the call.
//!
//! Every handle is looked up in a table before it is used. A handle that was never returned, whose object was
//! destroyed, or that belongs to the parent of a forked process results in `EINVAL`. The last two kinds are
//! recognized by their memory, which is never reused. Other arguments are trusted, as in libibverbs: arrays have
//! the stated length, and registered memory stays mapped.
//!
//! Every function catches panics, which become `EIO`.

#![warn(clippy::disallowed_methods)]

mod address_handle;
mod advice;
mod async_event;
mod buffer;
mod channel;
mod completion;
mod completion_counter;
mod completion_queue;
mod context;
mod counters;
mod cq_ex;
mod device;
mod device_memory;
mod device_use;
mod domain;
mod errno;
mod event;
mod event_queue;
mod files;
mod flow;
mod gid_table;
mod gpu_memory;
mod host_memory;
mod import;
mod marshall;
mod memory_window;
mod modify;
mod multicast;
mod netlink;
mod nics;
mod open;
mod port_state;
mod post;
mod qp_ex;
mod query;
mod queue_pair;
mod rate;
mod rdma_cm;
mod refusals;
mod region;
mod region_ex;
mod request;
mod ret;
mod section;
mod shared_receive_queue;
mod slab;
mod strings;
mod sysfs;
mod system;
mod table;
mod thread;
mod trivial;
mod work_queue;
mod xrc_domain;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of this crate, which `gdr run` reads from the file of the library: a C string, not a
/// pointer to one.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of C")]
static gdr_verbs_version: [u8; VERSION.len()] = {
    let mut text = [0; VERSION.len()];
    text.copy_from_slice(VERSION.as_bytes());
    text
};
