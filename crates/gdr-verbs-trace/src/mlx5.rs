//! Functions of libmlx5 that open devices, register memory and create objects besides libibverbs, and functions with
//! which a program posts by itself.

use std::ffi::{c_int, c_uint, c_void};

use gdr_trace::layout::flag;
use gdr_verbs_sys::{ibv_context, ibv_device, ibv_qp, ibv_qp_init_attr_ex};

use crate::library;
use crate::nesting::{keep_errno, quietly};
use crate::region::{Wanted, registering};
use crate::{open_context, queue_pair, recorder};

/// # Safety
/// As for `mlx5dv_open_device`.
pub(crate) unsafe extern "C" fn open_device<const L: usize>(
    device: *mut ibv_device,
    attr: *mut c_void,
) -> *mut ibv_context {
    // SAFETY: the caller's arguments.
    open_context::open(|| unsafe { library::mlx5dv_open_device(L)(device, attr) })
}

/// # Safety
/// As for `mlx5dv_create_qp`.
pub(crate) unsafe extern "C" fn create_qp<const L: usize>(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5: *mut c_void,
) -> *mut ibv_qp {
    // SAFETY: the caller's arguments.
    let call = || unsafe { library::mlx5dv_create_qp(L)(context, attr, mlx5) };
    // SAFETY: `call` creates the queue pair that the caller's attributes describe.
    unsafe { queue_pair::create_extended(attr, call) }
}

registering! {
    /// Registers memory by a descriptor.
    reg_dmabuf_mr = mlx5dv_reg_dmabuf_mr(
        pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int, mlx5: c_int
    ) of Wanted::by_dma_buf(fd, iova, len, access as c_uint);
}

/// # Safety
/// As for `mlx5dv_init_obj`.
pub(crate) unsafe extern "C" fn init_obj<const L: usize>(object: *mut c_void, kinds: u64) -> c_int {
    /// `MLX5DV_OBJ_QP`, `MLX5DV_OBJ_SRQ` and `MLX5DV_OBJ_RWQ` of infiniband/mlx5dv.h.
    const QUEUES: u64 = 1 | 1 << 2 | 1 << 3;
    if kinds & QUEUES != 0 {
        note(flag::MLX5_INIT_OBJ);
    }
    // SAFETY: the caller's arguments.
    unsafe { library::mlx5dv_init_obj(L)(object, kinds) }
}

/// # Safety
/// As for `mlx5dv_devx_obj_create`.
pub(crate) unsafe extern "C" fn devx_obj_create<const L: usize>(
    context: *mut ibv_context,
    input: *const c_void,
    input_len: usize,
    output: *mut c_void,
    output_len: usize,
) -> *mut c_void {
    note(flag::MLX5_DEVX);
    // SAFETY: the caller's arguments.
    unsafe { library::mlx5dv_devx_obj_create(L)(context, input, input_len, output, output_len) }
}

/// Records that requests may be posted without this library.
fn note(flags: u64) {
    quietly(|| {
        keep_errno(|| {
            if let Some(recorder) = recorder::current() {
                recorder.set_flags(flags);
            }
        });
    });
}
