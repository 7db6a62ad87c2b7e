//! Children that are forked while other threads create, destroy, register and post.
//!
//! It forks, so it has its own test binary.

#![allow(clippy::unwrap_used)]
#![allow(missing_docs, reason = "a test")]

#[path = "library/fake_library.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod fake_library;

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use fake_library::{FakeLibrary, domain};
use forked::{check, status_of};
use gdr_verbs_sys::{
    ibv_context, ibv_device, ibv_mr, ibv_pd, ibv_qp, ibv_qp_init_attr, ibv_send_wr,
};
// Its `dlsym` replaces the C library's.
use gdr_verbs_trace as _;

const THREADS: usize = 4;
const FORKS: usize = 200;

type Open = unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context;
type Register = unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
type Deregister = unsafe extern "C" fn(*mut ibv_mr) -> c_int;
type Create = unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
type Destroy = unsafe extern "C" fn(*mut ibv_qp) -> c_int;

/// Functions that a program looks up before it has threads.
struct Functions {
    open: Open,
    register: Register,
    deregister: Deregister,
    create: Create,
    destroy: Destroy,
}

impl Functions {
    fn of(library: &FakeLibrary) -> Self {
        // SAFETY: the functions have these types in C.
        unsafe {
            Self {
                open: library.function("ibv_open_device"),
                register: library.function("ibv_reg_mr"),
                deregister: library.function("ibv_dereg_mr"),
                create: library.function("ibv_create_qp"),
                destroy: library.function("ibv_destroy_qp"),
            }
        }
    }

    /// Creates, uses and destroys objects of a device; returns whether all of that worked.
    fn use_device(&self, context: *mut ibv_context) -> bool {
        let mut attr = ibv_qp_init_attr::default();
        attr.cap.max_recv_wr = 16;
        let mut request = ibv_send_wr::default();
        let mut bad = ptr::null_mut();
        // SAFETY: a context of the library, which keeps addresses only.
        unsafe {
            let qp = (self.create)(domain(context), &mut attr);
            let mr = (self.register)(domain(context), ptr::null_mut(), 4096, 0);
            let posted = (*context).ops.post_send.unwrap()(qp, &mut request, &mut bad);
            posted == 0 && (self.deregister)(mr) == 0 && (self.destroy)(qp) == 0
        }
    }
}

#[test]
fn a_child_that_is_forked_at_any_moment_has_devices_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let library = FakeLibrary::load(folder.path());
    let context = library.open("parent").expose_provenance();
    // SAFETY: an open context, which names its device.
    let device = unsafe { (*ptr::with_exposed_provenance_mut::<ibv_context>(context)).device };
    let device = device.expose_provenance();
    let functions = Functions::of(library);
    let stop = AtomicBool::new(false);
    let mut failed = Vec::new();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let context = ptr::with_exposed_provenance_mut(context);
                    assert!(functions.use_device(context));
                }
            });
        }
        for number in 0..FORKS {
            let status = status_of(|| {
                let inherited = ptr::with_exposed_provenance_mut(context);
                // SAFETY: the device of the fake library.
                let own = unsafe { (functions.open)(ptr::with_exposed_provenance_mut(device)) };
                check(functions.use_device(own), "a device of its own")?;
                check(functions.use_device(inherited), "its parent's device")
            });
            if status != 0 {
                failed.push((number, status));
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(failed, []);
}
