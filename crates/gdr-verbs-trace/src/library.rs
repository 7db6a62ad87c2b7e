//! The functions of libibverbs and libmlx5 that are counted, and the addresses of the real ones.
//!
//! Library number 0 is what the loader finds after this library for linked programs. The others are libraries that the
//! program loaded by name to look functions up in them. Each function of this crate exists once per number, so that it
//! knows which library to call.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gdr_verbs_sys::{
    Errno, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_mr_init_attr, ibv_pd,
    ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_attr,
};

use crate::nesting::set_errno;
use crate::next_symbol;

/// Number of libraries that are distinguished. Functions of further ones are not replaced.
pub(crate) const LIBRARIES: usize = 4;

/// `struct ibv_srq_init_attr` of libibverbs' header. `struct ibv_srq_init_attr_ex` begins with the same
/// fields.
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

/// Passes the functions to a macro: name and version in C, and the function of this crate that replaces it.
macro_rules! with_functions {
    ($declare:ident) => {
        $declare! {
            ibv_open_device c"IBVERBS_1.1" = open_device(device: *mut ibv_device) -> *mut ibv_context => null;
            ibv_import_device c"IBVERBS_1.10" = import_device(fd: c_int) -> *mut ibv_context => null;
            ibv_close_device c"IBVERBS_1.1" = close_device(context: *mut ibv_context) -> c_int => minus_one;
            ibv_reg_mr c"IBVERBS_1.1" = reg_mr(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int
            ) -> *mut ibv_mr => null;
            ibv_reg_mr_iova c"IBVERBS_1.7" = reg_mr_iova(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, iova: u64, access: c_int
            ) -> *mut ibv_mr => null;
            ibv_reg_mr_iova2 c"IBVERBS_1.8" = reg_mr_iova2(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, iova: u64, access: c_uint
            ) -> *mut ibv_mr => null;
            ibv_reg_dmabuf_mr c"IBVERBS_1.12" = reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int
            ) -> *mut ibv_mr => null;
            ibv_reg_mr_ex c"IBVERBS_1.15" = reg_mr_ex(
                pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr
            ) -> *mut ibv_mr => null;
            ibv_rereg_mr c"IBVERBS_1.1" = rereg_mr(
                mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, address: *mut c_void, len: usize,
                access: c_int
            ) -> c_int => rereg_mr;
            ibv_dereg_mr c"IBVERBS_1.1" = dereg_mr(mr: *mut ibv_mr) -> c_int => error_number;
            ibv_create_qp c"IBVERBS_1.1" = create_qp(
                pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr
            ) -> *mut ibv_qp => null;
            ibv_destroy_qp c"IBVERBS_1.1" = destroy_qp(qp: *mut ibv_qp) -> c_int => error_number;
            ibv_modify_qp c"IBVERBS_1.1" = modify_qp(
                qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int
            ) -> c_int => error_number;
            ibv_create_cq c"IBVERBS_1.1" = create_cq(
                context: *mut ibv_context, size: c_int, user: *mut c_void, channel: *mut ibv_comp_channel,
                vector: c_int
            ) -> *mut ibv_cq => null;
            ibv_resize_cq c"IBVERBS_1.1" = resize_cq(cq: *mut ibv_cq, size: c_int) -> c_int => error_number;
            ibv_destroy_cq c"IBVERBS_1.1" = destroy_cq(cq: *mut ibv_cq) -> c_int => error_number;
            ibv_get_cq_event c"IBVERBS_1.1" = get_cq_event(
                channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, user: *mut *mut c_void
            ) -> c_int => minus_one;
            ibv_ack_cq_events c"IBVERBS_1.1" = ack_cq_events(cq: *mut ibv_cq, count: c_uint) -> () => nothing;
            ibv_create_srq c"IBVERBS_1.1" = create_srq(
                pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr
            ) -> *mut ibv_srq => null;
            ibv_modify_srq c"IBVERBS_1.1" = modify_srq(
                srq: *mut ibv_srq, attr: *mut ibv_srq_attr, mask: c_int
            ) -> c_int => error_number;
            ibv_destroy_srq c"IBVERBS_1.1" = destroy_srq(srq: *mut ibv_srq) -> c_int => error_number;
            mlx5dv_open_device c"MLX5_1.7" = mlx5_open_device(
                device: *mut ibv_device, attr: *mut c_void
            ) -> *mut ibv_context => null;
            mlx5dv_create_qp c"MLX5_1.3" = mlx5_create_qp(
                context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex, mlx5: *mut c_void
            ) -> *mut ibv_qp => null;
            mlx5dv_reg_dmabuf_mr c"MLX5_1.25" = mlx5_reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int, mlx5: c_int
            ) -> *mut ibv_mr => null;
            mlx5dv_init_obj c"MLX5_1.2" = mlx5_init_obj(object: *mut c_void, kinds: u64) -> c_int => error_number;
            mlx5dv_devx_obj_create c"MLX5_1.7" = mlx5_devx_obj_create(
                context: *mut ibv_context, input: *const c_void, input_len: usize, output: *mut c_void,
                output_len: usize
            ) -> *mut c_void => null;
        }
    };
}
pub(crate) use with_functions;

/// Declares, for each function, one that calls it in a library.
macro_rules! declare_real {
    ($(
        $name:ident $version:literal = $own:ident($($argument:ident: $type:ty),*) -> $ret:ty => $fails:ident;
    )*) => {
        #[allow(non_camel_case_types, reason = "the names in C")]
        #[derive(Clone, Copy)]
        pub(crate) enum Function { $($name),* }

        pub(crate) const FUNCTIONS: [Function; COUNT] = [$(Function::$name),*];
        pub(crate) const COUNT: usize = [$(stringify!($name)),*].len();

        impl Function {
            pub(crate) const fn name(self) -> &'static CStr {
                let text = match self {
                    $(Self::$name => concat!(stringify!($name), "\0")),*
                };
                match CStr::from_bytes_with_nul(text.as_bytes()) {
                    Ok(name) => name,
                    Err(_) => c"",
                }
            }

            const fn version(self) -> &'static CStr {
                match self {
                    $(Self::$name => $version),*
                }
            }
        }

        $(
            /// Returns the function of the library with this number, or one that fails if the library lacks it.
            pub(crate) fn $name(library: usize) -> unsafe extern "C" fn($($type),*) -> $ret {
                extern "C" fn missing($(_: $type),*) -> $ret {
                    missing::$fails()
                }
                let address = real(Function::$name, library);
                let found: Option<unsafe extern "C" fn($($type),*) -> $ret> =
                    // SAFETY: a function with this name has this type, or the address is null.
                    unsafe { mem::transmute(address) };
                found.unwrap_or(missing)
            }
        )*
    };
}

with_functions!(declare_real);

/// Addresses of functions by library, as far as they have been looked up.
static REAL: [[AtomicPtr<c_void>; COUNT]; LIBRARIES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; COUNT] }; LIBRARIES];

/// Returns the address of a function in a library; null if it has none.
pub(crate) fn real(function: Function, library: usize) -> *mut c_void {
    let place = &REAL[library][function as usize];
    let known = place.load(Ordering::Acquire);
    if !known.is_null() || library != 0 {
        return known;
    }
    let found = next_symbol::behind_this_library(function.name(), function.version());
    place.store(found, Ordering::Release);
    found
}

/// Sets the address of a function in a library.
pub(crate) fn set_real(function: Function, library: usize, address: *mut c_void) {
    REAL[library][function as usize].store(address, Ordering::Release);
}

/// Looks up all functions that linked programs call when a program begins to use them, so that later calls do not
/// involve the loader.
pub(crate) fn look_up_all() {
    for function in FUNCTIONS {
        real(function, 0);
    }
}

/// Replacements for functions that the real library lacks. Each fails by the convention of its function.
pub(crate) mod missing {
    use super::{Errno, c_int, ptr, set_errno};

    /// The error of a missing function.
    const ERROR: Errno = Errno::EOPNOTSUPP;

    /// Null, and errno.
    pub(crate) fn null<T>() -> *mut T {
        set_errno(ERROR);
        ptr::null_mut()
    }

    /// Nothing.
    pub(crate) fn nothing() {}

    /// Sets errno, and returns the error number.
    pub(crate) fn error_number() -> c_int {
        set_errno(ERROR);
        ERROR.0
    }

    /// Returns a negative error number, where a positive one would be a count.
    pub(crate) fn negative() -> c_int {
        -ERROR.0
    }

    /// -1, and errno.
    pub(crate) fn minus_one() -> c_int {
        set_errno(ERROR);
        -1
    }

    /// Sets errno, and returns what `ibv_rereg_mr` returns if the device refuses.
    pub(crate) fn rereg_mr() -> c_int {
        /// `IBV_REREG_MR_ERR_CMD` of the header: the region is unchanged.
        const REFUSED_BY_DEVICE: c_int = -4;
        set_errno(ERROR);
        REFUSED_BY_DEVICE
    }
}
