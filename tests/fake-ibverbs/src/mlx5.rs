//! The functions of libmlx5.

use gdr_verbs_sys::{ibv_context, ibv_device, ibv_qp, ibv_qp_init_attr_ex};

use crate::pair::create_extended;
use crate::verb::{plain, pointer};

/// `struct mlx5dv_qp_init_attr`, as far as it is used.
#[repr(C)]
struct Mlx5Attr {
    comp_mask: u64,
    create_flags: u32,
}

/// Returns whether a device is a device of mlx5, as every one with "scatter to CQE" is.
#[unsafe(no_mangle)]
extern "C" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool {
    plain(false, |library| {
        let mut devices = library.devices.iter();
        devices.any(|it| it.is(device) && it.spec.scatter_to_cqe)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn mlx5dv_create_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5: *mut Mlx5Attr,
) -> *mut ibv_qp {
    // SAFETY: the contract of this function.
    let flags = unsafe { &*mlx5 };
    // MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS, MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE.
    let without = flags.comp_mask & 1 != 0 && flags.create_flags & (1 << 3) != 0;
    // SAFETY: the contract of this function.
    pointer(|| unsafe { create_extended("mlx5dv_create_qp", context, attr, !without) })
}
