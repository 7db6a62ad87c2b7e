//! Functions of libibverbs for which the device has nothing: they fail as the header says.

use std::ffi::{c_int, c_void};

use gdr_verbs_sys::{ibv_context, ibv_dm, ibv_gid, ibv_mr, ibv_pd, ibv_qp};

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
