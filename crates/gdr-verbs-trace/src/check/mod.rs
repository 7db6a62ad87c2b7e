//! `gdr check`: passes what the program does to a shadow of its objects.
//!
//! The rules are in gdr-check, which knows nothing of C. Without `GDR_CHECK_FOLDER`, the functions here only test one
//! flag.
//!
//! A post holds the shadow's lock until the real library has accepted it, because another thread may poll its
//! completion at once. The shadow gets a completion before the program does. Thus the shadow sees events in an order
//! that the program can observe.

mod memory;
mod posting;
mod report;
mod stack;

use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::mem;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::thread;
use std::time::Duration;

use gdr_check::{
    Completion, NewQueuePair, NewRegion, Object, Service, Shadow, Signal, StackId, State,
};
use gdr_process::lock::{lock, try_lock};
use gdr_process::{PerProcess, ProcessId};
use gdr_verbs_sys::{
    ibv_comp_channel, ibv_context, ibv_cq, ibv_mr, ibv_qp, ibv_qp_attr, ibv_qp_attr_mask,
    ibv_qp_cap, ibv_qp_type, ibv_srq, ibv_wc_opcode,
};

pub(crate) use gdr_check::Operation;

pub(crate) use self::posting::{
    Posting, begin, built, inline, receives, segments, sends, shared_receives, start,
};
pub(crate) use self::stack::Caller;

use self::memory::{OwnMemory, is_readable};
use self::report::ReportFile;
use self::stack::Stacks;

/// Names the folder for findings.
const FOLDER: &str = "GDR_CHECK_FOLDER";

/// Whether this process or its parent has opened a device that is checked.
static IS_ON: AtomicBool = AtomicBool::new(false);
/// Whether a completion queue has a channel, so that polls without a completion matter.
static HAS_CHANNELS: AtomicBool = AtomicBool::new(false);
/// The process that opened the first device.
static FIRST: OnceLock<ProcessId> = OnceLock::new();

/// What is known about this process.
struct Checker {
    state: Mutex<CheckerState>,
}

struct CheckerState {
    shadow: Shadow,
    stacks: Stacks,
    report: ReportFile,
    /// Completion queues of each channel.
    channels: HashMap<Object, Vec<Object>>,
    /// Requests of the extended interface that are being built.
    building: HashMap<Object, Vec<posting::Built>>,
}

/// Returns whether anything is checked.
#[inline]
pub(crate) fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

fn folder() -> Option<PathBuf> {
    let folder = gdr_process::variable(FOLDER)?;
    (!folder.is_empty()).then(|| folder.into())
}

/// Returns the checker of this process; a forked child begins one of its own.
fn checker() -> Option<&'static Checker> {
    static CURRENT: PerProcess<OnceLock<Option<Checker>>> = PerProcess::new();
    let made = CURRENT.get_fast().get_or_init(|| {
        Some(Checker {
            state: Mutex::new(CheckerState {
                shadow: Shadow::default(),
                stacks: Stacks::default(),
                report: ReportFile::new(folder()?),
                channels: HashMap::new(),
                building: HashMap::new(),
            }),
        })
    });
    made.as_ref()
}

/// Returns the state, where anything is checked.
fn state() -> Option<MutexGuard<'static, CheckerState>> {
    if !is_on() {
        return None;
    }
    Some(lock(&checker()?.state))
}

impl CheckerState {
    /// Writes the new findings. The shadow has one finding per place, so this is rare.
    fn flush(&mut self) {
        if self.shadow.has_findings() {
            for finding in self.shadow.take_findings() {
                self.report.write(&finding, &self.stacks);
            }
        }
    }

    fn here(&mut self) -> StackId {
        self.stacks.here()
    }
}

pub(crate) fn object<T>(pointer: *const T) -> Object {
    Object(pointer.addr() as u64)
}

/// A device was opened.
pub(crate) fn opened() {
    if is_on() || folder().is_none() {
        return;
    }
    if FIRST.set(ProcessId::current()).is_err() {
        return;
    }
    Stacks::warm_up();
    // SAFETY: the function is in this library, which is preloaded and never unloaded.
    unsafe { libc::atexit(at_exit) };
    IS_ON.store(true, Ordering::Release);
    watch();
}

extern "C" fn at_exit() {
    if !FIRST.get().is_some_and(ProcessId::is_current) {
        return;
    }
    // Another thread may hold the lock while the process ends.
    if let Some(checker) = checker()
        && let Some(mut state) = try_lock(&checker.state)
    {
        state.shadow.ending();
        state.flush();
    }
}

/// Starts a thread that looks for requests without progress, and that handles no signals.
fn watch() {
    const TICK: Duration = Duration::from_secs(1);
    let mut all = mem::MaybeUninit::uninit();
    let mut before = mem::MaybeUninit::uninit();
    // SAFETY: both masks are writable, and the first is initialized before it is read.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
    }
    // Without the thread, only a note is lost.
    let _ = thread::Builder::new()
        .name("gdr-check".to_owned())
        .spawn(|| {
            loop {
                thread::sleep(TICK);
                if let Some(mut state) = state() {
                    state.shadow.tick();
                    state.flush();
                }
            }
        });
    // SAFETY: the call above has written this mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
}

/// A region, as the rules see it.
pub(crate) struct Described {
    /// The first address that requests name.
    pub(crate) first: u64,
    pub(crate) len: u64,
    /// Its address in this process, if it is host memory.
    pub(crate) address: Option<u64>,
    pub(crate) access: c_uint,
}

pub(crate) fn registered(region: &ibv_mr, mr: *mut ibv_mr, described: &Described) {
    let Some(mut state) = state() else {
        return;
    };
    let readable = described
        .address
        .filter(|address| is_readable(*address, described.len));
    let stack = state.here();
    state.shadow.registered(NewRegion {
        context: object(region.context),
        object: object(mr),
        lkey: region.lkey,
        first: described.first,
        len: described.len,
        offset: readable.map(|address| address.wrapping_sub(described.first)),
        access: described.access,
        stack,
    });
}

pub(crate) fn registered_again(mr: *mut ibv_mr) {
    if let Some(mut state) = state() {
        state.shadow.forget_region(object(mr));
    }
}

pub(crate) fn deregistering(mr: *mut ibv_mr) -> Option<StackId> {
    let mut state = state()?;
    let stack = state.here();
    state.shadow.deregistering(object(mr), stack);
    state.flush();
    Some(stack)
}

pub(crate) fn deregistered(mr: *mut ibv_mr, stack: Option<StackId>) {
    if let (Some(stack), Some(mut state)) = (stack, state()) {
        state.shadow.deregistered(object(mr), stack);
    }
}

/// A device was closed.
pub(crate) fn closed(context: *mut ibv_context) {
    if let Some(mut state) = state() {
        state.shadow.closed(object(context));
    }
}

/// # Safety
/// `qp` is a new queue pair.
pub(crate) unsafe fn pair_created(qp: *mut ibv_qp, cap: &ibv_qp_cap, signal: Signal) {
    let Some(mut state) = state() else {
        return;
    };
    // SAFETY: the contract of this function.
    let pair = unsafe { &*qp };
    state.shadow.pair_created(NewQueuePair {
        context: object(pair.context),
        object: object(qp),
        number: pair.qp_num,
        service: match pair.qp_type {
            ibv_qp_type::IBV_QPT_UD => Service::Datagram,
            _ => Service::Connected,
        },
        send_cq: object(pair.send_cq),
        receive_cq: object(pair.recv_cq),
        srq: (!pair.srq.is_null()).then(|| object(pair.srq)),
        max_sends: cap.max_send_wr,
        max_receives: cap.max_recv_wr,
        default_signal: signal,
    });
    state.building.remove(&object(qp));
}

pub(crate) fn pair_destroyed(qp: *mut ibv_qp) {
    if let Some(mut state) = state() {
        state.shadow.pair_destroyed(object(qp));
    }
}

/// Records that the library has accepted these attributes.
pub(crate) fn pair_modified(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: c_int) {
    let Some(mut state) = state() else {
        return;
    };
    let (qp, has) = (object(qp), |bit: ibv_qp_attr_mask| {
        mask as c_uint & bit.0 != 0
    });
    if has(ibv_qp_attr_mask::IBV_QP_ACCESS_FLAGS) {
        state.shadow.access_set(qp, attr.qp_access_flags);
    }
    if has(ibv_qp_attr_mask::IBV_QP_TIMEOUT) {
        state.shadow.timeout_set(qp, attr.timeout);
    }
    if has(ibv_qp_attr_mask::IBV_QP_RNR_RETRY) {
        state.shadow.rnr_retry_set(qp, attr.rnr_retry);
    }
    if has(ibv_qp_attr_mask::IBV_QP_STATE)
        && let Some(new) = State::from_raw(attr.qp_state.0)
    {
        state.shadow.moved(qp, new);
    }
}

pub(crate) fn shared_queue_created(srq: *mut ibv_srq, room: u32) {
    if let Some(mut state) = state() {
        state.shadow.shared_queue_created(object(srq), room);
    }
}

pub(crate) fn shared_queue_modified(srq: *mut ibv_srq) {
    if let Some(mut state) = state() {
        state.shadow.shared_queue_modified(object(srq));
    }
}

pub(crate) fn shared_queue_destroyed(srq: *mut ibv_srq) {
    if let Some(mut state) = state() {
        state.shadow.shared_queue_destroyed(object(srq));
    }
}

/// Records a completion queue that was created or resized.
///
/// # Safety
/// `cq` is valid.
pub(crate) unsafe fn queue_changed(cq: *mut ibv_cq) {
    let Some(mut state) = state() else {
        return;
    };
    // SAFETY: the contract of this function.
    let queue = unsafe { &*cq };
    let size = u32::try_from(queue.cqe).unwrap_or(u32::MAX);
    state.shadow.queue_created(object(cq), size);
    if !queue.channel.is_null() {
        HAS_CHANNELS.store(true, Ordering::Relaxed);
        let queues = state.channels.entry(object(queue.channel)).or_default();
        if !queues.contains(&object(cq)) {
            queues.push(object(cq));
        }
    }
}

pub(crate) fn queue_destroying(cq: *mut ibv_cq) {
    if let Some(mut state) = state() {
        let stack = state.here();
        state.shadow.queue_destroying(object(cq), stack);
        state.flush();
    }
}

pub(crate) fn queue_destroyed(cq: *mut ibv_cq) {
    if let Some(mut state) = state() {
        state.shadow.queue_destroyed(object(cq));
        for queues in state.channels.values_mut() {
            queues.retain(|it| *it != object(cq));
        }
    }
}

pub(crate) fn armed(cq: *mut ibv_cq) {
    if let Some(mut state) = state() {
        let stack = state.here();
        state.shadow.armed(object(cq), stack);
    }
}

/// Records that the program is about to wait for an event.
///
/// # Safety
/// The channel is open.
pub(crate) unsafe fn waiting(channel: *mut ibv_comp_channel) {
    let Some(mut state) = state() else {
        return;
    };
    // SAFETY: the contract of this function; the call reads flags of the descriptor.
    let flags = unsafe { libc::fcntl((*channel).fd, libc::F_GETFL) };
    // On a nonblocking descriptor, the program only checks for an event.
    if flags < 0 || flags & libc::O_NONBLOCK != 0 {
        return;
    }
    let stack = state.here();
    if let Some(queues) = state.channels.get(&object(channel)).cloned() {
        state.shadow.waiting(&queues, stack);
        state.flush();
    }
}

pub(crate) fn event_taken(cq: *mut ibv_cq) {
    if let Some(mut state) = state() {
        let stack = state.here();
        state.shadow.event_taken(object(cq), stack);
    }
}

pub(crate) fn events_acknowledged(cq: *mut ibv_cq, count: c_uint) {
    if let Some(mut state) = state() {
        state.shadow.events_acknowledged(object(cq), count);
    }
}

/// A poll found nothing.
pub(crate) fn polled_nothing(cq: *mut ibv_cq) {
    if HAS_CHANNELS.load(Ordering::Relaxed)
        && let Some(mut state) = state()
    {
        state.shadow.polled(object(cq));
    }
}

/// A completion that the program is about to get.
pub(crate) struct Polled {
    pub(crate) id: u64,
    pub(crate) status: u32,
    pub(crate) qpn: Option<u32>,
    /// Not set if the status is an error.
    pub(crate) opcode: Option<ibv_wc_opcode>,
}

/// Records completions that the program is about to get.
pub(crate) fn polled(
    context: *mut ibv_context,
    cq: *mut ibv_cq,
    completions: impl Iterator<Item = Polled>,
) {
    let Some(mut state) = state() else {
        return;
    };
    let place = (object(context), object(cq));
    state.shadow.polled(place.1);
    let CheckerState { shadow, stacks, .. } = &mut *state;
    let stacks = std::cell::RefCell::new(stacks);
    let memory = OwnMemory::default();
    for polled in completions {
        let Some(qpn) = polled.qpn else {
            continue;
        };
        let completion = Completion {
            id: polled.id,
            qpn,
            status: polled.status,
            // All opcodes of receives have this bit.
            is_receive: polled
                .opcode
                .map(|it| it.0 & ibv_wc_opcode::IBV_WC_RECV.0 != 0),
        };
        shadow.completed(place, &completion, &memory, || stacks.borrow_mut().here());
    }
    state.flush();
}
