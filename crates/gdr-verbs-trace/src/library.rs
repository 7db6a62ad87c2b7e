//! The functions of libibverbs and libmlx5 that are counted, and where they are behind this library.
//!
//! Number 0 of the libraries is what the loader finds behind this one for linked programs. The others
//! are libraries that the program loaded by name and looked functions up in. Each function of this
//! crate exists once for each number, so it knows which library to call.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use gdr_verbs_sys::{
    Errno, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_qp,
    ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_attr,
};

use crate::nesting::set_errno;
use crate::next_symbol;

/// How many libraries are distinguished. Functions of others are not replaced.
pub(crate) const LIBRARIES: usize = 4;

/// `struct ibv_srq_init_attr` of libibverbs' header. `struct ibv_srq_init_attr_ex` begins with the same
/// fields.
#[repr(C)]
#[allow(non_camel_case_types, reason = "the name in C")]
pub(crate) struct ibv_srq_init_attr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: ibv_srq_attr,
}

/// Passes the functions to a macro: the name and version in C, and the function of this crate that
/// takes its place.
macro_rules! with_functions {
    ($declare:ident) => {
        $declare! {
            ibv_open_device c"IBVERBS_1.1" = open_device(device: *mut ibv_device) -> *mut ibv_context;
            ibv_import_device c"IBVERBS_1.10" = import_device(fd: c_int) -> *mut ibv_context;
            ibv_close_device c"IBVERBS_1.1" = close_device(context: *mut ibv_context) -> c_int;
            ibv_reg_mr c"IBVERBS_1.1" = reg_mr(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, access: c_int
            ) -> *mut ibv_mr;
            ibv_reg_mr_iova c"IBVERBS_1.7" = reg_mr_iova(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, iova: u64, access: c_int
            ) -> *mut ibv_mr;
            ibv_reg_mr_iova2 c"IBVERBS_1.8" = reg_mr_iova2(
                pd: *mut ibv_pd, address: *mut c_void, len: usize, iova: u64, access: c_uint
            ) -> *mut ibv_mr;
            ibv_reg_dmabuf_mr c"IBVERBS_1.12" = reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int
            ) -> *mut ibv_mr;
            ibv_reg_mr_ex c"IBVERBS_1.15" = reg_mr_ex(
                pd: *mut ibv_pd, attr: *mut ibv_mr_init_attr
            ) -> *mut ibv_mr;
            ibv_rereg_mr c"IBVERBS_1.1" = rereg_mr(
                mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, address: *mut c_void, len: usize,
                access: c_int
            ) -> c_int;
            ibv_dereg_mr c"IBVERBS_1.1" = dereg_mr(mr: *mut ibv_mr) -> c_int;
            ibv_create_qp c"IBVERBS_1.1" = create_qp(
                pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr
            ) -> *mut ibv_qp;
            ibv_destroy_qp c"IBVERBS_1.1" = destroy_qp(qp: *mut ibv_qp) -> c_int;
            ibv_create_srq c"IBVERBS_1.1" = create_srq(
                pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr
            ) -> *mut ibv_srq;
            ibv_destroy_srq c"IBVERBS_1.1" = destroy_srq(srq: *mut ibv_srq) -> c_int;
            ibv_destroy_cq c"IBVERBS_1.1" = destroy_cq(cq: *mut ibv_cq) -> c_int;
            mlx5dv_open_device c"MLX5_1.7" = mlx5_open_device(
                device: *mut ibv_device, attr: *mut c_void
            ) -> *mut ibv_context;
            mlx5dv_create_qp c"MLX5_1.3" = mlx5_create_qp(
                context: *mut ibv_context, attr: *mut ibv_qp_init_attr_ex, mlx5: *mut c_void
            ) -> *mut ibv_qp;
            mlx5dv_reg_dmabuf_mr c"MLX5_1.25" = mlx5_reg_dmabuf_mr(
                pd: *mut ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int, mlx5: c_int
            ) -> *mut ibv_mr;
            mlx5dv_init_obj c"MLX5_1.2" = mlx5_init_obj(object: *mut c_void, kinds: u64) -> c_int;
            mlx5dv_devx_obj_create c"MLX5_1.7" = mlx5_devx_obj_create(
                context: *mut ibv_context, input: *const c_void, input_len: usize, output: *mut c_void,
                output_len: usize
            ) -> *mut c_void;
        }
    };
}
pub(crate) use with_functions;

/// Declares a function for each that calls it in a library.
macro_rules! declare_real {
    ($(
        $name:ident $version:literal = $own:ident($($argument:ident: $type:ty),*) -> $ret:ty;
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
            /// The function of the library with this number.
            pub(crate) fn $name(
                library: usize
            ) -> Option<unsafe extern "C" fn($($type),*) -> $ret> {
                let address = real(Function::$name, library);
                // SAFETY: a function of this name has this type, or the address is null.
                unsafe { mem::transmute(address) }
            }
        )*
    };
}

with_functions!(declare_real);

/// The addresses of functions by library, as far as they were looked up.
static REAL: [[AtomicPtr<c_void>; COUNT]; LIBRARIES] =
    [const { [const { AtomicPtr::new(ptr::null_mut()) }; COUNT] }; LIBRARIES];

/// The address of a function in a library; null if it has none.
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

/// What a function returns that does not exist behind this library.
pub(crate) trait Missing {
    fn missing() -> Self;
}

impl<T> Missing for *mut T {
    fn missing() -> Self {
        set_errno(Errno::ENOSYS);
        ptr::null_mut()
    }
}

impl Missing for c_int {
    fn missing() -> Self {
        set_errno(Errno::ENOSYS);
        Errno::ENOSYS.0
    }
}
