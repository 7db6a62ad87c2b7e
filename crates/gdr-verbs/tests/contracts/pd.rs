//! ibv_alloc_pd(3), ibv_open_device(3), ibv_get_device_list(3) and ibv_fork_init(3).

use std::ptr;

use gdr_verbs_sys::*;

use crate::side::*;
use crate::verbs::{self, errno};

#[test]
fn a_domain_is_not_freed_while_something_is_associated_with_it() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: the context is open; other handles are checked.
    unsafe {
        assert_eq!(verbs::ibv_dealloc_pd(side.domain), libc::EBUSY);
        let domain = verbs::ibv_alloc_pd(side.context);
        let ah = verbs::ibv_create_ah(domain, &mut side.path());
        assert_eq!(verbs::ibv_dealloc_pd(domain), libc::EBUSY);
        assert_eq!(verbs::ibv_destroy_ah(ah), 0);
        assert_eq!(verbs::ibv_dealloc_pd(domain), 0);
        assert_eq!(verbs::ibv_dealloc_pd(domain), libc::EINVAL);
        assert!(verbs::ibv_alloc_pd(domain.cast()).is_null());
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}

#[test]
fn a_device_that_is_not_opened_or_closed_sets_errno() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    // SAFETY: handles, which the library checks.
    unsafe {
        assert!(verbs::ibv_open_device(ptr::null_mut()).is_null());
        assert_eq!(errno(), libc::EINVAL);
        assert_eq!(verbs::ibv_close_device(side.domain.cast()), -1);
        assert_eq!(errno(), libc::EINVAL);
    }
    side.close();
}

#[test]
fn opened_devices_outlive_the_list() {
    let mut count = 0;
    // SAFETY: the list is freed once.
    unsafe {
        library();
        let list = verbs::ibv_get_device_list(&mut count);
        assert!(!list.is_null());
        assert!(count >= 1);
        assert!(list.add(count as usize).read().is_null());
        let device = list.read();
        assert!(!verbs::ibv_get_device_name(device).is_null());
        assert_ne!(verbs::ibv_get_device_guid(device), 0);
        assert!(verbs::ibv_get_device_index(device) >= 0);
        let context = verbs::ibv_open_device(device);
        verbs::ibv_free_device_list(list);
        let domain = verbs::ibv_alloc_pd(context);
        assert!(!domain.is_null());
        assert_eq!(verbs::ibv_dealloc_pd(domain), 0);
        assert_eq!(verbs::ibv_close_device(context), 0);
        assert_eq!(verbs::ibv_close_device(context), -1);
        assert_eq!(errno(), libc::EINVAL);
        // The count may be null.
        let list = verbs::ibv_get_device_list(ptr::null_mut());
        assert!(!list.is_null());
        verbs::ibv_free_device_list(list);
    }
}

#[test]
fn forks_are_safe_before_and_after_the_first_registration() {
    let side = Side::new(ibv_qp_type::IBV_QPT_RC);
    let mut words = vec![0; 4];
    // No page is pinned, so a child gets copies of all pages without further measures.
    // SAFETY: functions without arguments.
    unsafe {
        assert_eq!(verbs::ibv_fork_init(), 0);
        let region = side.register(&mut words);
        assert_eq!(verbs::ibv_fork_init(), 0);
        let state = verbs::ibv_is_fork_initialized();
        assert_eq!(state, ibv_fork_status::IBV_FORK_UNNEEDED);
        deregister(region);
    }
    side.close();
}
