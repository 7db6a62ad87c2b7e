//! GDRCopy's C interface over [`gdr_copy`]: a drop-in `libgdrapi.so.2`.
//!
//! Programs built for GDRCopy 2.x run with this library unchanged: the same symbols, structures,
//! values, errno answers and environment variables. `include/gdrapi.h` is the documentation of
//! the functions; [`abi`] has the types for Rust. What is different is underneath: with the stock
//! driver no kernel module is needed, and nothing a caller passes can crash the library.
//!
//! # Handles
//!
//! - A `gdr_t` is the address of an object of 128 bytes whose first field is a real descriptor,
//!   because programs exist that look. Whether it is valid is decided by a table of those that are
//!   open; nothing is read through it. Addresses of closed ones rest (1024 closes) before they are
//!   used again.
//! - A `gdr_mh_t` is a slot number and a generation, written as an address in a reserved, readable
//!   stretch of address space. A stale handle is known as such for two million pins at least.
//! - A null, closed, unpinned, doubled or invented handle gives `EINVAL`, as does one of another
//!   `gdr_t` or of the process that forked this one.
//!
//! # Threads, forks, signals
//!
//! Every function may be called from every thread at every time. Copies take no lock: each
//! announces its mapping in a hazard pointer, and whoever unmaps waits for the copies that use
//! that mapping, and for no others. (A copy that does not end within 20 s, or was left by
//! `siglongjmp`, keeps its mapping until later; nothing hangs.) A forked child starts from nothing. Copies may be made in
//! signal handlers, once the thread has made one outside. The library stays loaded after
//! `dlclose`.
//!
//! # Simulation
//!
//! With `GDR_BACKEND=sim`, and only then, the library has a simulated GPU with one buffer of
//! `GDR_SIM_BYTES` bytes (64 MiB) at address 0x6000000000000 ([`SIMULATED_BUFFER`]).

pub mod abi;
mod boundary;
mod errno;
mod exports;
mod handle;
mod hazard;
mod log;
mod mapped;
mod own_record;
mod pin;
mod process;
mod registry;
mod simulated;

pub use exports::{
    gdr_close, gdr_copy_from_mapping, gdr_copy_to_mapping, gdr_driver_get_version,
    gdr_get_attribute, gdr_get_callback_flag, gdr_get_info, gdr_get_info_v2,
    gdr_get_mapping_type_string, gdr_map, gdr_map_v2, gdr_open, gdr_pin_buffer, gdr_pin_buffer_v2,
    gdr_runtime_get_version, gdr_unmap, gdr_unpin_buffer,
};
pub use simulated::SIMULATED_BUFFER;
