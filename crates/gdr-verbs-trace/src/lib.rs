//! Counts what a verbs program registers and moves, from within its process.
//!
//! The crate exports only C functions. `cargo xtask verbs-library` installs it as `libgdr-verbs-trace.so`, which `gdr
//! trace` places in front of libibverbs with `LD_PRELOAD`. Each exported libibverbs function calls its counterpart in
//! the real library, which the program would otherwise call directly, and counts the result:
//!
//! - Functions that the program is linked against are found with `dlsym(RTLD_NEXT)`. For programs that look
//!   functions up in a library that they have loaded, this library also exports `dlsym` and `dlvsym`, which
//!   return its own functions (`symbol_lookup`).
//! - Inline functions in libibverbs' header call through function tables in contexts, queue pairs and
//!   extended completion queues. This crate's functions are put into those tables when an object is created
//!   (`open_context`, `queue_pair`, `cq_ex`).
//!
//! The counters are in a file that the process maps, in the directory that `GDR_TRACE_FOLDER` names (`recorder`, with
//! the layout of `gdr_trace::layout`). If the variable is not set, nothing is counted and no table is changed.
//!
//! Programs observe no difference: results, errno and the order of calls stay the same.

#![warn(clippy::disallowed_methods)]

mod c_library;
mod caller_memory;
mod check;
mod completion;
mod completion_queue;
mod context;
mod cq_ex;
mod exports;
mod gpu_memory;
mod interned;
mod key_map;
mod library;
mod mlx5;
mod nesting;
mod next_symbol;
mod open_context;
mod post;
mod qp_ex;
mod queue_pair;
mod receive_kinds;
mod recorder;
mod region;
mod shared_receive_queue;
mod symbol_lookup;

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// Version of this crate, which `gdr trace` reads from the library's file: a C string, not a pointer to one.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals, reason = "a name of C")]
static gdr_verbs_trace_version: [u8; VERSION.len()] = {
    let mut text = [0; VERSION.len()];
    text.copy_from_slice(VERSION.as_bytes());
    text
};
