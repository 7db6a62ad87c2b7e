//! Completion channels and queues.

use std::ffi::{c_int, c_uint, c_void};

use gdr_verbs_sys::{
    Verbs, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex, ibv_wc,
    ibv_wc_opcode, ibv_wc_status,
};

use crate::nic::{nic, operations};
use crate::state::{Kind, LibraryState, lock_state};
use crate::verb::{
    Outcome, end, ends, errno_of, forwards, make, minus_one, number, on, pointer, status,
};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let made = ("ibv_create_comp_channel", Kind::Channel);
    // SAFETY: the context is open.
    make((Kind::Context, context), made, "", |nic| unsafe {
        nic.ibv_create_comp_channel(context)
    })
}

ends!(ibv_destroy_comp_channel(Channel, ibv_comp_channel));

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let verb = "ibv_get_cq_event";
    minus_one(|| {
        lock_state().object(verb, Kind::Channel, channel.addr())?;
        // SAFETY: the contract of this function. Without the lock, because this may wait.
        unsafe { nic().ibv_get_cq_event(channel, cq, cq_context) }.map_err(errno_of)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    // SAFETY: the NIC checks the handle.
    unsafe { nic().ibv_ack_cq_events(cq, events) };
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let made = ("ibv_create_cq", Kind::Queue);
    let detail = format_args!("{cqe} entries");
    // SAFETY: the context is open; the NIC checks the channel.
    make((Kind::Context, context), made, detail, |nic| unsafe {
        nic.ibv_create_cq(context, cqe, cq_context, channel, comp_vector)
    })
}

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    pointer(|| {
        let of = (Kind::Context, context);
        on(of, "ibv_create_cq_ex", "", |library, _| {
            let create = operations().create_cq_ex.ok_or(libc::EOPNOTSUPP)?;
            // SAFETY: the contract of this function.
            let made = unsafe { create(context, attr) };
            if made.is_null() {
                return Err(last_errno());
            }
            library.add_object(Kind::Queue, made, context.addr());
            Ok(made)
        })
    })
}

/// Returns the `errno` of a call of the NIC that has just failed.
pub(crate) fn last_errno() -> c_int {
    let error = std::io::Error::last_os_error();
    error.raw_os_error().unwrap_or(libc::EIO)
}

forwards!(ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int));

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        // SAFETY: the NIC refuses a queue in use.
        end(Kind::Queue, "ibv_destroy_cq", cq, "", |nic| unsafe {
            nic.ibv_destroy_cq(cq)
        })?;
        lock_state().kept.remove(&cq.addr());
        Ok(())
    })
}

/// Takes completions from a queue of the NIC.
///
/// # Safety
///
/// `wc` has room for `room` completions.
pub(crate) unsafe fn take(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> Outcome<c_int> {
    let poll = operations().context.ops.poll_cq.ok_or(libc::EOPNOTSUPP)?;
    // SAFETY: the contract of this function.
    match unsafe { poll(cq, room, wc) } {
        errno @ ..0 => Err(-errno),
        taken => Ok(taken),
    }
}

impl LibraryState {
    /// Changes a completion of the NIC as the device does.
    pub(crate) fn change(&mut self, wc: &mut ibv_wc) {
        let pair = self.pairs.iter_mut();
        let Some((address, pair)) = { pair }.find(|(_, pair)| pair.nic_number == wc.qp_num) else {
            return;
        };
        wc.qp_num = pair.number;
        let is_send = wc.opcode.0 < ibv_wc_opcode::IBV_WC_RECV.0;
        if !is_send || wc.status != ibv_wc_status::IBV_WC_SUCCESS {
            return;
        }
        if let Some((status, vendor_err)) = self.devices[pair.device].endings.pop_front() {
            wc.status = ibv_wc_status(status);
            wc.vendor_err = vendor_err;
            let address = *address;
            self.break_pair(address);
        }
    }
}

pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let verb = "ibv_poll_cq";
    number(|| {
        let mut library = lock_state();
        let id = library.object(verb, Kind::Queue, cq.addr())?.device;
        library.devices[id].check_refusals(verb)?;
        if let Some(kept) = library.kept.get_mut(&cq.addr())
            && room > 0
            && let Some(oldest) = kept.pop_front()
        {
            // SAFETY: the contract of this function.
            unsafe { wc.write(oldest) };
            return Ok(1);
        }
        // SAFETY: the contract of this function.
        let taken = unsafe { take(cq, room, wc) }?;
        for n in 0..taken as usize {
            // SAFETY: the NIC wrote this many.
            library.change(unsafe { &mut *wc.add(n) });
        }
        Ok(taken)
    })
}
