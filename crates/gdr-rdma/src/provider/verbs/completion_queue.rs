//! Completion queues of kernel devices.

use std::collections::{BTreeMap, VecDeque};
use std::mem::{self, MaybeUninit};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gdr_roce::{Completion, Immediate, Qpn, WcOpcode, WcStatus};
use gdr_verbs_sys::{
    Errno, Notify, Polled, VerbError, ibv_comp_channel, ibv_cq, ibv_cq_ex, ibv_cq_ex_to_cq,
    ibv_cq_init_attr_ex, ibv_create_cq_ex, ibv_create_cq_wc_flags, ibv_end_poll, ibv_poll_cq,
    ibv_req_notify_cq, ibv_start_poll, ibv_wc, ibv_wc_flags, ibv_wc_opcode, ibv_wc_read_byte_len,
    ibv_wc_read_imm_data, ibv_wc_read_opcode, ibv_wc_read_qp_num, ibv_wc_read_wc_flags,
    ibv_wc_status,
};

use super::context::{Context, nonblocking, sleep_on};
use super::outstanding::OutstandingRequests;
use crate::deadline::Deadline;
use crate::error::{Result, VerbsError};
use crate::lock::lock;
use crate::provider::flush_list::FlushList;
use crate::provider::{CompletionQueueOps, DeviceOps};

/// How many completions are polled at a time, at most.
const BATCH: usize = 16;

/// What is read from a completion of an extended queue, besides what each has.
const READ: [ibv_create_cq_wc_flags; 3] = [
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN,
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM,
    ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM,
];

/// How long a waiter polls before it sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// A completion queue, which is created when it is first needed.
#[derive(Debug)]
pub(super) struct VerbsCompletionQueue {
    context: Arc<Context>,
    capacity: usize,
    created: OnceLock<std::result::Result<Raw, VerbError>>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    queue: Form,
    channel: NonNull<ibv_comp_channel>,
}

/// An extended queue if the device has them, else a plain one. The two are read differently.
#[derive(Clone, Copy, Debug)]
enum Form {
    Extended(NonNull<ibv_cq_ex>),
    Plain(NonNull<ibv_cq>),
}

impl Form {
    /// The queue as every other verb takes it.
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
    /// Completions that were polled and not yet returned.
    polled: VecDeque<Completion>,
    /// Bytes of the polled completions may not be visible in GPU memory yet.
    unflushed: bool,
    /// The outstanding requests of the queue pairs that complete here, by QPN.
    qps: BTreeMap<u32, Arc<OutstandingRequests>>,
}

impl State {
    /// Adds a completion that was polled, unless its queue pair is destroyed.
    fn add(&mut self, found: &Found) {
        if let Some(completion) = translate(found, &self.qps) {
            self.unflushed |= brought_bytes(&completion);
            self.polled.push_back(completion);
        }
    }
}

impl VerbsCompletionQueue {
    pub(super) fn new(context: Arc<Context>, capacity: usize) -> Self {
        Self {
            context,
            capacity,
            created: OnceLock::new(),
            state: Mutex::new(State::default()),
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> std::result::Result<*mut ibv_cq, VerbsError> {
        Ok(self.create()?.queue.plain())
    }

    fn create(&self) -> std::result::Result<Raw, VerbsError> {
        let created = self.created.get_or_init(|| {
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
                    Err(error) if !is_unsupported(error) => Err(error),
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
                        // The first error is the one to return.
                        let _ = verbs.ibv_destroy_comp_channel(channel.as_ptr());
                        Err(error)
                    }
                }
            }
        });
        match created {
            Ok(raw) => {
                nonblocking(channel_fd(raw))?;
                Ok(*raw)
            }
            Err(error) => Err(self.context.failed(*error)),
        }
    }

    /// Adds a queue pair, whose completions are returned from now on.
    pub(super) fn add_qp(&self, qpn: u32, requests: &Arc<OutstandingRequests>) {
        lock(&self.state).qps.insert(qpn, Arc::clone(requests));
    }

    /// Removes a queue pair, which is about to be destroyed; its further completions are dropped.
    pub(super) fn remove_qp(&self, qpn: u32) {
        lock(&self.state).qps.remove(&qpn);
    }

    /// Returns the first polled completion, after a flush if bytes arrived with it. If the flush
    /// fails, the completion stays, and the next call flushes again.
    fn next(&self, state: &mut State) -> std::result::Result<Option<Completion>, VerbsError> {
        if state.unflushed && state.polled.front().is_some_and(brought_bytes) {
            self.context.flushes().run().map_err(VerbsError::Flush)?;
            state.unflushed = false;
        }
        Ok(state.polled.pop_front())
    }

    /// Reads the events of the channel, each of which must be acknowledged.
    fn drain_channel(&self, raw: &Raw) {
        let verbs = self.context.verbs();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and non-blocking; its events are only of this queue.
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

impl CompletionQueueOps for VerbsCompletionQueue {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn poll(&self) -> Result<Option<Completion>> {
        self.context.check_process()?;
        let Some(Ok(raw)) = self.created.get() else {
            // There is no queue pair that could complete a request.
            return Ok(None);
        };
        let mut state = lock(&self.state);
        if state.polled.is_empty() {
            let read = match raw.queue {
                // SAFETY: the queue is alive, and the lock keeps others from polling it.
                Form::Extended(queue) => unsafe {
                    read_extended(queue.as_ptr(), &mut state, self.context.flushes())
                },
                // SAFETY: the queue is alive, and plain.
                Form::Plain(queue) => unsafe { read_plain(queue.as_ptr(), &mut state) },
            };
            read.map_err(|error| self.context.failed(error))?;
        }
        Ok(self.next(&mut state)?)
    }

    fn wait(&self, deadline: Deadline) -> Result<Option<Completion>> {
        self.context.check_process()?;
        let raw = self.create()?;
        let sleep_after = Instant::now() + BUSY_POLL;
        loop {
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            if deadline.has_passed() {
                return Ok(None);
            }
            if Instant::now() < sleep_after {
                std::hint::spin_loop();
                continue;
            }
            // SAFETY: the queue is alive.
            unsafe { ibv_req_notify_cq(raw.queue.plain(), Notify::Next) }
                .map_err(|error| self.context.failed(error))?;
            // Completions that arrived before the request cause no event.
            if let Some(completion) = self.poll()? {
                return Ok(Some(completion));
            }
            sleep_on(channel_fd(&raw), deadline);
            self.drain_channel(&raw);
            self.context.take_events();
            if self.context.is_gone() {
                // Completions from before the failure come first.
                return match self.poll()? {
                    Some(completion) => Ok(Some(completion)),
                    None => Err(VerbsError::DeviceGone {
                        device: self.context.name().to_owned(),
                    }
                    .into()),
                };
            }
        }
    }
}

/// Whether an extended queue or queue pair failed because the device does not support it: a plain
/// one may work.
pub(super) fn is_unsupported(error: VerbError) -> bool {
    matches!(
        error.errno(),
        Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL
    )
}

fn channel_fd(raw: &Raw) -> BorrowedFd<'_> {
    // SAFETY: the channel is alive as long as the queue that is borrowed.
    unsafe { BorrowedFd::borrow_raw(raw.channel.as_ref().fd) }
}

impl Drop for VerbsCompletionQueue {
    fn drop(&mut self) {
        let Some(Ok(raw)) = self.created.get() else {
            return;
        };
        if !self.context.may_destroy() {
            return;
        }
        let verbs = self.context.verbs();
        // SAFETY: queue pairs hold their queues, so there are none left; the channel is destroyed
        // after the queue that uses it.
        let results = unsafe {
            [
                verbs.ibv_destroy_cq(raw.queue.plain()),
                verbs.ibv_destroy_comp_channel(raw.channel.as_ptr()),
            ]
        };
        for error in results.into_iter().filter_map(std::result::Result::err) {
            tracing::warn!(%error, "a completion queue is not destroyed");
        }
    }
}

/// A completion as a queue reports it.
#[derive(Clone, Copy, Debug)]
struct Found {
    number: u64,
    qpn: u32,
    status: ibv_wc_status,
    /// The rest is valid only for successes.
    opcode: ibv_wc_opcode,
    byte_len: u32,
    immediate: Option<Immediate>,
}

/// Polls a plain queue.
///
/// # Safety
/// The queue is alive, and plain.
unsafe fn read_plain(queue: *mut ibv_cq, state: &mut State) -> std::result::Result<(), VerbError> {
    let mut room = [MaybeUninit::<ibv_wc>::uninit(); BATCH];
    // SAFETY: the caller's promise.
    for wc in unsafe { ibv_poll_cq(queue, &mut room) }? {
        state.add(&Found {
            number: wc.wr_id,
            qpn: wc.qp_num,
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
        });
    }
    Ok(())
}

/// Polls an extended queue, one completion at a time: rxe's library, in rdma-core 44 at least, loses
/// the completion after the one that `ibv_next_poll` reported to be the last.
///
/// More than one is polled only where a flush has to follow, which serves all of them: looking
/// for a second one would delay the first.
///
/// # Safety
/// The queue is alive, was created with [`READ`], and no other thread polls it.
unsafe fn read_extended(
    queue: *mut ibv_cq_ex,
    state: &mut State,
    flushes: &FlushList,
) -> std::result::Result<(), VerbError> {
    while state.polled.len() < BATCH {
        // SAFETY: the caller's promise.
        match unsafe { read_next(queue) } {
            Ok(Some(found)) => state.add(&found),
            Ok(None) => break,
            // The completions before the error are returned first.
            Err(error) if !state.polled.is_empty() => {
                tracing::warn!(%error, "a completion queue fails");
                break;
            }
            Err(error) => return Err(error),
        }
        let is_flush_needed = state.unflushed && !flushes.is_empty();
        if !state.polled.is_empty() && !is_flush_needed {
            break;
        }
    }
    Ok(())
}

/// The next completion of an extended queue.
///
/// # Safety
/// As [`read_extended`].
unsafe fn read_next(queue: *mut ibv_cq_ex) -> std::result::Result<Option<Found>, VerbError> {
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
unsafe fn read_current(queue: *mut ibv_cq_ex) -> std::result::Result<Found, VerbError> {
    // SAFETY: the caller's promise; the queue was made with the flags for these.
    unsafe {
        let mut found = Found {
            number: (*queue).wr_id,
            qpn: ibv_wc_read_qp_num(queue)?,
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

/// Translates a completion; `None` for one of a destroyed queue pair.
fn translate(found: &Found, qps: &BTreeMap<u32, Arc<OutstandingRequests>>) -> Option<Completion> {
    let posted = qps.get(&found.qpn)?.complete(found.number)?;
    let status = status(found.status);
    let success = status == WcStatus::Success;
    let receive = posted.opcode.is_receive();
    let by_write = success && found.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    Some(Completion {
        id: posted.id,
        status,
        opcode: if by_write {
            WcOpcode::RecvWriteImmediate
        } else {
            posted.opcode
        },
        byte_len: match (success, receive) {
            (false, _) => 0,
            (true, true) => found.byte_len,
            (true, false) => posted.len,
        },
        immediate: found.immediate.filter(|_| success && receive),
        solicited: false,
        qpn: Qpn::new(found.qpn),
        source_qpn: None,
        ip_checksum_ok: false,
    })
}

/// Whether bytes arrived with a completion.
fn brought_bytes(completion: &Completion) -> bool {
    let here = completion.opcode.is_receive()
        || matches!(
            completion.opcode,
            WcOpcode::Read | WcOpcode::FetchAdd | WcOpcode::CompareSwap
        );
    here && completion.status == WcStatus::Success
}

/// Translates a status; an unknown one counts as a failure of the device.
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
            tracing::warn!(status = other.0, "a completion with an unknown status");
            WcStatus::LocalOperation
        }
    }
}
