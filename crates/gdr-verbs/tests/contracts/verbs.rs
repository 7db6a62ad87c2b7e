//! The functions of libibverbs as C programs call them: return values and errno.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use gdr_verbs_sys::*;

use crate::side::function;

macro_rules! verbs {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $returned:ty)?;)*) => {
        /// The addresses of the functions, found at the first call, because a forked child must not call the loader.
        #[allow(non_upper_case_globals, reason = "the names of C")]
        mod addresses {
            use std::sync::OnceLock;

            $(pub(super) static $name: OnceLock<usize> = OnceLock::new();)*
        }

        /// Finds all functions.
        pub(crate) fn resolve() {
            $(addresses::$name.get_or_init(|| address(concat!(stringify!($name), "\0")));)*
        }

        $(
            /// # Safety
            /// As documented in its manual page. Handles may be invalid.
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $returned)? {
                type Function = unsafe extern "C" fn($($type),*) $(-> $returned)?;
                let found = || address(concat!(stringify!($name), "\0"));
                let address = *addresses::$name.get_or_init(found);
                let address = std::ptr::with_exposed_provenance::<c_void>(address);
                // SAFETY: verbs.h declares the function with this type.
                let function = unsafe { std::mem::transmute::<*const c_void, Function>(address) };
                // SAFETY: the caller keeps the contract of that function.
                unsafe { function($($argument),*) }
            }
        )*
    };
}

/// Returns the address of a function whose name ends with a zero byte.
fn address(name: &str) -> usize {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap();
    function(name).expose_provenance()
}

verbs! {
    ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device;
    ibv_free_device_list(list: *mut *mut ibv_device);
    ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    ibv_get_device_guid(device: *mut ibv_device) -> __be64;
    ibv_get_device_index(device: *mut ibv_device) -> c_int;
    ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    ibv_close_device(context: *mut ibv_context) -> c_int;
    ibv_query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int;
    ibv_query_port(context: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int;
    ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    _ibv_query_gid_ex(context: *mut ibv_context, port: u32, index: u32, entry: *mut ibv_gid_entry, flags: u32, size: usize) -> c_int;
    _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, room: usize, flags: u32, size: usize) -> isize;
    ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut __be16) -> c_int;
    ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: __be16) -> c_int;
    ibv_query_qp_data_in_order(qp: *mut ibv_qp, opcode: ibv_wr_opcode, flags: u32) -> c_int;
    ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
    ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr;
    ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int) -> c_int;
    ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    ibv_create_cq(context: *mut ibv_context, entries: c_int, own: *mut c_void, channel: *mut ibv_comp_channel, vector: c_int) -> *mut ibv_cq;
    ibv_resize_cq(cq: *mut ibv_cq, entries: c_int) -> c_int;
    ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
    ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, own: *mut *mut c_void) -> c_int;
    ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint);
    ibv_create_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int;
    ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int, made: *mut ibv_qp_init_attr) -> c_int;
    ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
    ibv_create_srq(pd: *mut ibv_pd, init: *mut SrqInit) -> *mut ibv_srq;
    ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int;
    ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
    ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
    ibv_import_pd(context: *mut ibv_context, handle: u32) -> *mut ibv_pd;
    ibv_unimport_pd(pd: *mut ibv_pd);
    ibv_import_mr(pd: *mut ibv_pd, handle: u32) -> *mut ibv_mr;
    ibv_unimport_mr(mr: *mut ibv_mr);
    ibv_import_dm(context: *mut ibv_context, handle: u32) -> *mut ibv_dm;
    ibv_unimport_dm(dm: *mut ibv_dm);
    ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
    ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
    ibv_init_ah_from_wc(context: *mut ibv_context, port: u8, wc: *mut ibv_wc, grh: *mut c_void, attr: *mut ibv_ah_attr) -> c_int;
    ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut c_void, port: u8) -> *mut ibv_ah;
    ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
    ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    ibv_ack_async_event(event: *mut ibv_async_event);
    ibv_event_type_str(event: ibv_event_type) -> *const c_char;
    ibv_node_type_str(kind: ibv_node_type) -> *const c_char;
    ibv_port_state_str(state: ibv_port_state) -> *const c_char;
    ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
    ibv_fork_init() -> c_int;
    ibv_is_fork_initialized() -> ibv_fork_status;
    ibv_rate_to_mult(rate: c_int) -> c_int;
    mult_to_ibv_rate(mult: c_int) -> c_int;
    ibv_rate_to_mbps(rate: c_int) -> c_int;
    mbps_to_ibv_rate(mbps: c_int) -> c_int;
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
pub(crate) struct SrqInit {
    pub(crate) context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

/// Returns errno, which must be read right after the call that set it.
pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Does what the inline function of verbs.h does.
///
/// # Safety
/// `qp` exists, and `wr` is a list of requests.
pub(crate) unsafe fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: an existing queue pair has a context with all operations.
    unsafe { (*(*qp).context).ops.post_send.unwrap()(qp, wr, bad) }
}

/// Like [`post_send`].
///
/// # Safety
/// Same as [`post_send`].
pub(crate) unsafe fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: an existing queue pair has a context with all operations.
    unsafe { (*(*qp).context).ops.post_recv.unwrap()(qp, wr, bad) }
}

/// Like [`post_send`].
///
/// # Safety
/// Same as [`post_send`], for a queue of this context.
pub(crate) unsafe fn post_srq_recv(
    context: *mut ibv_context,
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: an open context has all operations.
    unsafe { (*context).ops.post_srq_recv.unwrap()(srq, wr, bad) }
}

/// Does what the inline function of verbs.h does.
///
/// # Safety
/// `cq` exists, and there is room for `room` completions.
pub(crate) unsafe fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: an existing queue has a context with all operations.
    unsafe { (*(*cq).context).ops.poll_cq.unwrap()(cq, room, wc) }
}

/// Does what the inline function of verbs.h does.
///
/// # Safety
/// `cq` exists.
pub(crate) unsafe fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: an existing queue has a context with all operations.
    unsafe { (*(*cq).context).ops.req_notify_cq.unwrap()(cq, solicited_only) }
}

/// A pointer that threads share.
#[derive(Debug)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: a handle, which any thread may pass to the library.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for Shared<T> {}

/// Makes a descriptor non-blocking.
pub(crate) fn nonblocking(fd: c_int) {
    // SAFETY: an open descriptor.
    let set = unsafe {
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK)
    };
    assert_eq!(set, 0);
}

/// Takes the pending asynchronous events of a context; returns them with the address of their object.
pub(crate) fn events(context: *mut ibv_context) -> Vec<(ibv_event_type, usize)> {
    // SAFETY: the context is open, and each event is acknowledged once.
    unsafe {
        nonblocking((*context).async_fd);
        let mut taken = Vec::new();
        let mut event = ibv_async_event::default();
        while ibv_get_async_event(context, &mut event) == 0 {
            taken.push((event.event_type, event.element.qp.addr()));
            ibv_ack_async_event(&mut event);
        }
        assert_eq!(errno(), libc::EAGAIN);
        taken
    }
}
