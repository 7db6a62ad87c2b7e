//! Completion queues, basic and extended.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io::Write as _;

use gdr_verbs_sys::{
    __be32, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_create_cq_wc_flags, ibv_event_type, ibv_poll_cq_attr, ibv_wc, ibv_wc_opcode, ibv_wc_status,
};

use crate::c_abi::{Handle, Outcome};
use crate::event;
use crate::ret::{number, plain, pointer, status};
use crate::state::{Armed, Entry, LibraryState, Queue, Subject};
use crate::wire;

/// The supported flags of `ibv_create_cq_ex`.
const KNOWN_FLAGS: u64 = 0xfff;

impl LibraryState {
    /// Adds a completion to a queue, and raises its events.
    pub(crate) fn complete(&mut self, queue: usize, entry: Entry) {
        let Some(found) = self.queues.get_mut(&queue) else {
            return;
        };
        if found.entries.len() >= found.capacity {
            found.lost = true;
            let id = found.device;
            self.raise(
                id,
                ibv_event_type::IBV_EVENT_CQ_ERR.0,
                Subject::Queue(queue),
            );
            return;
        }
        found.entries.push_back(entry);
        let failed = entry.status != ibv_wc_status::IBV_WC_SUCCESS;
        let notifies = match found.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => entry.solicited || failed,
        };
        if !notifies {
            return;
        }
        found.armed = Armed::No;
        let channel = found
            .channel
            .and_then(|channel| self.channels.get_mut(&channel));
        if let Some(channel) = channel {
            channel.events.push_back(queue);
            // A pipe has room for tens of thousands of bytes.
            let _ = channel.pipe.1.write(&[0]);
        }
    }

    /// Removes the next completion from a queue, and frees its requests.
    fn take(&mut self, queue: usize) -> Outcome<Option<Entry>> {
        wire::advance(self);
        let found = self.queues.get_mut(&queue).ok_or(libc::EINVAL)?;
        let Some(entry) = found.entries.pop_front() else {
            return if found.lost { Err(libc::EIO) } else { Ok(None) };
        };
        if let (Some(upto), Some(pair)) = (entry.frees, self.pairs.get_mut(&entry.pair)) {
            pair.free(upto);
        }
        Ok(Some(entry))
    }

    /// Removes the completions of a destroyed queue pair.
    pub(crate) fn forget_completions(&mut self, pair: u32) {
        for queue in self.queues.values_mut() {
            queue.entries.retain(|entry| entry.pair != pair);
        }
    }

    fn create_queue(
        &mut self,
        verb: &str,
        context: *mut ibv_context,
        wanted: &ibv_cq_init_attr_ex,
        extended: bool,
    ) -> Outcome<Handle<ibv_cq_ex>> {
        let id = self.device_of(verb, context)?;
        let (cqe, flags) = (wanted.cqe, wanted.wc_flags);
        self.begin(verb, id, format_args!("{cqe} entries, flags {flags:#x}"))?;
        if cqe == 0 || cqe > 4_194_303 || wanted.comp_vector != 0 {
            return Err(libc::EINVAL);
        }
        if flags & !KNOWN_FLAGS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        let channel = (!wanted.channel.is_null()).then(|| wanted.channel.addr());
        if channel.is_some_and(|channel| !self.channels.contains_key(&channel)) {
            self.violation(verb, "the channel does not exist or was destroyed");
            return Err(libc::EINVAL);
        }
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let handle: Handle<ibv_cq_ex> = unsafe { Handle::zeroed() };
        // As mlx5: a power of two minus one.
        let capacity = (cqe as usize + 1).next_power_of_two() - 1;
        // SAFETY: the object is new, and its address is not known elsewhere.
        let object = unsafe { &mut *handle.as_ptr() };
        object.context = context;
        object.channel = wanted.channel;
        object.cq_context = wanted.cq_context;
        object.handle = self.number();
        object.cqe = capacity as c_int;
        if extended {
            fill(object, flags);
        }
        let queue = Queue {
            device: id,
            context: context.addr(),
            object: handle,
            extended,
            capacity,
            entries: VecDeque::new(),
            channel,
            armed: Armed::No,
            lost: false,
            polling: false,
            current: None,
        };
        self.queues
            .insert(handle.as_ptr().expose_provenance(), queue);
        Ok(handle)
    }
}

/// Sets the functions of an extended queue according to its flags.
fn fill(queue: &mut ibv_cq_ex, flags: u64) {
    let has = |flag: ibv_create_cq_wc_flags| flags & u64::from(flag.0) != 0;
    queue.start_poll = Some(start_poll);
    queue.next_poll = Some(next_poll);
    queue.end_poll = Some(end_poll);
    queue.read_opcode = Some(read_opcode);
    queue.read_vendor_err = Some(read_vendor_err);
    queue.read_wc_flags = Some(read_wc_flags);
    if has(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN) {
        queue.read_byte_len = Some(read_byte_len);
    }
    if has(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM) {
        queue.read_imm_data = Some(read_imm_data);
    }
    if has(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM) {
        queue.read_qp_num = Some(read_qp_num);
    }
    if has(ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP) {
        queue.read_completion_ts = Some(read_completion_ts);
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    let wanted = ibv_cq_init_attr_ex {
        cqe: u32::try_from(cqe).unwrap_or(0),
        cq_context,
        channel,
        comp_vector: comp_vector as u32,
        ..Default::default()
    };
    pointer(|library| {
        let queue = library.create_queue("ibv_create_cq", context, &wanted, false)?;
        Ok(queue.as_ptr().cast())
    })
}

/// # Safety
///
/// `attr` is readable.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: the contract of this function.
    let wanted = unsafe { attr.read() };
    pointer(|library| {
        let queue = library.create_queue("ibv_create_cq_ex", context, &wanted, true)?;
        Ok(queue.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let verb = "ibv_resize_cq";
    status(|library| {
        let id = library.queue(verb, cq.addr())?;
        library.begin(verb, id, format_args!("{cqe} entries"))?;
        let queue = library.queues.get_mut(&cq.addr()).ok_or(libc::EINVAL)?;
        let wanted = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
        if wanted < queue.entries.len() || wanted == 0 {
            return Err(libc::EINVAL);
        }
        queue.capacity = (wanted + 1).next_power_of_two() - 1;
        // SAFETY: the object is never freed, and the program does not read its size during the call.
        unsafe { (*queue.object.as_ptr()).cqe = queue.capacity as c_int };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    let verb = "ibv_destroy_cq";
    let address = cq.addr();
    event::wait_for_acknowledgement(verb, Subject::Queue(address));
    event::wait_for_acknowledgement(verb, Subject::Completions(address));
    status(|library| {
        let id = library.queue(verb, address)?;
        library.note(verb, id, "")?;
        if library
            .pairs
            .values()
            .any(|pair| pair.send_cq == address || pair.recv_cq == address)
        {
            return Err(libc::EBUSY);
        }
        for channel in library.channels.values_mut() {
            channel.events.retain(|queue| *queue != address);
        }
        library.forget_events(Subject::Queue(address));
        library
            .unacknowledged
            .remove(&Subject::Completions(address));
        library.queues.remove(&address);
        Ok(())
    })
}

/// # Safety
///
/// `wc` has room for `room` completions.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let verb = "ibv_poll_cq";
    number(|library| {
        let address = cq.addr();
        let id = library.queue(verb, address)?;
        library.check_refusals(verb, id)?;
        if library
            .queues
            .get(&address)
            .is_some_and(|queue| queue.polling)
        {
            library.violation(verb, "the queue is between ibv_start_poll and ibv_end_poll");
            return Err(libc::EINVAL);
        }
        let mut taken = 0;
        while taken < room {
            match library.take(address) {
                Ok(Some(entry)) => {
                    // SAFETY: `wc` has room for it.
                    unsafe { wc.add(taken as usize).write(entry.plain()) };
                    taken += 1;
                }
                Err(errno) if taken == 0 => return Err(errno),
                Ok(None) | Err(_) => break,
            }
        }
        Ok(taken)
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    let verb = "ibv_req_notify_cq";
    status(|library| {
        library.queue(verb, cq.addr())?;
        let queue = library.queues.get_mut(&cq.addr()).ok_or(libc::EINVAL)?;
        queue.armed = match solicited_only {
            0 => Armed::Any,
            _ if queue.armed == Armed::Any => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    })
}

/// Advances to the next completion.
fn go_on(library: &mut LibraryState, verb: &str, cq: *mut ibv_cq_ex, first: bool) -> Outcome<()> {
    let address = cq.addr();
    library.queue(verb, address)?;
    let queue = library.queues.get_mut(&address).ok_or(libc::EINVAL)?;
    if queue.polling == first || !queue.extended {
        library.violation(verb, "the call is not allowed in this state of polling");
        return Err(libc::EINVAL);
    }
    let entry = library.take(address)?.ok_or(libc::ENOENT)?;
    let queue = library.queues.get_mut(&address).ok_or(libc::EINVAL)?;
    queue.polling = true;
    queue.current = Some(entry);
    let object = queue.object.as_ptr();
    // SAFETY: the object is never freed; and only the polling thread reads these fields.
    unsafe {
        (*object).wr_id = entry.wr_id;
        (*object).status = entry.status;
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    let verb = "ibv_start_poll";
    status(|library| {
        let id = library.queue(verb, cq.addr())?;
        library.check_refusals(verb, id)?;
        go_on(library, verb, cq, true)
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    status(|library| go_on(library, "ibv_next_poll", cq, false))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    plain((), |library| {
        let queue = library.queues.get_mut(&cq.addr());
        let was = queue.is_some_and(|queue| std::mem::replace(&mut queue.polling, false));
        if !was {
            library.violation("ibv_end_poll", "polling was not started");
        }
    });
}

/// Reads the current completion.
fn read<T>(cq: *mut ibv_cq_ex, otherwise: T, read: impl FnOnce(&Entry) -> T) -> T {
    plain(None, |library| {
        let queue = library.queues.get(&cq.addr()).filter(|queue| queue.polling);
        let entry = queue.and_then(|queue| queue.current);
        if entry.is_none() {
            library.violation("ibv_wc_read", "there is no current completion");
        }
        entry.as_ref().map(read)
    })
    .unwrap_or(otherwise)
}

unsafe extern "C" fn read_opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    read(cq, ibv_wc_opcode(0), |entry| entry.opcode)
}

unsafe extern "C" fn read_vendor_err(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, 0, |entry| entry.vendor_err)
}

unsafe extern "C" fn read_wc_flags(cq: *mut ibv_cq_ex) -> c_uint {
    read(cq, 0, Entry::flags)
}

unsafe extern "C" fn read_byte_len(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, 0, |entry| entry.byte_len)
}

unsafe extern "C" fn read_imm_data(cq: *mut ibv_cq_ex) -> __be32 {
    read(cq, 0, |entry| entry.immediate.unwrap_or(0))
}

unsafe extern "C" fn read_qp_num(cq: *mut ibv_cq_ex) -> u32 {
    read(cq, 0, |entry| entry.pair)
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    read(cq, 0, |entry| entry.wr_id.wrapping_add(1))
}
