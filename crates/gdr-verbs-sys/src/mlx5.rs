//! The extension of libmlx5, for adapters of NVIDIA (Mellanox), that disables "scatter to CQE".
//!
//! With "scatter to CQE" the device writes payloads of up to 64 bytes to the completion, for receives
//! and for responses to READs and atomics, and libmlx5 copies them to their destination by CPU. For
//! GPU memory that is a store to an address that the CPU cannot access.

use std::ffi::CString;
use std::mem;
use std::ptr::NonNull;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::*;
use crate::error::VerbError;
use crate::library::{LIBRARY, Verbs};
use crate::ret::pointer;

/// The name of the library. If libibverbs was loaded from a path, libmlx5 is loaded from the same
/// folder.
const LIBMLX5: &str = "libmlx5.so.1";

/// `MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS` (infiniband/mlx5dv.h).
const WITH_CREATE_FLAGS: u64 = 1;
/// `MLX5DV_QP_CREATE_DISABLE_SCATTER_TO_CQE` (infiniband/mlx5dv.h).
const DISABLE_SCATTER_TO_CQE: u32 = 1 << 3;

/// `struct mlx5dv_dc_init_attr` (infiniband/mlx5dv.h).
#[repr(C)]
#[derive(Debug, Default)]
struct Dc {
    dc_type: u32,
    dct_access_key: u64,
}

/// `struct mlx5dv_qp_init_attr` (infiniband/mlx5dv.h) of every release since rdma-core 30. In earlier
/// ones it ends before `send_ops_flags`.
#[repr(C)]
#[derive(Debug, Default)]
struct InitAttr {
    comp_mask: u64,
    create_flags: u32,
    /// `struct mlx5dv_dc_init_attr`.
    dc: Dc,
    send_ops_flags: u64,
}

type IsSupported = unsafe extern "C" fn(device: *mut ibv_device) -> bool;
type CreateQp = unsafe extern "C" fn(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
    mlx5: *mut InitAttr,
) -> *mut ibv_qp;

/// The functions of libmlx5, which are valid for the life of the process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mlx5 {
    is_supported: IsSupported,
    create_qp: CreateQp,
}

impl Mlx5 {
    /// Returns the functions of the library, if it has them.
    ///
    /// # Safety
    ///
    /// The library is libmlx5 or behaves like it, and is never unloaded.
    unsafe fn of(library: &Library) -> Option<Self> {
        let find = |name: &str| {
            let name = CString::new(name).ok()?;
            // SAFETY: the symbol is only used as an address here.
            let symbol = unsafe { library.get::<*mut std::ffi::c_void>(name.as_c_str()) }.ok()?;
            NonNull::new(symbol.as_raw_ptr())
        };
        let (is_supported, create_qp) = (find("mlx5dv_is_supported")?, find("mlx5dv_create_qp")?);
        // SAFETY: by contract the addresses name functions with these types.
        Some(unsafe {
            Self {
                is_supported: mem::transmute::<*mut std::ffi::c_void, IsSupported>(
                    is_supported.as_ptr(),
                ),
                create_qp: mem::transmute::<*mut std::ffi::c_void, CreateQp>(create_qp.as_ptr()),
            }
        })
    }

    /// Loads the functions of the libmlx5 that belongs to this libibverbs.
    fn load(verbs: &Verbs) -> Option<Self> {
        let libibverbs = verbs.file();
        let beside = match libibverbs.as_os_str() == LIBRARY {
            true => LIBMLX5.into(),
            false => libibverbs.with_file_name(LIBMLX5),
        };
        for file in [libibverbs, &beside] {
            // SAFETY: the first is loaded already. The second is libmlx5, which libibverbs loads in
            // the same way.
            let library = unsafe { Library::open(Some(file), RTLD_NOW | RTLD_LOCAL) };
            let Ok(library) = library else {
                continue;
            };
            // SAFETY: functions with these names belong to libmlx5; the library is not unloaded
            // (below).
            let found = unsafe { Self::of(&library) };
            mem::forget(library);
            if found.is_some() {
                return found;
            }
        }
        None
    }
}

impl Verbs {
    /// Creates a queue pair as [`Verbs::ibv_create_qp_ex`] does, without "scatter to CQE". Returns
    /// `None`, without creating a queue pair, if libmlx5 is not found or does not support the device.
    ///
    /// # Errors
    ///
    /// Like [`Verbs::ibv_create_qp_ex`].
    ///
    /// # Safety
    ///
    /// Like [`Verbs::ibv_create_qp_ex`].
    pub unsafe fn mlx5_create_qp_without_scatter(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Option<Result<NonNull<ibv_qp>, VerbError>> {
        let mlx5 = (*self.mlx5().get_or_init(|| Mlx5::load(self)))?;
        // SAFETY: the context is open, so its device is valid.
        if !unsafe { (mlx5.is_supported)((*context).device) } {
            return None;
        }
        let mut flags = InitAttr {
            comp_mask: WITH_CREATE_FLAGS,
            create_flags: DISABLE_SCATTER_TO_CQE,
            ..InitAttr::default()
        };
        // SAFETY: the attributes are valid by contract, and libmlx5 reads only the further ones that the mask selects.
        let made = unsafe { (mlx5.create_qp)(context, attr, &mut flags) };
        Some(pointer("mlx5dv_create_qp", made))
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn the_attributes_are_laid_out_as_in_the_header() {
        assert_eq!(size_of::<InitAttr>(), 40);
        assert_eq!(offset_of!(InitAttr, create_flags), 8);
        assert_eq!(offset_of!(InitAttr, dc), 16);
        assert_eq!(offset_of!(Dc, dct_access_key), 8);
        assert_eq!(offset_of!(InitAttr, send_ops_flags), 32);
    }
}
