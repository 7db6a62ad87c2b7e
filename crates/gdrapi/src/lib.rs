//! GDRCopy's C interface over [`gdr_copy`]: a drop-in `libgdrapi.so.2`.
//!
//! Programs built for GDRCopy 2.x run unchanged with this library: it has the same symbols, structures,
//! constants, errno values and environment variables. `include/gdrapi.h` documents the functions, and
//! [`abi`] has the types for Rust. The implementation is different: it needs no kernel module besides
//! the stock driver, and invalid arguments never crash it.
//!
//! # Handles
//!
//! - A `gdr_t` is the address of an object of 128 bytes whose first field is a real descriptor,
//!   because some programs read it. The library never dereferences it, but looks it up in a table of
//!   open handles. The address of a closed handle is reused only after 1024 further closes.
//! - A `gdr_mh_t` is a slot number and a generation, encoded as an address in a reserved, readable
//!   address range. A stale handle is recognized for at least two million pins.
//! - A null, closed, unpinned or invalid handle results in `EINVAL`, as does a handle that belongs to
//!   another `gdr_t` or to the parent process.
//!
//! # Threads, forks, signals
//!
//! Any function may be called from any thread at any time. Copies never take a lock, whatever their size:
//! each one announces its mapping in a hazard pointer, and a thread that unmaps waits only for copies that
//! use the mapping. (If a copy does not end within 20 s, the mapping is unmapped later, so no call hangs.)
//! Long reads use the GPU's copy engine, which a thread of the library drives; the reader watches words in
//! memory, and loads what has not arrived ([`gdr_copy::EngineReads`]). A forked child starts with empty
//! state. The library stays loaded after `dlclose`.
//!
//! Signal handlers may copy, even on the alternate stack, once the thread has made a copy outside a
//! handler; a refused copy neither allocates nor takes a lock. A handler may leave a copy by
//! `siglongjmp`, any number of times. An abandoned copy counts as ended when its thread next copies or
//! unmaps from the same function or from one of its callers; until then, a thread that unmaps waits for
//! it, for at most 20 s. The exception are copies by several threads, which `GDR_COPY_THREADS` opts in to:
//! handlers may neither make nor leave them.
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
