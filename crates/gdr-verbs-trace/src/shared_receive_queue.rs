//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;

use gdr_verbs_sys::{
    ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex,
};

use crate::check::{self, Caller};
use crate::context::Context;
use crate::key_map::KeyMap;
use crate::library::{self, ibv_srq_init_attr, missing};
use crate::nesting::{Nesting, keep_quiet};
use crate::post::{post_receives, refuse, with_caller};
use crate::receive_kinds::ReceiveKinds;

/// Rings of queues, by the address of the structure.
static QUEUES: KeyMap = KeyMap::new();

/// Maximum number of segments per receive of a queue, by the address of the structure.
static SEGMENTS: KeyMap = KeyMap::new();

/// Returns the kinds of the receives of a queue, if it is traced.
pub(crate) fn receives_of(srq: *mut ibv_srq) -> Option<&'static ReceiveKinds> {
    let address = QUEUES.get(srq.addr() as u64)?;
    let ring = ptr::with_exposed_provenance::<ReceiveKinds>(address as usize);
    // SAFETY: the map holds only addresses of rings, which are never freed.
    Some(unsafe { &*ring })
}

/// Creates a queue in the real library, and traces it.
///
/// # Safety
/// `attr` is null or readable; `call` returns null or a queue that was made with it.
unsafe fn create(
    attr: *const ibv_srq_init_attr,
    call: impl FnOnce() -> *mut ibv_srq,
) -> *mut ibv_srq {
    let nesting = Nesting::enter();
    let srq = call();
    if nesting.is_outermost() && !srq.is_null() {
        keep_quiet(|| {
            // SAFETY: a new queue.
            Context::of(unsafe { context_of(srq) })?;
            // SAFETY: the library has read the attributes and written the sizes.
            let attr = unsafe { &(*attr).attr };
            let ring = ptr::from_ref(ReceiveKinds::take_ring(attr.max_wr));
            QUEUES.insert(srq.addr() as u64, ring.expose_provenance() as u64);
            SEGMENTS.insert(srq.addr() as u64, attr.max_sge.into());
            check::shared_queue_created(srq, attr.max_wr);
            Some(())
        });
    }
    srq
}

/// # Safety
/// `srq` is readable.
unsafe fn context_of(srq: *mut ibv_srq) -> *mut ibv_context {
    // SAFETY: the first field of `struct ibv_srq` is its context.
    unsafe { srq.cast::<*mut ibv_context>().read() }
}

/// # Safety
/// As for `ibv_create_srq`.
pub(crate) unsafe extern "C" fn create_srq<const L: usize>(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: the caller's arguments.
    unsafe { create(attr, || library::ibv_create_srq(L)(pd, attr)) }
}

/// # Safety
/// As for `ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let Some(real) = Context::behind(context).and_then(|it| it.real.create_srq_ex) else {
        return missing::null();
    };
    // SAFETY: the caller's arguments, and the extended structure begins with the fields of the basic one.
    unsafe { create(attr.cast(), || real(context, attr)) }
}

/// Records that the size may have changed: the rules know it only from creation.
///
/// # Safety
/// As for `ibv_modify_srq`.
pub(crate) unsafe extern "C" fn modify_srq<const L: usize>(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    /// `IBV_SRQ_MAX_WR` of `enum ibv_srq_attr_mask`.
    const MAX_WR: c_int = 1;
    if mask & MAX_WR != 0 {
        keep_quiet(|| check::shared_queue_modified(srq));
    }
    // SAFETY: the caller's arguments.
    unsafe { library::ibv_modify_srq(L)(srq, attr, mask) }
}

/// # Safety
/// As for `ibv_destroy_srq`.
pub(crate) unsafe extern "C" fn destroy_srq<const L: usize>(srq: *mut ibv_srq) -> c_int {
    let nesting = Nesting::enter();
    let key = srq.addr() as u64;
    let ring = receives_of(srq);
    let known = nesting.is_outermost().then(|| QUEUES.remove(key)).flatten();
    // SAFETY: the caller's argument.
    let result = unsafe { library::ibv_destroy_srq(L)(srq) };
    match (known, ring) {
        (Some(known), _) if result != 0 => QUEUES.insert(key, known),
        (Some(_), Some(ring)) => {
            SEGMENTS.remove(key);
            keep_quiet(|| check::shared_queue_destroyed(srq));
            ring.give_back();
        }
        _ => {}
    }
    result
}

with_caller! { 3
    /// # Safety
    /// As for `ibv_post_srq_recv`.
    post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) => post_srq_recv_from
}

/// # Safety
/// As for `ibv_post_srq_recv`.
unsafe extern "C" fn post_srq_recv_from(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    caller: Caller,
) -> c_int {
    // SAFETY: the caller's queue.
    let context = Context::behind(unsafe { context_of(srq) });
    let Some((context, real)) = context.and_then(|it| Some((it, it.real.basic.post_srq_recv?)))
    else {
        // SAFETY: the caller's arguments.
        return unsafe { refuse(wr, bad_wr) };
    };
    let Some(ring) = receives_of(srq) else {
        // SAFETY: the caller's arguments.
        return unsafe { real(srq, wr, bad_wr) };
    };
    let segments = SEGMENTS.get(srq.addr() as u64).unwrap_or(0) as u32;
    // SAFETY: the caller's arguments.
    let call = |bad_wr| unsafe { real(srq, wr, bad_wr) };
    // SAFETY: the caller's arguments.
    let posting = keep_quiet(|| unsafe { check::shared_receives(srq, wr, segments, caller) });
    // SAFETY: `call` posts the caller's list to the queue of this ring.
    unsafe {
        post_receives(
            context,
            (ring, segments),
            (wr, posting.flatten()),
            bad_wr,
            call,
        )
    }
}
