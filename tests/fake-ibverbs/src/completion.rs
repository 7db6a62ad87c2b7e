//! Completion queues, plain and extended.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io::Write as _;

use gdr_verbs_sys::{
    __be32, ibv_comp_channel, ibv_context, ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,
    ibv_create_cq_wc_flags, ibv_event_type, ibv_poll_cq_attr, ibv_wc, ibv_wc_flags, ibv_wc_opcode,
    ibv_wc_status,
};

use crate::answer::{Outcome, number, plain, pointer, status};
use crate::event::{self, Subject};
use crate::handle::Handle;
use crate::wire;
use crate::world::{DeviceId, World};

/// What the flags of `ibv_create_cq_ex` may ask for.
const KNOWN_FLAGS: u64 = 0xfff;

/// How a request ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) status: ibv_wc_status,
    pub(crate) opcode: ibv_wc_opcode,
    pub(crate) vendor_err: u32,
    pub(crate) byte_len: u32,
    pub(crate) immediate: Option<__be32>,
    pub(crate) pair: u32,
    pub(crate) solicited: bool,
    /// Up to which request polling this frees the send queue; none for receives.
    pub(crate) frees: Option<u64>,
}

impl Entry {
    fn flags(&self) -> c_uint {
        self.immediate
            .map_or(0, |_| ibv_wc_flags::IBV_WC_WITH_IMM.0)
    }

    fn plain(&self) -> ibv_wc {
        let mut wc = ibv_wc {
            wr_id: self.wr_id,
            status: self.status,
            opcode: self.opcode,
            vendor_err: self.vendor_err,
            byte_len: self.byte_len,
            qp_num: self.pair,
            wc_flags: self.flags(),
            ..Default::default()
        };
        wc.__bindgen_anon_1.imm_data = self.immediate.unwrap_or(0);
        wc
    }
}

/// Which completions make an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Any,
    Solicited,
}

pub(crate) struct Queue {
    pub(crate) device: DeviceId,
    pub(crate) context: usize,
    pub(crate) object: Handle<ibv_cq_ex>,
    extended: bool,
    capacity: usize,
    entries: VecDeque<Entry>,
    pub(crate) channel: Option<usize>,
    armed: Armed,
    lost: bool,
    polling: bool,
    /// What the functions of an extended queue read.
    current: Option<Entry>,
}

impl World {
    /// Adds a completion to a queue, with what follows from that.
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
        let tells = match found.armed {
            Armed::No => false,
            Armed::Any => true,
            Armed::Solicited => entry.solicited || failed,
        };
        if !tells {
            return;
        }
        found.armed = Armed::No;
        let channel = found
            .channel
            .and_then(|channel| self.channels.get_mut(&channel));
        if let Some(channel) = channel {
            channel.events.push_back(queue);
            // A pipe takes tens of thousands of bytes before it is full.
            let _ = channel.pipe.1.write(&[0]);
        }
    }

    /// Takes a queue's next completion; what it frees is free then.
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

    /// Forgets the completions of a queue pair that is no more.
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
            self.violation(verb, "the channel is none, or was destroyed");
            return Err(libc::EINVAL);
        }
        // SAFETY: numbers, pointers and functions that may be null, and a mutex nobody locks.
        let handle: Handle<ibv_cq_ex> = unsafe { Handle::zeroed() };
        // As mlx5: a power of two, less one.
        let capacity = (cqe as usize + 1).next_power_of_two() - 1;
        // SAFETY: the object is new: nobody else has its address.
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

/// Gives an extended queue the functions that its flags ask for.
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
    pointer(|world| {
        let queue = world.create_queue("ibv_create_cq", context, &wanted, false)?;
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
    // SAFETY: this function's contract.
    let wanted = unsafe { attr.read() };
    pointer(|world| {
        let queue = world.create_queue("ibv_create_cq_ex", context, &wanted, true)?;
        Ok(queue.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    let verb = "ibv_resize_cq";
    status(|world| {
        let id = world.queue(verb, cq.addr())?;
        world.begin(verb, id, format_args!("{cqe} entries"))?;
        let queue = world.queues.get_mut(&cq.addr()).ok_or(libc::EINVAL)?;
        let wanted = usize::try_from(cqe).map_err(|_| libc::EINVAL)?;
        if wanted < queue.entries.len() || wanted == 0 {
            return Err(libc::EINVAL);
        }
        queue.capacity = (wanted + 1).next_power_of_two() - 1;
        // SAFETY: the object is there for ever, and its number is read by nobody meanwhile.
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
    status(|world| {
        let id = world.queue(verb, address)?;
        world.note(verb, id, "")?;
        if world
            .pairs
            .values()
            .any(|pair| pair.send_cq == address || pair.recv_cq == address)
        {
            return Err(libc::EBUSY);
        }
        for channel in world.channels.values_mut() {
            channel.events.retain(|queue| *queue != address);
        }
        world.forget_events(Subject::Queue(address));
        world.unacknowledged.remove(&Subject::Completions(address));
        world.queues.remove(&address);
        Ok(())
    })
}

/// # Safety
///
/// There is room for `room` completions at `wc`.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
    let verb = "ibv_poll_cq";
    number(|world| {
        let address = cq.addr();
        world.queue(verb, address)?;
        if world
            .queues
            .get(&address)
            .is_some_and(|queue| queue.polling)
        {
            world.violation(verb, "the queue is between ibv_start_poll and ibv_end_poll");
            return Err(libc::EINVAL);
        }
        let mut taken = 0;
        while taken < room {
            match world.take(address) {
                Ok(Some(entry)) => {
                    // SAFETY: there is room for it.
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
    status(|world| {
        world.queue(verb, cq.addr())?;
        let queue = world.queues.get_mut(&cq.addr()).ok_or(libc::EINVAL)?;
        queue.armed = match solicited_only {
            0 => Armed::Any,
            _ if queue.armed == Armed::Any => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    })
}

/// Makes the next completion the current one.
fn go_on(world: &mut World, verb: &str, cq: *mut ibv_cq_ex, first: bool) -> Outcome<()> {
    let address = cq.addr();
    world.queue(verb, address)?;
    let queue = world.queues.get_mut(&address).ok_or(libc::EINVAL)?;
    if queue.polling == first || !queue.extended {
        world.violation(verb, "polling is not where this belongs");
        return Err(libc::EINVAL);
    }
    let entry = world.take(address)?.ok_or(libc::ENOENT)?;
    let queue = world.queues.get_mut(&address).ok_or(libc::EINVAL)?;
    queue.polling = true;
    queue.current = Some(entry);
    let object = queue.object.as_ptr();
    // SAFETY: the object is there for ever; who polls it is the only one to read these.
    unsafe {
        (*object).wr_id = entry.wr_id;
        (*object).status = entry.status;
    }
    Ok(())
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    status(|world| go_on(world, "ibv_start_poll", cq, true))
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    status(|world| go_on(world, "ibv_next_poll", cq, false))
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    plain((), |world| {
        let queue = world.queues.get_mut(&cq.addr());
        let was = queue.is_some_and(|queue| std::mem::replace(&mut queue.polling, false));
        if !was {
            world.violation("ibv_end_poll", "nobody polls the queue");
        }
    });
}

/// Reads the current completion.
fn read<T>(cq: *mut ibv_cq_ex, otherwise: T, read: impl FnOnce(&Entry) -> T) -> T {
    plain(None, |world| {
        let queue = world.queues.get(&cq.addr()).filter(|queue| queue.polling);
        let entry = queue.and_then(|queue| queue.current);
        if entry.is_none() {
            world.violation("ibv_wc_read", "there is no current completion");
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
