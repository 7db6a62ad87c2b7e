//! Extended completion queues, whose functions this crate replaces.

use std::ffi::c_int;
use std::ptr;

use gdr_verbs_sys::{
    Errno, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_poll_cq_attr, ibv_wc_opcode,
    ibv_wc_status,
};

use crate::check::{self, Polled};
use crate::completion::{Completed, count};
use crate::context::Context;
use crate::interned::Interned;
use crate::key_map::KeyMap;
use crate::library::missing;
use crate::nesting::{Nesting, keep_quiet};

type StartPoll = unsafe extern "C" fn(*mut ibv_cq_ex, *mut ibv_poll_cq_attr) -> c_int;
type NextPoll = unsafe extern "C" fn(*mut ibv_cq_ex) -> c_int;

/// Functions that a queue held.
#[derive(Clone, Copy)]
#[repr(C)]
struct RealFunctions {
    start_poll: Option<StartPoll>,
    next_poll: Option<NextPoll>,
}

/// Functions that queues held, by the address of the structure. Entries of destroyed queues stay, because calls through
/// them must still reach the real library.
static QUEUES: KeyMap = KeyMap::new();

/// Function tables, shared by queues with equal ones.
static FUNCTIONS: Interned<RealFunctions> = Interned::new();

fn functions_of(cq: *mut ibv_cq_ex) -> Option<&'static RealFunctions> {
    let address = QUEUES.get(cq.addr() as u64)?;
    let real = ptr::with_exposed_provenance::<RealFunctions>(address as usize);
    // SAFETY: the map holds only addresses of leaked values.
    Some(unsafe { &*real })
}

/// # Safety
/// As for `ibv_create_cq_ex`.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    let Some(real) = Context::behind(context).and_then(|it| it.real.create_cq_ex) else {
        return missing::null();
    };
    let nesting = Nesting::enter();
    // SAFETY: the caller's arguments.
    let cq = unsafe { real(context, attr) };
    if nesting.is_outermost() && !cq.is_null() {
        keep_quiet(|| {
            // SAFETY: the queue is new, and the program does not have it yet.
            let queue = unsafe { &mut *cq };
            let real = RealFunctions {
                start_poll: queue.start_poll,
                next_poll: queue.next_poll,
            };
            // SAFETY: the structure consists of nullable functions.
            let known = unsafe { FUNCTIONS.get(real) };
            let known = ptr::from_ref(known).expose_provenance();
            QUEUES.insert(cq.addr() as u64, known as u64);
            queue.start_poll = queue.start_poll.and(Some(start_poll));
            queue.next_poll = queue.next_poll.and(Some(next_poll));
            // SAFETY: the queue is new, and its structure begins with the fields of `ibv_cq`.
            unsafe { check::queue_changed(cq.cast()) };
        });
    }
    cq
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    let Some(real) = functions_of(cq).and_then(|real| real.start_poll) else {
        return Errno::EINVAL.0;
    };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(cq, attr) };
    if result == 0 {
        // SAFETY: the queue is at a completion.
        keep_quiet(|| unsafe { count_current(cq) });
    } else {
        keep_quiet(|| check::polled_nothing(cq.cast()));
    }
    result
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let Some(real) = functions_of(cq).and_then(|real| real.next_poll) else {
        return Errno::EINVAL.0;
    };
    // SAFETY: the caller's argument.
    let result = unsafe { real(cq) };
    if result == 0 {
        // SAFETY: the queue is at a completion.
        keep_quiet(|| unsafe { count_current(cq) });
    }
    result
}

/// Counts the completion that a queue is currently at.
///
/// # Safety
/// `cq` is between `ibv_start_poll` and `ibv_end_poll`, and has a completion.
unsafe fn count_current(cq: *mut ibv_cq_ex) {
    // SAFETY: the queue is valid, and only this thread polls it.
    let queue = unsafe { &*cq };
    let Some(context) = Context::of(queue.context) else {
        return;
    };
    let is_success = queue.status == ibv_wc_status::IBV_WC_SUCCESS;
    let opcode = match queue.read_opcode {
        // SAFETY: the queue is at a completion with this field.
        Some(read) if is_success => unsafe { read(cq) },
        _ => ibv_wc_opcode::IBV_WC_SEND,
    };
    let completion = Completed {
        status: queue.status,
        opcode,
        // SAFETY: as above.
        qpn: queue.read_qp_num.map(|read| unsafe { read(cq) }),
        bytes: match queue.read_byte_len {
            // SAFETY: as above.
            Some(read) if is_success => unsafe { read(cq) },
            _ => 0,
        },
    };
    let polled = Polled {
        id: queue.wr_id,
        status: queue.status.0,
        qpn: completion.qpn,
        opcode: queue.read_opcode.filter(|_| is_success).map(|_| opcode),
    };
    check::polled(queue.context, cq.cast(), std::iter::once(polled));
    count(context, &completion);
}
