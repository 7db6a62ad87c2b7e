//! Completion queues of kernel devices.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use gdr_roce::{Completion, Immediate, Qpn, WcOpcode, WcStatus};
use gdr_verbs_sys::{
    Notify, VerbError, ibv_comp_channel, ibv_cq, ibv_poll_cq, ibv_req_notify_cq, ibv_wc,
    ibv_wc_flags, ibv_wc_opcode, ibv_wc_status,
};

use super::context::{Context, nonblocking, sleep_on};
use super::outstanding::OutstandingRequests;
use crate::error::{Result, VerbsError};
use crate::provider::{CompletionQueueOps, DeviceOps};
use crate::types::CqNumber;
use gdr_nic::Deadline;
use gdr_process::lock::lock;

/// Maximum number of completions per poll.
const BATCH: usize = 16;

/// How long a waiter polls before it sleeps.
const BUSY_POLL: Duration = Duration::from_micros(50);

/// A completion queue, created when first needed.
#[derive(Debug)]
pub(super) struct VerbsCompletionQueue {
    context: Arc<Context>,
    number: CqNumber,
    capacity: usize,
    created: OnceLock<std::result::Result<Raw, VerbError>>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug)]
struct Raw {
    queue: NonNull<ibv_cq>,
    channel: NonNull<ibv_comp_channel>,
}

// SAFETY: as for `Context`.
unsafe impl Send for Raw {}
// SAFETY: as for `Context`.
unsafe impl Sync for Raw {}

#[derive(Debug, Default)]
struct State {
    /// Completions that were polled but not yet returned.
    polled: VecDeque<Completion>,
    /// Bytes of the polled completions may not be visible in GPU memory yet.
    unflushed: bool,
    /// The outstanding requests of the queue pairs that complete here, by QPN.
    qps: QueuePairTable,
}

/// Outstanding requests of queue pairs, ordered by QPN. Every completion is looked up here, usually among few queue
/// pairs, where searching a list is faster than searching a tree.
#[derive(Debug, Default)]
struct QueuePairTable(Vec<(u32, Arc<OutstandingRequests>)>);

impl QueuePairTable {
    fn find(&self, qpn: u32) -> std::result::Result<usize, usize> {
        self.0.binary_search_by_key(&qpn, |(number, _)| *number)
    }

    #[inline]
    fn get(&self, qpn: u32) -> Option<&OutstandingRequests> {
        let index = self.find(qpn).ok()?;
        self.0.get(index).map(|(_, requests)| &**requests)
    }

    /// Adds a queue pair, in place of another one of this number.
    fn insert(&mut self, qpn: u32, requests: &Arc<OutstandingRequests>) {
        let entry = (qpn, Arc::clone(requests));
        match self.find(qpn) {
            Ok(index) => self.0[index] = entry,
            Err(index) => self.0.insert(index, entry),
        }
    }

    fn remove(&mut self, qpn: u32) {
        if let Ok(index) = self.find(qpn) {
            self.0.remove(index);
        }
    }
}

impl VerbsCompletionQueue {
    pub(super) fn new(context: Arc<Context>, capacity: usize) -> Self {
        Self {
            context,
            number: CqNumber::new(),
            capacity,
            created: OnceLock::new(),
            state: Mutex::new(State::default()),
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> std::result::Result<*mut ibv_cq, VerbsError> {
        Ok(self.create()?.queue.as_ptr())
    }

    fn create(&self) -> std::result::Result<Raw, VerbsError> {
        let created = self.created.get_or_init(|| {
            let (verbs, context) = (self.context.verbs(), self.context.raw());
            let entries = i32::try_from(self.capacity.max(1)).unwrap_or(i32::MAX);
            // SAFETY: the context is open, and this holds it; the channel outlives the queue.
            unsafe {
                let channel = verbs.ibv_create_comp_channel(context)?;
                match verbs.ibv_create_cq(context, entries, ptr::null_mut(), channel.as_ptr(), 0) {
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
        lock(&self.state).qps.insert(qpn, requests);
    }

    /// Removes a queue pair that is about to be destroyed. Its further completions are dropped.
    pub(super) fn remove_qp(&self, qpn: u32) {
        lock(&self.state).qps.remove(qpn);
    }

    /// Polls the queue. Returns the first completion, unless a flush must precede it, and keeps the others in `state`.
    ///
    /// # Safety
    /// The queue is alive.
    unsafe fn read(
        &self,
        queue: NonNull<ibv_cq>,
        state: &mut State,
    ) -> std::result::Result<Option<Completion>, VerbError> {
        let mut room = [MaybeUninit::<ibv_wc>::uninit(); BATCH];
        // SAFETY: the caller's promise.
        let polled = unsafe { ibv_poll_cq(queue.as_ptr(), &mut room) }?;
        let Some((wc, others)) = polled.split_first() else {
            return Ok(None);
        };
        // Completions of destroyed queue pairs are dropped.
        let mut first = translate(wc, &state.qps);
        // The common case, which counts towards message latency: one completion, for the caller.
        if let Some(completion) = &first
            && brought_bytes(completion)
            && !self.context.flushes().is_empty()
        {
            state.polled.extend(first.take());
            state.unflushed = true;
        }
        if !others.is_empty() {
            for completion in others.iter().filter_map(|wc| translate(wc, &state.qps)) {
                state.unflushed |= brought_bytes(&completion);
                state.polled.push_back(completion);
            }
        }
        Ok(first)
    }

    /// Returns the first polled completion, after a flush if bytes arrived with it. If the flush fails, the completion
    /// is kept, and the next call flushes again.
    fn next(&self, state: &mut State) -> std::result::Result<Option<Completion>, VerbsError> {
        if state.unflushed && state.polled.front().is_some_and(brought_bytes) {
            self.context.flushes().run().map_err(VerbsError::Flush)?;
            state.unflushed = false;
        }
        Ok(state.polled.pop_front())
    }

    /// Reads the events of the channel, and each must be acknowledged.
    fn drain_channel(&self, raw: &Raw) {
        let verbs = self.context.verbs();
        let (mut queue, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel is alive and non-blocking, and its events belong only to this queue.
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
    fn number(&self) -> CqNumber {
        self.number
    }

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
            // SAFETY: the queue is alive.
            let first = unsafe { self.read(raw.queue, &mut state) };
            let first = first.map_err(|error| self.context.failed(error))?;
            if first.is_some() || state.polled.is_empty() {
                return Ok(first);
            }
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
            unsafe { ibv_req_notify_cq(raw.queue.as_ptr(), Notify::Next) }
                .map_err(|error| self.context.failed(error))?;
            // Completions that arrived before the request raise no event.
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
                verbs.ibv_destroy_cq(raw.queue.as_ptr()),
                verbs.ibv_destroy_comp_channel(raw.channel.as_ptr()),
            ]
        };
        for error in results.into_iter().filter_map(std::result::Result::err) {
            tracing::warn!(%error, "a completion queue is not destroyed");
        }
    }
}

/// Translates a completion; returns `None` for a destroyed queue pair.
#[inline]
fn translate(wc: &ibv_wc, qps: &QueuePairTable) -> Option<Completion> {
    let posted = qps.get(wc.qp_num)?.complete(wc.wr_id)?;
    let receive = posted.opcode.is_receive();
    if wc.status == ibv_wc_status::IBV_WC_SUCCESS && !receive {
        return Some(Completion {
            id: posted.id,
            status: WcStatus::Success,
            opcode: posted.opcode,
            byte_len: posted.len,
            immediate: None,
            invalidated: None,
            time: None,
            solicited: false,
            qpn: Qpn::new(wc.qp_num),
            source_qpn: None,
            has_network_header: false,
            ip_checksum_ok: false,
        });
    }
    let status = status(wc.status);
    let success = status == WcStatus::Success;
    let by_write = success && wc.opcode == ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    let has = |flag: ibv_wc_flags| success && receive && wc.wc_flags & flag.0 != 0;
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
            (true, true) => wc.byte_len,
            (true, false) => posted.len,
        },
        immediate: if has(ibv_wc_flags::IBV_WC_WITH_IMM) {
            // SAFETY: the flag says that the union holds an immediate.
            Some(Immediate(u32::from_be(unsafe {
                wc.__bindgen_anon_1.imm_data
            })))
        } else {
            None
        },
        invalidated: None,
        time: None,
        solicited: false,
        qpn: Qpn::new(wc.qp_num),
        source_qpn: None,
        has_network_header: has(ibv_wc_flags::IBV_WC_GRH),
        ip_checksum_ok: false,
    })
}

/// Returns whether bytes arrived with a completion.
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
