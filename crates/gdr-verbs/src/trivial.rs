//! Functions of libibverbs with nothing behind them: those that the device does not support fail as
//! the header says, and those for programs that fork have nothing to do, because no page is pinned,
//! and the engine of a process is useless in its children.

use std::ffi::{c_int, c_void};

use gdr_verbs_sys::{ibv_context, ibv_dm, ibv_fork_status, ibv_gid, ibv_mr, ibv_pd, ibv_qp};

use crate::errno::Errno;
use crate::ret::{pointer, status};

fn no_pointer<T>() -> *mut T {
    pointer(|| Err(Errno::OPNOTSUPP))
}

fn refused() -> c_int {
    status(|| Err(Errno::OPNOTSUPP))
}

#[unsafe(no_mangle)]
extern "C" fn ibv_attach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_detach_mcast(_qp: *mut ibv_qp, _gid: *const ibv_gid, _lid: u16) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut ibv_context {
    no_pointer()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_pd(_context: *mut ibv_context, _handle: u32) -> *mut ibv_pd {
    no_pointer()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_pd(_pd: *mut ibv_pd) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    no_pointer()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_import_dm(_context: *mut ibv_context, _handle: u32) -> *mut ibv_dm {
    no_pointer()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_unimport_dm(_dm: *mut ibv_dm) {}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_ece(_qp: *mut ibv_qp, _ece: *mut c_void) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut ibv_context,
    _attr: *mut c_void,
    _mac: *mut u8,
    _vid: *mut u16,
) -> c_int {
    refused()
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    ibv_fork_status::IBV_FORK_UNNEEDED
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
