//! Results of functions that the real library lacks: this program is not linked with one.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdr_verbs_sys::{
    Errno, ibv_context, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_srq, ibv_srq_attr,
};

unsafe extern "C" {
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_reg_mr(pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int) -> *mut ibv_mr;
    fn ibv_rereg_mr(
        mr: *mut ibv_mr,
        flags: c_int,
        pd: *mut ibv_pd,
        address: *mut c_void,
        len: usize,
        access: c_int,
    ) -> c_int;
    fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
    fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
    fn ibv_modify_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
}

/// Returns the result of a call, and the errno after it.
fn with_errno<T>(call: impl FnOnce() -> T) -> (T, Option<i32>) {
    // SAFETY: the errno of this thread.
    unsafe { *libc::__errno_location() = 0 };
    let result = call();
    (result, std::io::Error::last_os_error().raw_os_error())
}

const ERROR: i32 = Errno::EOPNOTSUPP.0;

#[test]
fn a_missing_function_that_returns_a_pointer_returns_null_and_sets_errno() {
    // SAFETY: there is no library that could use the arguments.
    unsafe {
        let opened = with_errno(|| ibv_open_device(ptr::null_mut()));
        assert_eq!(opened, (ptr::null_mut(), Some(ERROR)));
        let registered = with_errno(|| ibv_reg_mr(ptr::null_mut(), ptr::null_mut(), 1, 0));
        assert_eq!(registered, (ptr::null_mut(), Some(ERROR)));
    }
}

#[test]
fn a_missing_function_that_returns_an_error_number_returns_it() {
    // SAFETY: as above.
    unsafe {
        assert_eq!(ibv_dereg_mr(ptr::null_mut()), ERROR);
        assert_eq!(ibv_destroy_qp(ptr::null_mut()), ERROR);
        assert_eq!(ibv_modify_srq(ptr::null_mut(), ptr::null_mut(), 0), ERROR);
        assert_eq!(ibv_destroy_srq(ptr::null_mut()), ERROR);
    }
}

#[test]
fn a_missing_function_that_returns_minus_one_or_a_number_of_its_own_returns_that() {
    // SAFETY: as above.
    unsafe {
        let closed = with_errno(|| ibv_close_device(ptr::null_mut()));
        assert_eq!(closed, (-1, Some(ERROR)));
        let null = ptr::null_mut();
        let again = with_errno(|| ibv_rereg_mr(null, 1, ptr::null_mut(), ptr::null_mut(), 1, 0));
        // IBV_REREG_MR_ERR_CMD of the header.
        assert_eq!(again, (-4, Some(ERROR)));
    }
}
