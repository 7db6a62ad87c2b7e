//! Extended completion queues, which return one completion at a time.

use std::ffi::{c_int, c_uint};
use std::num::NonZeroU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use gdr_nic::{Completion, monotonic_clock};
use gdr_verbs_sys::{
    __be32, ibv_context, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_cq_init_attr_mask,
    ibv_create_cq_attr_flags, ibv_create_cq_wc_flags as Fields, ibv_poll_cq_attr, ibv_wc_opcode,
};

use crate::completion;
use crate::completion_queue::Queue;
use crate::device::Device;
use crate::domain::Domain;
use crate::errno::Errno;
use crate::ret::{plain, pointer, status};
use crate::section::{self, Inside};

/// The fields of completions that there are.
const KNOWN_FIELDS: u64 = Fields::IBV_WC_EX_WITH_BYTE_LEN.0 as u64
    | Fields::IBV_WC_EX_WITH_IMM.0 as u64
    | Fields::IBV_WC_EX_WITH_QP_NUM.0 as u64
    | Fields::IBV_WC_EX_WITH_SRC_QP.0 as u64
    | Fields::IBV_WC_EX_WITH_SLID.0 as u64
    | Fields::IBV_WC_EX_WITH_SL.0 as u64
    | Fields::IBV_WC_EX_WITH_DLID_PATH_BITS.0 as u64
    | TIMES;

/// The times of completions.
const TIMES: u64 = Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0 as u64
    | Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK.0 as u64;

/// # Safety
/// `attr` is readable.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        // SAFETY: the contract of this function.
        let attr = unsafe { &*attr };
        let flags = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
        let domain = ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_PD.0;
        let with_flags = attr.comp_mask & flags != 0;
        let known = ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
        if attr.wc_flags & !KNOWN_FIELDS != 0
            || attr.comp_mask & !(flags | domain) != 0
            || with_flags && attr.flags & !known != 0
        {
            return Err(Errno::OPNOTSUPP);
        }
        let entries = c_int::try_from(attr.cqe).map_err(|_| Errno::INVAL)?;
        let vector = c_int::try_from(attr.comp_vector).map_err(|_| Errno::INVAL)?;
        let pollers = match with_flags && attr.flags & known != 0 {
            true => section::Users::OneThread,
            false => section::Users::AnyThread,
        };
        let parent = match attr.comp_mask & domain {
            0 => None,
            // SAFETY: the mask says that the field is there.
            _ => Some(Domain::of(attr.parent_domain)?.users().add()),
        };
        let (own, channel) = (attr.cq_context, attr.channel);
        let queue = Queue::create(context, entries, own, channel, vector, pollers, parent)?;
        if attr.wc_flags & TIMES != 0 {
            queue.nic().take_times();
        }
        let object = queue.as_ptr().cast::<ibv_cq_ex>();
        // SAFETY: a new queue, which the program does not know yet.
        fill(unsafe { &mut *object }, attr.wc_flags);
        Ok(object)
    })
}

/// Sets the functions that read the fields of completions.
fn fill(cq: &mut ibv_cq_ex, fields: u64) {
    let has = |field: Fields| fields & u64::from(field.0) != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_zero);
    cq.read_wc_flags = Some(read_wc_flags);
    if has(Fields::IBV_WC_EX_WITH_BYTE_LEN) {
        cq.read_byte_len = Some(read_byte_len);
    }
    if has(Fields::IBV_WC_EX_WITH_IMM) {
        cq.read_imm_data = Some(read_imm_data);
    }
    if has(Fields::IBV_WC_EX_WITH_QP_NUM) {
        cq.read_qp_num = Some(read_qp_num);
    }
    if has(Fields::IBV_WC_EX_WITH_SRC_QP) {
        cq.read_src_qp = Some(read_src_qp);
    }
    if has(Fields::IBV_WC_EX_WITH_SLID) {
        cq.read_slid = Some(read_zero);
    }
    if has(Fields::IBV_WC_EX_WITH_SL) {
        cq.read_sl = Some(read_sl);
    }
    if has(Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        cq.read_completion_ts = Some(read_completion_ts);
    }
    if has(Fields::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK) {
        cq.read_completion_wallclock_ns = Some(read_completion_wallclock_ns);
    }
    if has(Fields::IBV_WC_EX_WITH_DLID_PATH_BITS) {
        cq.read_dlid_path_bits = Some(read_no_bits);
    }
}

/// Takes the next completion: its identifier and status go to the structure of C, the rest is kept.
fn advance(queue: &Queue, current: &mut Inside<'_, Option<Completion>>) -> Result<(), Errno> {
    **current = None;
    queue
        .nic()
        .poll(1, &mut |completion| **current = Some(completion))?;
    let next = (**current).ok_or(Errno::NOENT)?;
    let cq = queue.as_ptr().cast::<ibv_cq_ex>();
    // SAFETY: the structure lives as long as the queue. Only calls between the begin and the end of a
    // poll write to it, one at a time; the program reads it between them.
    unsafe {
        (*cq).wr_id = next.id.0;
        (*cq).status = completion::status_of(&next);
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: the program passes attributes; see `ibv_start_poll`.
    let known = unsafe { attr.as_ref() }.is_none_or(|attr| attr.comp_mask == 0);
    if !known {
        return Errno::INVAL.get();
    }
    status(|| {
        let queue = Queue::of(cq.cast())?;
        let mut current = queue.polling().begin()?;
        // Without a completion, no poll is in progress.
        match advance(&queue, &mut current) {
            Ok(()) => Ok(()),
            Err(errno) => {
                current.end();
                Err(errno)
            }
        }
    })
}

extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    status(|| {
        let queue = Queue::of(cq.cast())?;
        advance(&queue, &mut queue.polling().inside()?)
    })
}

extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    plain((), || {
        Queue::of(cq.cast())?
            .polling()
            .end(|current| *current = None)
    });
}

/// A field of the completion that was taken; 0 if there is none.
fn read<T: Default>(cq: *mut ibv_cq_ex, field: impl FnOnce(&Completion, &Device) -> T) -> T {
    plain(T::default(), || {
        let queue = Queue::of(cq.cast())?;
        let current = *queue.polling().inside()?;
        Ok(current.map_or_else(T::default, |current| field(&current, queue.device())))
    })
}

extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    ibv_wc_opcode(read(cq, |current, _| completion::opcode_of(current).0))
}

extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |current, _| current.byte_len)
}

/// By the device's clock, which counts nanoseconds.
extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    read(cq, |current, _| current.time.map_or(0, NonZeroU64::get))
}

/// By the clock of the host as it is set now.
extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    let time = read_completion_ts(cq);
    let since = Duration::from_nanos(monotonic_clock().saturating_sub(time));
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let then = now.unwrap_or_default().saturating_sub(since);
    u64::try_from(then.as_nanos()).unwrap_or(u64::MAX)
}

extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    read(cq, |current, _| completion::immediate_of(current))
}

extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |current, _| current.qpn.get())
}

extern "C" fn read_src_qp(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, |current, _| completion::source_of(current))
}

extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    read(cq, |current, _| completion::flags_of(current))
}

extern "C" fn read_sl(cq: *mut ibv_cq_ex) -> u8 {
    read(cq, completion::service_level_of)
}

/// Fields that RoCE does not have.
extern "C" fn read_zero(_cq: *mut ibv_cq_ex) -> u32 {
    0
}

extern "C" fn read_no_bits(_cq: *mut ibv_cq_ex) -> u8 {
    0
}
