//! Completion counters: numbers that completions of queue pairs increase.

use std::ffi::{c_int, c_uint};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gdr_nic::{CompletionCounter, CountedOperation, CounterUnit};
use gdr_verbs_sys::{
    ibv_comp_cntr, ibv_comp_cntr_caps, ibv_comp_cntr_init_attr, ibv_comp_cntr_type, ibv_context,
    ibv_qp, ibv_qp_attach_comp_cntr_attr, ibv_qp_attach_comp_cntr_op as Operation, ibv_qp_state,
};

use crate::context::Context;
use crate::device::lock;
use crate::domain::{Use, Users, next_handle};
use crate::errno::Errno;
use crate::query::MANY;
use crate::queue_pair::Pair;
use crate::ret::{pointer, status, unsupported, unsupported_pointer};
use crate::slab::{CObject, is_own};
use crate::system::forward_or;
use crate::table::Table;

/// A completion counter.
pub(crate) struct Counter {
    _object: CObject<ibv_comp_cntr>,
    context: Arc<Context>,
    counter: CompletionCounter,
    /// The queue pairs that it is attached to.
    users: Users,
}

pub(crate) static COUNTERS: Table<Counter> = Table::new();

impl Counter {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }
}

/// The counters of a queue pair.
#[derive(Default)]
pub(crate) struct Attached {
    /// The operations that are counted.
    operations: c_uint,
    counters: Vec<Use>,
}

/// The operations that a queue pair counts.
const OPERATIONS: [(Operation, CountedOperation); 6] = [
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_SEND,
        CountedOperation::Send,
    ),
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RECV,
        CountedOperation::Recv,
    ),
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ,
        CountedOperation::Read,
    ),
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ,
        CountedOperation::RemoteRead,
    ),
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE,
        CountedOperation::Write,
    ),
    (
        Operation::IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
        CountedOperation::RemoteWrite,
    ),
];

fn all_operations() -> c_uint {
    OPERATIONS.iter().fold(0, |all, (bit, _)| all | bit.0)
}

/// # Safety
/// `size` bytes at `caps` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_comp_cntr_caps(
    context: *mut ibv_context,
    caps: *mut ibv_comp_cntr_caps,
    size: usize,
) -> c_int {
    forward_or!(unless is_own(context), _ibv_query_comp_cntr_caps(context, caps, size), unsupported());
    status(|| {
        Context::of(context)?;
        let whole = ibv_comp_cntr_caps {
            max_value: u64::MAX,
            max_counters: MANY.cast_unsigned(),
            supported_qp_attach_ops: all_operations(),
        };
        let known = size.min(size_of_val(&whole));
        // SAFETY: the contract of this function; the structure is numbers, and this side's.
        unsafe {
            ptr::write_bytes(caps.cast::<u8>(), 0, size);
            ptr::copy_nonoverlapping(ptr::from_ref(&whole).cast::<u8>(), caps.cast(), known);
        }
        Ok(())
    })
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_comp_cntr(
    context: *mut ibv_context,
    attr: *mut ibv_comp_cntr_init_attr,
) -> *mut ibv_comp_cntr {
    forward_or!(unless is_own(context), ibv_create_comp_cntr(context, attr), unsupported_pointer());
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function.
        let wanted = unsafe { attr.read() };
        if wanted.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if wanted.flags != 0 {
            return Err(Errno::INVAL);
        }
        let unit = match wanted.type_ {
            ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_WRS => CounterUnit::Requests,
            ibv_comp_cntr_type::IBV_COMP_CNTR_TYPE_BYTES => CounterUnit::Bytes,
            _ => return Err(Errno::OPNOTSUPP),
        };
        // SAFETY: a pointer and a number.
        let object = unsafe {
            CObject::<ibv_comp_cntr>::new(|counter| {
                counter.context = context.as_ptr();
                counter.handle = next_handle();
            })
        };
        let handle = object.as_ptr();
        let counter = Counter {
            _object: object,
            context,
            counter: CompletionCounter::new(unit),
            users: Users::default(),
        };
        COUNTERS.insert(handle, Arc::new(counter));
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_cntr(counter: *mut ibv_comp_cntr) -> c_int {
    forward_or!(unless is_own(counter), ibv_destroy_comp_cntr(counter), unsupported());
    status(|| {
        COUNTERS.get(counter)?.users.check_unused()?;
        COUNTERS.remove(counter).map(drop)
    })
}

/// Uses a value of a counter.
fn with(
    counter: *mut ibv_comp_cntr,
    value: impl FnOnce(&CompletionCounter) -> &AtomicU64,
    then: impl FnOnce(&AtomicU64),
) -> c_int {
    status(|| {
        then(value(&COUNTERS.get(counter)?.counter));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_set_comp_cntr(counter, value), unsupported());
    with(counter, CompletionCounter::completed, |it| {
        it.store(value, Ordering::Release);
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_set_err_comp_cntr(counter: *mut ibv_comp_cntr, value: u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_set_err_comp_cntr(counter, value), unsupported());
    with(counter, CompletionCounter::failed, |it| {
        it.store(value, Ordering::Release);
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_inc_comp_cntr(counter, amount), unsupported());
    with(counter, CompletionCounter::completed, |it| {
        it.fetch_add(amount, Ordering::AcqRel);
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_inc_err_comp_cntr(counter: *mut ibv_comp_cntr, amount: u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_inc_err_comp_cntr(counter, amount), unsupported());
    with(counter, CompletionCounter::failed, |it| {
        it.fetch_add(amount, Ordering::AcqRel);
    })
}

/// # Safety
/// `value` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_read_comp_cntr(counter, value), unsupported());
    with(counter, CompletionCounter::completed, |it| {
        // SAFETY: the contract of this function.
        unsafe { value.write(it.load(Ordering::Acquire)) };
    })
}

/// # Safety
/// `value` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_err_comp_cntr(counter: *mut ibv_comp_cntr, value: *mut u64) -> c_int {
    forward_or!(unless is_own(counter), ibv_read_err_comp_cntr(counter, value), unsupported());
    with(counter, CompletionCounter::failed, |it| {
        // SAFETY: the contract of this function.
        unsafe { value.write(it.load(Ordering::Acquire)) };
    })
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_qp_attach_comp_cntr(
    qp: *mut ibv_qp,
    counter: *mut ibv_comp_cntr,
    attr: *mut ibv_qp_attach_comp_cntr_attr,
) -> c_int {
    let is_of_own = is_own(qp) || is_own(counter);
    forward_or!(unless is_of_own, ibv_qp_attach_comp_cntr(qp, counter, attr), unsupported());
    status(|| {
        let pair = Pair::of(qp)?;
        let counter = COUNTERS.get(counter)?;
        // SAFETY: the contract of this function.
        let wanted = unsafe { attr.read() };
        if wanted.comp_mask != 0 || wanted.op_mask & !all_operations() != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // While the lock is held, the program cannot change the state.
        let _attributes = lock(&pair.attributes);
        let may = [ibv_qp_state::IBV_QPS_RESET, ibv_qp_state::IBV_QPS_INIT];
        if wanted.op_mask == 0 || !pair.is_of(&counter.context) || !may.contains(&pair.state()) {
            return Err(Errno::INVAL);
        }
        let mut attached = lock(&pair.attached);
        if attached.operations & wanted.op_mask != 0 {
            return Err(Errno::BUSY);
        }
        let operations: Vec<_> = OPERATIONS
            .iter()
            .filter(|(bit, _)| wanted.op_mask & bit.0 != 0)
            .map(|(_, operation)| *operation)
            .collect();
        pair.nic()
            .count_completions(&operations, &counter.counter)?;
        attached.operations |= wanted.op_mask;
        attached.counters.push(counter.users.add());
        Ok(())
    })
}
