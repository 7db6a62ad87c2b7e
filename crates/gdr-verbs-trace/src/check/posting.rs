//! Converts requests from C structures.

use std::ffi::c_uint;
use std::sync::MutexGuard;

use gdr_check::{Object, Operation, Receive, Segment, Send, Signal, StackId};
use gdr_verbs_sys::{
    ibv_qp, ibv_qp_ex, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_srq,
    ibv_wr_opcode as Opcode,
};

use super::memory::OwnMemory;
use super::stack::Caller;
use super::{CheckerState, FIRST, object, state};
use crate::post::{LONGEST_CHAIN, entries};

/// A request of the extended interface.
pub(super) struct Built {
    id: u64,
    signal: Signal,
    operation: Operation,
    segments: Vec<Segment>,
}

/// A post that the shadow has recorded and the real library may still refuse. Holds the lock until it is dropped.
#[must_use]
pub(crate) struct Posting {
    state: MutexGuard<'static, CheckerState>,
    queue: Queue,
    /// Addresses of the requests.
    posted: Vec<usize>,
}

#[derive(Clone, Copy)]
enum Queue {
    Sends(Object),
    Receives(Object),
    Shared(Object),
}

impl Posting {
    /// Ends the post. The library accepted the requests before the one with this address, or all of them.
    pub(crate) fn end(mut self, first_refused: Option<usize>) {
        let refused = first_refused.map_or(0, |first| {
            let accepted = self.posted.iter().position(|it| *it == first);
            self.posted.len() - accepted.unwrap_or(self.posted.len())
        });
        let shadow = &mut self.state.shadow;
        match self.queue {
            Queue::Sends(pair) => {
                shadow.sends_refused(pair, refused);
                shadow.sends_accepted(pair);
            }
            Queue::Receives(pair) => shadow.receives_posted(pair, refused),
            Queue::Shared(srq) => shadow.shared_receives_posted(srq, refused),
        }
        self.state.flush();
    }
}

fn operation_of(opcode: Opcode, flags: ibv_send_flags) -> Operation {
    match opcode {
        Opcode::IBV_WR_RDMA_READ
        | Opcode::IBV_WR_ATOMIC_CMP_AND_SWP
        | Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => Operation::Scatters,
        Opcode::IBV_WR_RDMA_WRITE
        | Opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        | Opcode::IBV_WR_SEND
        | Opcode::IBV_WR_SEND_WITH_IMM
        | Opcode::IBV_WR_SEND_WITH_INV => match flags.contains(ibv_send_flags::IBV_SEND_INLINE) {
            true => Operation::Inline,
            false => Operation::Gathers,
        },
        _ => Operation::Other,
    }
}

fn signal_of(flags: c_uint) -> Signal {
    match ibv_send_flags(flags).contains(ibv_send_flags::IBV_SEND_SIGNALED) {
        true => Signal::Signaled,
        false => Signal::Unsignaled,
    }
}

fn segment(sge: &ibv_sge) -> Segment {
    Segment {
        address: sge.addr,
        len: sge.length,
        lkey: sge.lkey,
    }
}

/// Returns the state, for requests to a queue pair that this process has.
///
/// # Safety
/// `qp` is valid.
unsafe fn state_for(
    qp: *mut ibv_qp,
    caller: Caller,
) -> Option<(MutexGuard<'static, CheckerState>, StackId)> {
    let mut state = state()?;
    let stack = state.stacks.of(caller);
    if !state.shadow.knows(object(qp)) {
        if FIRST.get().is_some_and(|first| !first.is_current_fast()) {
            // SAFETY: the contract of this function.
            let number = unsafe { (*qp).qp_num };
            state.shadow.used_after_fork(number, stack);
            state.flush();
        } else {
            // SAFETY: as above.
            let context = object(unsafe { (*qp).context });
            state.shadow.unknown_pair_used(context);
        }
        return None;
    }
    Some((state, stack))
}

/// Sends are about to be posted, each of at most `most` segments.
///
/// # Safety
/// As for `ibv_post_send`.
#[inline]
pub(crate) unsafe fn sends(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    most: u32,
    caller: Caller,
) -> Option<Posting> {
    // SAFETY: the contract of this function.
    let (mut state, stack) = unsafe { state_for(qp, caller) }?;
    let (pair, mut posted, mut list) = (object(qp), Vec::new(), Vec::new());
    let memory = OwnMemory::default();
    while !wr.is_null() && (posted.len() as u64) < LONGEST_CHAIN {
        // SAFETY: `wr` is a request of the caller's list.
        let request = unsafe { &*wr };
        let operation = operation_of(request.opcode, ibv_send_flags(request.send_flags));
        // SAFETY: `sg_list` has `num_sge` entries.
        let entries = unsafe { entries(request.sg_list, request.num_sge, most) };
        list.clear();
        list.extend(entries.iter().map(segment));
        let send = Send {
            id: request.wr_id,
            operation,
            signal: signal_of(request.send_flags),
            segments: &list,
            stack,
        };
        state.shadow.sending(pair, &send, &memory);
        posted.push(wr.addr());
        wr = request.next;
    }
    Some(Posting {
        state,
        queue: Queue::Sends(pair),
        posted,
    })
}

/// Records receives that are about to be posted, each with at most `most` segments.
///
/// # Safety
/// As for `ibv_post_recv`.
pub(crate) unsafe fn receives(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    most: u32,
    caller: Caller,
) -> Option<Posting> {
    // SAFETY: the contract of this function.
    let (state, stack) = unsafe { state_for(qp, caller) }?;
    // SAFETY: as above.
    Some(unsafe { all_receives(state, Queue::Receives(object(qp)), (wr, most), stack) })
}

/// Like [`receives`], to a shared receive queue.
///
/// # Safety
/// As for `ibv_post_srq_recv`.
pub(crate) unsafe fn shared_receives(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    most: u32,
    caller: Caller,
) -> Option<Posting> {
    let mut state = state()?;
    let stack = state.stacks.of(caller);
    // SAFETY: the contract of this function.
    Some(unsafe { all_receives(state, Queue::Shared(object(srq)), (wr, most), stack) })
}

/// # Safety
/// The list is a post's.
unsafe fn all_receives(
    mut state: MutexGuard<'static, CheckerState>,
    queue: Queue,
    (mut wr, most): (*mut ibv_recv_wr, u32),
    stack: StackId,
) -> Posting {
    let (mut posted, mut list) = (Vec::new(), Vec::new());
    let memory = OwnMemory::default();
    while !wr.is_null() && (posted.len() as u64) < LONGEST_CHAIN {
        // SAFETY: `wr` is a request of the caller's list.
        let request = unsafe { &*wr };
        // SAFETY: `sg_list` has `num_sge` entries.
        let entries = unsafe { entries(request.sg_list, request.num_sge, most) };
        list.clear();
        list.extend(entries.iter().map(segment));
        let receive = Receive {
            id: request.wr_id,
            segments: &list,
            stack,
        };
        match queue {
            Queue::Shared(srq) => state.shadow.receiving_shared(srq, &receive, &memory),
            Queue::Sends(pair) | Queue::Receives(pair) => {
                state.shadow.receiving(pair, &receive, &memory);
            }
        }
        posted.push(wr.addr());
        wr = request.next;
    }
    Posting {
        state,
        queue,
        posted,
    }
}

/// Starts a batch of the extended interface, or gives it up.
pub(crate) fn start(qp: *mut ibv_qp_ex) {
    if let Some(mut state) = state() {
        state.building.remove(&object(qp));
    }
}

/// Begins a request of the extended interface.
///
/// # Safety
/// `qp` is valid.
pub(crate) unsafe fn begin(qp: *mut ibv_qp_ex, operation: Operation) {
    let Some(mut state) = state() else {
        return;
    };
    // SAFETY: the contract of this function.
    let (id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    state.building.entry(object(qp)).or_default().push(Built {
        id,
        signal: signal_of(flags),
        operation,
        segments: Vec::new(),
    });
}

/// Adds segments to the last request.
pub(crate) fn segments(qp: *mut ibv_qp_ex, list: &[ibv_sge]) {
    if let Some(mut state) = state()
        && let Some(last) = state
            .building
            .get_mut(&object(qp))
            .and_then(|it| it.last_mut())
    {
        last.segments = list.iter().map(segment).collect();
    }
}

/// Records that the last request's data were copied.
pub(crate) fn inline(qp: *mut ibv_qp_ex) {
    if let Some(mut state) = state()
        && let Some(last) = state
            .building
            .get_mut(&object(qp))
            .and_then(|it| it.last_mut())
    {
        last.operation = Operation::Inline;
    }
}

/// Returns the posting of the requests that were built and are about to be posted. Their library accepts all of them,
/// or none.
///
/// # Safety
/// `qp` is valid.
pub(crate) unsafe fn built(qp: *mut ibv_qp_ex, caller: Caller) -> Option<Posting> {
    // SAFETY: the contract of this function.
    let (mut state, stack) = unsafe { state_for(qp.cast(), caller) }?;
    let (pair, requests) = (object(qp), state.building.remove(&object(qp))?);
    let memory = OwnMemory::default();
    for request in &requests {
        let send = Send {
            id: request.id,
            operation: request.operation,
            signal: request.signal,
            segments: &request.segments,
            stack,
        };
        state.shadow.sending(pair, &send, &memory);
    }
    Some(Posting {
        state,
        queue: Queue::Sends(pair),
        posted: (0..requests.len()).collect(),
    })
}
