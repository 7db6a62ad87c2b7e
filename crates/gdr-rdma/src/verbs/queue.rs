//! Completion queues of the kernel.

use std::collections::{HashMap, VecDeque};
use std::mem::{self, MaybeUninit};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use gdr_roce::{Completion, Immediate, Qpn, WcOpcode, WcStatus};
use gdr_verbs_sys::{
    Errno, Notify, Polled, VerbError, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_ex_to_cq,
    ibv_cq_init_attr_ex, ibv_create_cq_ex, ibv_create_cq_wc_flags, ibv_end_poll, ibv_poll_cq,
    ibv_req_notify_cq, ibv_start_poll, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_read_byte_len,
    ibv_wc_read_imm_data, ibv_wc_read_opcode, ibv_wc_read_qp_num, ibv_wc_read_wc_flags,
    ibv_wc_status,
};
use smallvec::SmallVec;

use super::context::{Context, nonblocking, sleep_on};
use super::error::VerbsError;
use super::held::Held;
use crate::deadline::Deadline;

/// Completions that are taken at a time.
const BATCH: usize = 16;

/// What is read from a completion of an extended queue, besides what every one has.
const READ: [ibv_create_cq_wc_flags; 3] = [
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN,
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM,
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM,
];

/// How long a waiter polls before it sleeps.
const AWAKE: Duration = Duration::from_micros(50);

/// A completion queue, made when it is first needed.
#[derive(Debug)]
pub(crate) struct Queue {
    context: Arc<Context>,
    capacity: usize,
    made: OnceLock<Result<Raw, VerbError>>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    queue: Form,
    channel: NonNull<ibv_comp_channel>,
}

/// An extended queue where the device has such, else a plain one. The two are read differently.
#[derive(Clone, Copy, Debug)]
enum Form {
    Extended(NonNull<ibv_cq_ex>),
    Plain(NonNull<ibv_cq>),
}

impl Form {
    /// As what every other verb takes.
    fn plain(self) -> *mut ibv_cq {
        match self {
            Self::Extended(queue) => ibv_cq_ex_to_cq(queue).as_ptr(),
            Self::Plain(queue) => queue.as_ptr(),
        }
    }
}

// SAFETY: as for `Context`.
unsafe impl Send for Raw {}
// SAFETY: as for `Context`.
unsafe impl Sync for Raw {}

#[derive(Debug, Default)]
struct State {
    /// What was taken and not yet given out.
    taken: VecDeque<Completion>,
    /// What the queue pairs that complete here have posted.
    pairs: HashMap<u32, Arc<Held>>,
}

impl Queue {
    pub(crate) fn new(context: &Arc<Context>, capacity: usize) -> Self {
        Self {
            context: Arc::clone(context),
            capacity,
            made: OnceLock::new(),
            state: Mutex::new(State::default()),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is ever half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn raw(&self) -> Result<*mut ibv_cq, VerbsError> {
        Ok(self.make()?.queue.plain())
    }

    fn make(&self) -> Result<Raw, VerbsError> {
        let made = self.made.get_or_init(|| {
            let (verbs, context) = (self.context.verbs(), self.context.raw());
            let entries = i32::try_from(self.capacity.max(1)).unwrap_or(i32::MAX);
            // SAFETY: the context is open, and this holds it; the channel outlives the queue; the
            // attributes are numbers and pointers, which may be null.
            unsafe {
                let channel = verbs.ibv_create_comp_channel(context)?;
                let mut attr = ibv_cq_init_attr_ex {
                    cqe: entries.unsigned_abs(),
                    channel: channel.as_ptr(),
                    wc_flags: u64::from(READ.iter().fold(0, |all, flag| all | flag.0)),
                    ..mem::zeroed()
                };
                let queue = match ibv_create_cq_ex(context, &mut attr) {
                    Ok(queue) => Ok(Form::Extended(queue)),
                    Err(error) if !is_of_the_form(error) => Err(error),
                    Err(error) => {
                        tracing::debug!(%error, "a plain completion queue");
                        let channel = channel.as_ptr();
                        let made =
                            verbs.ibv_create_cq(context, entries, ptr::null_mut(), channel, 0);
                        made.map(Form::Plain)
                    }
                };
                match queue {
                    Ok(queue) => Ok(Raw { queue, channel }),
                    Err(error) => {
                        // The first error is the one to tell.
                        let _ = verbs.ibv_destroy_comp_channel(channel.as_ptr());
                        Err(error)
                    }
                }
            }
        });
        match made {
            Ok(raw) => {
                nonblocking(channel_fd(raw))?;
                Ok(*raw)
            }
            Err(error) => Err(self.context.failed(*error)),
        }
    }

    /// Completions of this queue pair are told here from now on.
    pub(super) fn enter(&self, qpn: u32, held: &Arc<Held>) {
        self.lock().pairs.insert(qpn, Arc::clone(held));
    }

    /// The queue pair is destroyed.
    pub(super) fn leave(&self, qpn: u32) {
        self.lock().pairs.remove(&qpn);
    }

    /// The next completion, if there is one.
    pub(crate) fn poll(&self) -> Result<Option<Completion>, VerbsError> {
        let Some(Ok(raw)) = self.made.get() else {
            // Nothing completes where no queue pair is.
            return Ok(None);
        };
        let mut state = self.lock();
        if let Some(completion) = state.taken.pop_front() {
            return Ok(Some(completion));
        }
        let found = match raw.queue {
            // SAFETY: the queue is alive, and the lock keeps others from polling it.
            Form::Extended(queue) => unsafe { read_extended(queue.as_ptr()) },
            // SAFETY: the queue is alive, and plain.
            Form::Plain(queue) => unsafe { read_plain(queue.as_ptr()) },
        }
        .map_err(|error| self.context.failed(error))?;
        let State { taken, pairs } = &mut *state;
        let new = taken.len();
        taken.extend(found.iter().filter_map(|found| translate(found, pairs)));
        if taken.range(new..).any(brought_bytes) {
            // They are told of when they are there.
            self.context.flushes().run()?;
        }
        Ok(taken.pop_front())
    }

    /// Waits for the next completion; `None` when the deadline passes.
    pub(crate) fn wait(&self, deadline: Deadline) -> Result<Option<Completion>, VerbsError> {
        let raw = self.make()?;
        let asleep_from = Instant::now() + AWAKE;
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            if Instant::now() < asleep_from {
                std::hint::spin_loop();
                continue;
            }
            // SAFETY: the queue is alive.
            unsafe { ibv_req_notify_cq(raw.queue.plain(), Notify::Next) }
                .map_err(|error| self.context.failed(error))?;
            // What came before the request makes no event.
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            sleep_on(channel_fd(&raw), deadline);
            self.take_channel(&raw);
            self.context.take_events();
            if self.context.is_gone() {
                // What the device told before it failed comes first.
                return match self.poll()? {
                    Some(completion) => Ok(Some(completion)),
                    None => Err(VerbsError::DeviceGone {
                        device: self.context.name().to_owned(),
                    }),
                };
            }
        }
    }

    /// Empties the channel: each event is acknowledged once.
    fn take_channel(&self, raw: &Raw) {
        let verbs = self.context.verbs();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and does not wait; its events are of this queue alone.
        unsafe {
            while verbs
                .ibv_get_cq_event(raw.channel.as_ptr(), &mut queue, &mut context)
                .is_ok()
            {
                verbs.ibv_ack_cq_events(queue, 1);
            }
        }
    }
}

/// Whether a queue or a queue pair was refused for its extended form, which the device does not
/// have or not in this way: a plain one may do.
pub(super) fn is_of_the_form(error: VerbError) -> bool {
    matches!(
        error.errno(),
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL
    )
}

fn channel_fd(raw: &Raw) -> BorrowedFd<'_> {
    // SAFETY: the channel is alive as long as the queue that the borrow is of.
    unsafe { BorrowedFd::borrow_raw(raw.channel.as_ref().fd) }
}

impl Drop for Queue {
    fn drop(&mut self) {
        let Some(Ok(raw)) = self.made.get() else {
            return;
        };
        let verbs = self.context.verbs();
        // SAFETY: queue pairs hold their queues, so that none is left; the channel goes after the
        // queue that uses it.
        let results = unsafe {
            [
                verbs.ibv_destroy_cq(raw.queue.plain()),
                verbs.ibv_destroy_comp_channel(raw.channel.as_ptr()),
            ]
        };
        for error in results.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a completion queue is not given back");
        }
    }
}

/// A completion as a queue tells it.
#[derive(Clone, Copy, Debug)]
struct Found {
    number: u64,
    pair: u32,
    status: ibv_wc_status,
    /// The rest means something for successes alone.
    opcode: ibv_wc_opcode,
    byte_len: u32,
    immediate: Option<Immediate>,
}

type Batch = SmallVec<[Found; BATCH]>;

/// What a plain queue has.
///
/// # Safety
/// The queue is alive, and plain.
unsafe fn read_plain(queue: *mut ibv_cq) -> Result<Batch, VerbError> {
    let mut room = [MaybeUninit::<ibv_wc>::uninit(); BATCH];
    // SAFETY: the caller's promise.
    let found = unsafe { ibv_poll_cq(queue, &mut room) }?;
    let read = |wc: &ibv_wc| Found {
        number: wc.wr_id,
        pair: wc.qp_num,
        status: wc.status,
        opcode: wc.opcode,
        byte_len: wc.byte_len,
        immediate: if has_immediate(wc.wc_flags) {
            // SAFETY: the flag says that the union holds an immediate.
            Some(Immediate(u32::from_be(unsafe {
                wc.__bindgen_anon_1.imm_data
            })))
        } else {
            None
        },
    };
    Ok(found.iter().map(read).collect())
}

/// What an extended queue has, each completion polled by itself: rxe's library, of rdma-core 44 at
/// least, loses the one behind those that `ibv_next_poll` found to be the last.
///
/// # Safety
/// The queue is alive, made with [`READ`], and nobody else polls it.
unsafe fn read_extended(queue: *mut ibv_cq_ex) -> Result<Batch, VerbError> {
    let mut found = Batch::new();
    while found.len() < BATCH {
        // SAFETY: the caller's promise.
        match unsafe { read_next(queue) } {
            Ok(Some(next)) => found.push(next),
            Ok(None) => break,
            // Those before it are told first.
            Err(error) if !found.is_empty() => {
                tracing::warn!(%error, "a completion queue fails");
                break;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The next completion of an extended queue.
///
/// # Safety
/// As [`read_extended`].
unsafe fn read_next(queue: *mut ibv_cq_ex) -> Result<Option<Found>, VerbError> {
    // SAFETY: the caller's promise; polling ends below.
    if unsafe { ibv_start_poll(queue) }? == Polled::Empty {
        return Ok(None);
    }
    // SAFETY: a completion is there, and the queue is being polled until it was read.
    let (current, ended) = unsafe { (read_current(queue), ibv_end_poll(queue)) };
    ended?;
    current.map(Some)
}

/// # Safety
/// The last step of polling found a completion.
unsafe fn read_current(queue: *mut ibv_cq_ex) -> Result<Found, VerbError> {
    // SAFETY: the caller's promise; the queue was made with the flags for these.
    unsafe {
        let mut found = Found {
            number: (*queue).wr_id,
            pair: ibv_wc_read_qp_num(queue)?,
            status: (*queue).status,
            opcode: ibv_wc_opcode::IBV_WC_SEND,
            byte_len: 0,
            immediate: None,
        };
        if found.status == ibv_wc_status::IBV_WC_SUCCESS {
            found.opcode = ibv_wc_read_opcode(queue)?;
            found.byte_len = ibv_wc_read_byte_len(queue)?;
            if has_immediate(ibv_wc_read_wc_flags(queue)?) {
                let immediate = ibv_wc_read_imm_data(queue)?;
                found.immediate = Some(Immediate(u32::from_be(immediate)));
            }
        }
        Ok(found)
    }
}

fn has_immediate(flags: u32) -> bool {
    flags & ibv_wc_flags::IBV_WC_WITH_IMM.0 != 0
}

/// A completion in this crate's words; `None` for a queue pair that is gone.
fn translate(found: &Found, pairs: &HashMap<u32, Arc<Held>>) -> Option<Completion> {
    let ended = pairs.get(&found.pair)?.end(found.number)?;
    let status = status(found.status);
    let success = status == WcStatus::Success;
    let receive = ended.opcode.is_receive();
    let by_write = success && found.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    Some(Completion {
        id: ended.id,
        status,
        opcode: if by_write {
            WcOpcode::RecvWriteImmediate
        } else {
            ended.opcode
        },
        byte_len: match (success, receive) {
            (false, _) => 0,
            (true, true) => found.byte_len,
            (true, false) => ended.len,
        },
        immediate: found.immediate.filter(|_| success && receive),
        solicited: false,
        qpn: Qpn::new(found.pair),
    })
}

/// Whether bytes came here that a completion tells of.
fn brought_bytes(completion: &Completion) -> bool {
    let here = completion.opcode.is_receive()
        || matches!(
            completion.opcode,
            WcOpcode::Read | WcOpcode::FetchAdd | WcOpcode::CompareSwap
        );
    here && completion.status == WcStatus::Success
}

/// A status; one that has no word here is a failure of the peer or of the device.
fn status(status: ibv_wc_status) -> WcStatus {
    match status {
        ibv_wc_status::IBV_WC_SUCCESS => WcStatus::Success,
        ibv_wc_status::IBV_WC_LOC_LEN_ERR => WcStatus::LocalLength,
        ibv_wc_status::IBV_WC_LOC_PROT_ERR | ibv_wc_status::IBV_WC_LOC_ACCESS_ERR => {
            WcStatus::LocalProtection
        }
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => WcStatus::WrFlushed,
        ibv_wc_status::IBV_WC_BAD_RESP_ERR => WcStatus::BadResponse,
        ibv_wc_status::IBV_WC_REM_INV_REQ_ERR => WcStatus::RemoteInvalidRequest,
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => WcStatus::RemoteAccess,
        ibv_wc_status::IBV_WC_REM_OP_ERR => WcStatus::RemoteOperation,
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => WcStatus::RetryExceeded,
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::RnrRetryExceeded,
        other => {
            tracing::warn!(status = other.0, "a completion of an unknown status");
            WcStatus::LocalOperation
        }
    }
}
