//! Opening of contexts, whose function tables this crate changes.

use std::ffi::{CStr, c_int};
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use gdr_verbs_sys::{ibv_context, ibv_device, provider_op_field, verbs_context};

use crate::context::{Context, OPEN, RealOperations};
use crate::library;
use crate::nesting::{Nesting, keep_errno, keep_quiet, quietly};
use crate::recorder;
use crate::{check, completion, completion_queue, cq_ex, post, queue_pair, shared_receive_queue};

/// Counts a context that was opened, and replaces its operations.
///
/// # Safety
/// `context` is null or open, and no other thread uses it yet.
pub(crate) unsafe fn opened(context: *mut ibv_context) {
    if context.is_null() || Context::of(context).is_some() {
        return;
    }
    let Some(recorder) = recorder::current() else {
        return;
    };
    check::opened();
    static NEXT: AtomicU32 = AtomicU32::new(1);
    // SAFETY: an open context has a device, whose name is a C string.
    let name = unsafe { CStr::from_ptr((&raw const (*(*context).device).name).cast()) };
    // SAFETY: the context is open by contract, and the types match the fields.
    let (create_qp, create_cq, create_srq) = unsafe {
        (
            provider_op_field(context, offset_of!(verbs_context, create_qp_ex), |it| {
                it.create_qp_ex
            }),
            provider_op_field(context, offset_of!(verbs_context, create_cq_ex), |it| {
                it.create_cq_ex
            }),
            provider_op_field(context, offset_of!(verbs_context, create_srq_ex), |it| {
                it.create_srq_ex
            }),
        )
    };
    let record = Context {
        recorder,
        nic: recorder.open_nic(name),
        id: NEXT.fetch_add(1, Ordering::Relaxed),
        real: RealOperations {
            // SAFETY: the structure is valid by contract.
            basic: unsafe { (*context).ops },
            // SAFETY: as above.
            create_qp_ex: unsafe { replace(create_qp, queue_pair::create_qp_ex) },
            // SAFETY: as above.
            create_cq_ex: unsafe { replace(create_cq, cq_ex::create_cq_ex) },
            // SAFETY: as above.
            create_srq_ex: unsafe { replace(create_srq, shared_receive_queue::create_srq_ex) },
        },
    };
    let basic = &record.real.basic;
    // SAFETY: as above, and no other thread reads the table.
    let ops = unsafe { &mut (*context).ops };
    ops.post_send = basic.post_send.and(Some(post::post_send));
    ops.post_recv = basic.post_recv.and(Some(post::post_recv));
    ops.post_srq_recv = basic
        .post_srq_recv
        .and(Some(shared_receive_queue::post_srq_recv));
    ops.poll_cq = basic.poll_cq.and(Some(completion::poll_cq));
    if check::is_on() {
        ops.req_notify_cq = basic
            .req_notify_cq
            .and(Some(completion_queue::req_notify_cq));
    }
    record.keep(context);
}

/// Replaces the function in a field that has one; returns the previous one.
///
/// # Safety
/// The field is writable, and no other thread uses it.
unsafe fn replace<F: Copy>(field: Option<*mut Option<F>>, with: F) -> Option<F> {
    let field = field?;
    // SAFETY: the contract of this function.
    let before = unsafe { field.read() }?;
    // SAFETY: as above.
    unsafe { field.write(Some(with)) };
    Some(before)
}

/// Opens a context in the real library, and counts it.
pub(crate) fn open(call: impl FnOnce() -> *mut ibv_context) -> *mut ibv_context {
    let nesting = Nesting::enter();
    quietly(|| keep_errno(library::look_up_all));
    let context = call();
    if nesting.is_outermost() {
        // SAFETY: the context was just opened, and the program does not have it yet.
        quietly(|| keep_errno(|| unsafe { opened(context) }));
    }
    context
}

/// # Safety
/// As for `ibv_open_device`.
pub(crate) unsafe extern "C" fn open_device<const L: usize>(
    device: *mut ibv_device,
) -> *mut ibv_context {
    // SAFETY: the caller's argument.
    open(|| unsafe { library::ibv_open_device(L)(device) })
}

/// # Safety
/// As for `ibv_import_device`.
pub(crate) unsafe extern "C" fn import_device<const L: usize>(fd: c_int) -> *mut ibv_context {
    // SAFETY: the caller's argument.
    open(|| unsafe { library::ibv_import_device(L)(fd) })
}

/// # Safety
/// As for `ibv_close_device`.
pub(crate) unsafe extern "C" fn close_device<const L: usize>(context: *mut ibv_context) -> c_int {
    let nesting = Nesting::enter();
    let key = context.addr() as u64;
    // Before the call: afterwards, the address may belong to another context.
    let record = nesting.is_outermost().then(|| OPEN.remove(key)).flatten();
    // SAFETY: the caller's argument.
    let result = unsafe { library::ibv_close_device(L)(context) };
    match record {
        Some(record) if result != 0 => OPEN.insert(key, record),
        Some(_) => drop(keep_quiet(|| check::closed(context))),
        None => {}
    }
    result
}
