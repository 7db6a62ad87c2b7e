//! Structures of verbs that gdr's devices support, which the generated declarations only point to.

use std::ffi::{c_int, c_uint, c_void};

use crate::bindings::{ibv_context, ibv_mw_bind_info, ibv_pd};

/// Declares structures with their size in C, by gcc on x86-64.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident[$size:literal] { $($field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            $(pub $field: $type,)*
        }

        #[cfg(target_pointer_width = "64")]
        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

structures! {
    ibv_alloc_dm_attr[16] {
        length: usize,
        log_align_req: u32,
        comp_mask: u32,
    }
    ibv_dm[32] {
        context: *mut ibv_context,
        memcpy_to_dm: Option<unsafe extern "C" fn(*mut ibv_dm, u64, *const c_void, usize) -> c_int>,
        memcpy_from_dm: Option<unsafe extern "C" fn(*mut c_void, *mut ibv_dm, u64, usize) -> c_int>,
        comp_mask: u32,
        handle: u32,
    }
    /// `alloc` and `free` are functions of the program that manage memory for the provider.
    ibv_parent_domain_init_attr[48] {
        pd: *mut ibv_pd,
        td: *mut ibv_td,
        comp_mask: u32,
        alloc: *mut c_void,
        free: *mut c_void,
        pd_context: *mut c_void,
    }
    ibv_td[8] {
        context: *mut ibv_context,
    }
    ibv_td_init_attr[4] {
        comp_mask: u32,
    }
    ibv_mw_bind[48] {
        wr_id: u64,
        send_flags: c_uint,
        bind_info: ibv_mw_bind_info,
    }
}
