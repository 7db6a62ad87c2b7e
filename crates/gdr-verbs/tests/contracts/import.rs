//! ibv_import_device(3), ibv_import_pd(3), ibv_import_mr(3), ibv_import_dm(3), and the reverse functions.

use std::ffi::c_int;
use std::ptr;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, errno};

/// Returns a duplicate of a context's command descriptor.
fn copy(context: *mut ibv_context) -> c_int {
    // SAFETY: the context is open; `dup` takes a number.
    let copy = unsafe { libc::dup((*context).cmd_fd) };
    assert!(copy >= 0);
    copy
}

#[test]
fn objects_get_further_handles_by_a_copy_of_the_command_descriptor() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = vec![0_u64; 2];
    let region = side.register(&mut words).as_ptr();
    // SAFETY: the objects are alive until they are destroyed; other handles are checked.
    unsafe {
        let context = verbs::ibv_import_device(copy(side.context));
        assert!(!context.is_null() && context != side.context);
        assert_eq!((*context).device, (*side.context).device);
        let original = verbs::ibv_alloc_pd(side.context);
        let unused = verbs::ibv_import_pd(context, (*original).handle);
        assert_eq!(verbs::ibv_dealloc_pd(original), libc::EBUSY);
        verbs::ibv_unimport_pd(unused);
        assert_eq!(verbs::ibv_dealloc_pd(original), 0);
        assert!(verbs::ibv_import_pd(context, (*original).handle).is_null());
        assert_eq!(errno(), libc::ENOENT);

        let domain = verbs::ibv_import_pd(context, (*side.domain).handle);
        assert_eq!((*domain).context, context);
        let imported = verbs::ibv_import_mr(domain, (*region).handle);
        assert_eq!((*imported).pd, domain);
        assert_eq!(
            ((*imported).lkey, (*imported).rkey),
            ((*region).lkey, (*region).rkey)
        );
        assert_eq!((*imported).addr, ptr::null_mut());
        let other = verbs::ibv_alloc_pd(context);
        assert!(verbs::ibv_import_mr(other, (*region).handle).is_null());
        assert_eq!(errno(), libc::ENOENT);
        assert_eq!(verbs::ibv_dealloc_pd(other), 0);
        verbs::ibv_unimport_mr(imported);
        assert!(verbs::ibv_import_mr(domain, (*region).handle + 1000).is_null());
        assert_eq!(errno(), libc::ENOENT);
        verbs::ibv_unimport_pd(domain);
        assert_eq!(verbs::ibv_close_device(context), 0);
        assert_eq!(verbs::ibv_dereg_mr(region), 0);
    }
    side.close();
}

#[test]
fn imported_device_memory_has_the_same_bytes_until_its_last_handle_is_gone() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut attr = ibv_alloc_dm_attr {
        length: 64,
        log_align_req: 0,
        comp_mask: 0,
    };
    // SAFETY: contexts of this library are part of a `verbs_context`; the objects are alive.
    unsafe {
        let offset = std::mem::offset_of!(verbs_context, context);
        let operations = &*side.context.byte_sub(offset).cast::<verbs_context>();
        let memory = operations.alloc_dm.unwrap()(side.context, &mut attr);
        let context = verbs::ibv_import_device(copy(side.context));
        let imported = verbs::ibv_import_dm(context, (*memory).handle);
        assert!(!imported.is_null());
        let (mut sent, mut seen) = (0x0102_0304_0506_0708_u64, 0_u64);
        let store = (*memory).memcpy_to_dm.unwrap();
        assert_eq!(store(memory, 8, (&raw mut sent).cast(), 8), 0);
        assert_eq!(operations.free_dm.unwrap()(memory), 0);
        let load = (*imported).memcpy_from_dm.unwrap();
        assert_eq!(load((&raw mut seen).cast(), imported, 8, 8), 0);
        assert_eq!(seen, sent);
        verbs::ibv_unimport_dm(imported);
        assert_eq!(load((&raw mut seen).cast(), imported, 8, 8), libc::EINVAL);
        assert_eq!(verbs::ibv_close_device(context), 0);
    }
    side.close();
}

#[test]
fn a_descriptor_of_a_context_itself_or_of_no_device_is_refused() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: the context is open; the library checks descriptors.
    unsafe {
        assert!(verbs::ibv_import_device((*side.context).cmd_fd).is_null());
        assert_eq!(errno(), libc::EINVAL);
        let event = libc::eventfd(0, libc::EFD_CLOEXEC);
        assert!(verbs::ibv_import_device(event).is_null());
        assert_eq!(errno(), libc::EOPNOTSUPP);
        assert_eq!(libc::close(event), 0);
    }
    side.close();
}
