//! Replacements for functions of libibverbs and libmlx5: by name for linked programs, and in the results of `dlsym`.

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};

use gdr_verbs_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_mr_init_attr, ibv_pd, ibv_qp,
    ibv_qp_attr, ibv_qp_init_attr, ibv_qp_init_attr_ex, ibv_srq, ibv_srq_attr,
};

use crate::completion_queue::{ack_cq_events, create_cq, destroy_cq, get_cq_event, resize_cq};
use crate::library::{
    COUNT, FUNCTIONS, Function, LIBRARIES, ibv_srq_init_attr, real, set_real, with_functions,
};
use crate::mlx5::{
    create_qp as mlx5_create_qp, devx_obj_create as mlx5_devx_obj_create,
    init_obj as mlx5_init_obj, open_device as mlx5_open_device,
    reg_dmabuf_mr as mlx5_reg_dmabuf_mr,
};
use crate::open_context::{close_device, import_device, open_device};
use crate::queue_pair::{create_qp, destroy_qp, modify_qp};
use crate::region::{
    dereg_mr, reg_dmabuf_mr, reg_mr, reg_mr_ex, reg_mr_iova, reg_mr_iova2, rereg_mr,
};
use crate::shared_receive_queue::{create_srq, destroy_srq, modify_srq};

/// Address of a function of this crate.
#[derive(Clone, Copy)]
struct Code(*const c_void);

// SAFETY: a code address is valid in all threads.
unsafe impl Sync for Code {}

/// Exports the functions.
macro_rules! export {
    ($(
        $name:ident $version:literal = $own:ident($($argument:ident: $type:ty),*) -> $ret:ty => $fails:ident;
    )*) => {
        /// Returns the replacement for a function of the library with this number.
        fn of_library(function: Function, library: usize) -> *const c_void {
            const fn of<const L: usize>() -> [Code; COUNT] {
                [$({
                    let function: unsafe extern "C" fn($($type),*) -> $ret = $own::<L>;
                    Code(function as *const c_void)
                }),*]
            }
            static ALL: [[Code; COUNT]; LIBRARIES] = [of::<0>(), of::<1>(), of::<2>(), of::<3>()];
            ALL[library][function as usize].0
        }

        /// What linked programs call.
        mod linked {
            use super::*;

            $(
                /// # Safety
                /// As for the real library's function of this name.
                #[unsafe(no_mangle)]
                unsafe extern "C" fn $name($($argument: $type),*) -> $ret {
                    // SAFETY: the contract of this function.
                    unsafe { $own::<0>($($argument),*) }
                }
            )*
        }
    };
}

with_functions!(export);

/// Base addresses of the libraries from number 1 on; 0 if not known yet.
static BASES: [AtomicUsize; LIBRARIES] = [const { AtomicUsize::new(0) }; LIBRARIES];

/// Returns the replacement for a function that a program has looked up; `None` for functions that are not counted.
pub(crate) fn replacement(name: &CStr, found: *mut c_void) -> Option<*const c_void> {
    let function = FUNCTIONS.into_iter().find(|it| it.name() == name)?;
    let base = base_of(found)?;
    let own = of_library(function, 0);
    if base_of(own)? == base {
        return None;
    }
    if base_of(real(function, 0)) == Some(base) {
        return Some(own);
    }
    // Without a lock, which could be held forever in a forked child.
    let library = (1..LIBRARIES).find(|at| {
        let known = BASES[*at].compare_exchange(0, base, Ordering::AcqRel, Ordering::Acquire);
        known.is_ok() || known == Err(base)
    })?;
    set_real(function, library, found);
    Some(of_library(function, library))
}

/// Returns where the object that has an address is in memory.
fn base_of(address: *const c_void) -> Option<usize> {
    if address.is_null() {
        return None;
    }
    // SAFETY: zero is a valid value of every field.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: the structure is writable; any address may be looked up.
    let found = unsafe { libc::dladdr(address, &mut info) };
    (found != 0).then(|| info.dli_fbase.addr())
}
