//! GDRCopy's C interface over [`gdr_copy`]: a drop-in `libgdrapi.so.2`.
//!
//! Programs built for GDRCopy 2.x run with this library unchanged: the same symbols, structures,
//! values, errno values and environment variables. `include/gdrapi.h` documents the functions;
//! [`abi`] has the types for Rust. The implementation differs: with the stock driver no kernel module
//! is required, and no argument crashes the library.
//!
//! # Handles
//!
//! - A `gdr_t` is the address of an object of 128 bytes whose first field is a real descriptor,
//!   because some programs read it. A table of the open ones decides whether it is valid; the library
//!   does not dereference it. The address of a closed one is reused only after 1024 further closes.
//! - A `gdr_mh_t` is a slot number and a generation, encoded as an address in a reserved, readable
//!   address range. A stale handle is recognized for two million pins at least.
//! - A null, closed, unpinned or invalid handle returns `EINVAL`, as does one of another `gdr_t` or of
//!   the parent process.
//!
//! # Threads, forks, signals
//!
//! Every function may be called from every thread at any time. Copies of every size take no lock: each
//! announces its mapping in a hazard pointer, and an unmapping thread waits for the copies that use that
//! mapping only. (If a copy does not end within 20 s, the mapping is unmapped later; no call hangs.) Long
//! reads come by the GPU's copy engine, whose calls a thread of the library makes; the reader looks at
//! words in memory, and loads what has not arrived ([`gdr_copy::EngineReads`]). A forked child starts with
//! empty state. The library stays loaded after `dlclose`.
//!
//! Signal handlers may copy, on the alternate stack too, once the thread has made a copy outside of
//! one; a refused copy neither allocates nor takes a lock. A handler may leave a copy by
//! `siglongjmp`, any number of times. A copy that was left counts as ended when its thread next
//! copies or unmaps from the same function or from a caller of it; until then an unmapping in
//! another thread waits for it, 20 s at most. Only copies by several threads, which
//! `GDR_COPY_THREADS` opts in to, may be neither made in handlers nor left.
//!
//! # Simulation
//!
//! With `GDR_BACKEND=sim`, and only then, the library has a simulated GPU with one buffer of
//! `GDR_SIM_BYTES` bytes (64 MiB) at address 0x6000000000000 ([`SIMULATED_BUFFER`]).

#![warn(clippy::disallowed_methods)]

pub mod abi;
mod copy_error;
mod errno;
mod exports;
mod ffi_guard;
mod handle;
mod hazard_pointer;
mod log;
mod long_copies;
mod mapping_table;
mod pin;
mod primitives;
mod process;
mod registry;
mod simulated;
mod stack;
mod tls;

pub use exports::{
    gdr_close, gdr_copy_from_mapping, gdr_copy_to_mapping, gdr_driver_get_version,
    gdr_get_attribute, gdr_get_callback_flag, gdr_get_info, gdr_get_info_v2,
    gdr_get_mapping_type_string, gdr_map, gdr_map_v2, gdr_open, gdr_pin_buffer, gdr_pin_buffer_v2,
    gdr_runtime_get_version, gdr_unmap, gdr_unpin_buffer,
};
pub use simulated::SIMULATED_BUFFER;
