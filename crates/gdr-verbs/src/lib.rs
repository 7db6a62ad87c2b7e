//! libibverbs' C interface on the software NIC, `gdr-nic`: an RDMA network card for programs that know
//! nothing of it, without hardware, kernel modules or privileges.
//!
//! The crate exports C functions only. `cargo xtask verbs-library` links it to two libraries with
//! the symbol versions of rdma-core: `libgdr-verbs.so` for `LD_PRELOAD`, and `shadow/libibverbs.so.1` for a
//! folder of `LD_LIBRARY_PATH`.
//!
//! # Devices
//!
//! `GDR_NICS` lists addresses or network interfaces, separated by commas: the devices `gdr0`, `gdr1`
//! and so on, in this order. Without it there is one for 127.0.0.1 and for the first IPv4 and IPv6
//! address of every interface that is up. A device has one port and one GID: its address, of type
//! RoCE v2, at index 0 and also at 1 to 3, where programs for other devices look for it. Its engine is opened with the first protection domain or completion
//! queue, not by listing, opening or querying the device.
//!
//! # Handles
//!
//! An installed libibverbs stays in use: its devices are listed after this library's, and a call about
//! a handle that this library never returned goes to it, once it has listed a device. A call with a
//! handle of this library never does, whatever other handles it has. Functions of a later libibverbs,
//! which this library lacks, find functions in its contexts that refuse.
//!
//! Every handle is looked up in a table before it is used: one that was never returned, whose object
//! was destroyed, or that belongs to the parent of a forked process, gives `EINVAL`. Handles of the last two
//! kinds are known by their memory, which is never used for anything else. What a program passes
//! besides handles is trusted as in libibverbs: arrays have their length, and registered memory stays
//! mapped.
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
