//! Shared receive queues.

use std::ffi::c_int;
use std::ptr;

use gdr_trace::MemoryKind;
use gdr_verbs_sys::{ibv_context, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_init_attr_ex};

use crate::context::Context;
use crate::key_map::KeyMap;
use crate::library::{self, Missing, ibv_srq_init_attr};
use crate::nesting::{Nesting, quietly};
use crate::post::posted_receives;
use crate::receive_kinds::ReceiveKinds;
use crate::region::context_of;

/// The rings of queues, by the address of the structure.
static QUEUES: KeyMap = KeyMap::new();

/// The kinds of the receives of a queue, if it is traced.
pub(crate) fn receives_of(srq: *mut ibv_srq) -> Option<&'static ReceiveKinds> {
    let address = QUEUES.get(srq.addr() as u64)?;
    let ring = ptr::with_exposed_provenance::<ReceiveKinds>(address as usize);
    // SAFETY: the map has addresses of rings only, which are never freed.
    Some(unsafe { &*ring })
}

/// Creates a queue in the library behind, and traces it.
///
/// # Safety
/// `attr` is null or readable; `call` returns null or a queue that was made with it.
unsafe fn create(
    context: Option<&Context>,
    attr: *const ibv_srq_init_attr,
    call: impl FnOnce() -> *mut ibv_srq,
) -> *mut ibv_srq {
    let nesting = Nesting::enter();
    let srq = call();
    if nesting.is_outermost() && !srq.is_null() && context.is_some() {
        quietly(|| {
            // SAFETY: the library has read the attributes, and written the size.
            let size = unsafe { &(*attr).attr }.max_wr;
            let ring = ptr::from_ref(ReceiveKinds::take_ring(size));
            QUEUES.insert(srq.addr() as u64, ring.expose_provenance() as u64);
        });
    }
    srq
}

/// # Safety
/// That of `ibv_create_srq`.
pub(crate) unsafe extern "C" fn create_srq<const L: usize>(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    let Some(real) = library::ibv_create_srq(L) else {
        return Missing::missing();
    };
    // SAFETY: the caller's arguments.
    unsafe { create(context_of(pd), attr, || real(pd, attr)) }
}

/// # Safety
/// That of `ibv_create_srq_ex`.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    let traced = Context::of(context);
    let Some(real) = traced.and_then(|it| it.real.create_srq_ex) else {
        return Missing::missing();
    };
    // SAFETY: the caller's arguments; the structure begins with the fields of the other one.
    unsafe { create(traced, attr.cast(), || real(context, attr)) }
}

/// # Safety
/// That of `ibv_destroy_srq`.
pub(crate) unsafe extern "C" fn destroy_srq<const L: usize>(srq: *mut ibv_srq) -> c_int {
    let Some(real) = library::ibv_destroy_srq(L) else {
        return Missing::missing();
    };
    let nesting = Nesting::enter();
    let key = srq.addr() as u64;
    let ring = receives_of(srq);
    let known = nesting.is_outermost().then(|| QUEUES.remove(key)).flatten();
    // SAFETY: the caller's argument.
    let result = unsafe { real(srq) };
    match (known, ring) {
        (Some(known), _) if result != 0 => QUEUES.insert(key, known),
        (Some(_), Some(ring)) => ring.give_back(),
        _ => {}
    }
    result
}

/// # Safety
/// That of `ibv_post_srq_recv`.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the first field of `struct ibv_srq` is its context.
    let context = Context::of(unsafe { srq.cast::<*mut ibv_context>().read() });
    let Some((context, real)) = context.and_then(|it| Some((it, it.real.basic.post_srq_recv?)))
    else {
        return Missing::missing();
    };
    let ring = receives_of(srq);
    // SAFETY: the caller's arguments.
    unsafe { posted_receives(context, ring, wr, bad_wr, || real(srq, wr, bad_wr)) }
}

/// The kind of a completed receive of a ring.
pub(crate) fn completed(ring: Option<&ReceiveKinds>) -> MemoryKind {
    ring.map_or(MemoryKind::Unknown, ReceiveKinds::pop)
}
