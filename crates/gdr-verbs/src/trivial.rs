//! Functions of libibverbs without an implementation: what the device does not support fails as the
//! header says, and those for programs that fork have nothing to do, because no page is pinned, and
//! the engine of a process is useless in its children. All are passed on if they are about objects
//! of the installed library.

use std::ffi::{c_int, c_void};

use gdr_verbs_sys::{ibv_context, ibv_dm, ibv_fork_status, ibv_qp};

use crate::ret::{unsupported, unsupported_minus_one, unsupported_pointer};
use crate::slab::is_own;
use crate::system::{call_system, forward};

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut c_void) -> c_int {
    forward!(unless is_own(qp), ibv_query_ece(qp, ece));
    unsupported()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut c_void) -> c_int {
    forward!(unless is_own(qp), ibv_set_ece(qp, ece));
    unsupported()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    context: *mut ibv_context,
    attr: *mut c_void,
    mac: *mut u8,
    vid: *mut u16,
) -> c_int {
    forward!(unless is_own(context), ibv_resolve_eth_l2_from_gid(context, attr, mac, vid));
    unsupported()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    // Do this before the program asks for devices.
    call_system!(ibv_fork_init()).unwrap_or(0)
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    forward!(unless false, ibv_is_fork_initialized());
    ibv_fork_status::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(base: *mut c_void, size: usize) -> c_int {
    forward!(unless false, ibv_dontfork_range(base, size));
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(base: *mut c_void, size: usize) -> c_int {
    forward!(unless false, ibv_dofork_range(base, size));
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_dmah(context: *mut ibv_context, attr: *mut c_void) -> *mut c_void {
    forward!(unless is_own(context), ibv_alloc_dmah(context, attr));
    unsupported_pointer()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_dmah(handle: *mut c_void) -> c_int {
    forward!(unless is_own(handle), ibv_dealloc_dmah(handle));
    unsupported()
}

/// Returns -1 with errno set, unlike the others.
#[unsafe(no_mangle)]
extern "C" fn ibv_dm_export_dmabuf_fd(dm: *mut ibv_dm) -> c_int {
    forward!(unless is_own(dm), ibv_dm_export_dmabuf_fd(dm));
    unsupported_minus_one()
}
