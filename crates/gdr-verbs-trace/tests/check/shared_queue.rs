//! A shared receive queue.

use std::ffi::{CStr, c_int, c_void};
use std::{mem, ptr};

use gdr_verbs_sys::*;
type Create = unsafe extern "C" fn(*mut ibv_pd, *mut Init) -> *mut ibv_srq;
type Destroy = unsafe extern "C" fn(*mut ibv_srq) -> c_int;

/// `struct ibv_srq_init_attr` of libibverbs' header.
#[repr(C)]
struct Init {
    context: *mut c_void,
    attr: ibv_srq_attr,
}

pub(crate) struct SharedQueue {
    context: *mut ibv_context,
    srq: *mut ibv_srq,
}

/// Returns a function of the library that made the domain.
fn function(name: &CStr) -> *mut c_void {
    // SAFETY: the names are C strings, and the library is already loaded.
    let found = unsafe {
        let library = libc::dlopen(c"libibverbs.so.1".as_ptr(), libc::RTLD_NOW);
        libc::dlsym(library, name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?}");
    found
}

impl SharedQueue {
    /// Creates a queue with room for this many receives of one segment.
    pub(crate) fn new(context: *mut ibv_context, domain: *mut ibv_pd, max_wr: u32) -> Self {
        let mut init = Init {
            context: ptr::null_mut(),
            attr: ibv_srq_attr {
                max_wr,
                max_sge: 1,
                srq_limit: 0,
            },
        };
        // SAFETY: the function has this type.
        let create = unsafe { mem::transmute::<*mut c_void, Create>(function(c"ibv_create_srq")) };
        // SAFETY: the domain is alive.
        let srq = unsafe { create(domain, &raw mut init) };
        assert!(!srq.is_null());
        Self { context, srq }
    }

    pub(crate) fn srq(&self) -> *mut ibv_srq {
        self.srq
    }

    /// Posts a receive; returns whether it was accepted.
    pub(crate) fn receive(&self, wr_id: u64, mut sge: ibv_sge) -> bool {
        let (mut wr, mut bad) = (
            ibv_recv_wr {
                wr_id,
                sg_list: &raw mut sge,
                num_sge: 1,
                ..Default::default()
            },
            ptr::null_mut(),
        );
        // SAFETY: the context is open.
        let post = unsafe { (*self.context).ops.post_srq_recv }.unwrap();
        // SAFETY: the queue is alive.
        unsafe { post(self.srq, &raw mut wr, &raw mut bad) == 0 }
    }

    /// Destroys the queue, which no queue pair uses any more.
    pub(crate) fn destroy(self) {
        // SAFETY: the function has this type.
        let destroy =
            unsafe { mem::transmute::<*mut c_void, Destroy>(function(c"ibv_destroy_srq")) };
        // SAFETY: alive.
        assert_eq!(unsafe { destroy(self.srq) }, 0);
    }
}
