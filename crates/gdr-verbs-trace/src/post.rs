//! Posting: what requests move, by operation and kind of memory.

use std::ffi::c_int;
use std::{ptr, slice};

use gdr_trace::layout::{CELLS, cell};
use gdr_trace::{MemoryKind, Operation};
use gdr_verbs_sys::{
    ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode as Opcode,
};

use crate::context::Context;
use crate::library::Missing;
use crate::nesting::quietly;
use crate::queue_pair::QueuePair;
use crate::receive_kinds::ReceiveKinds;
use crate::region::kind_of;

/// What some requests move.
struct Tally {
    /// Operations and bytes.
    cells: [(u64, u64); CELLS],
    /// The cells that are not 0, one bit each.
    used: u32,
    requests: u64,
}

/// The most requests of one chain that are looked at: a list that does not end does not stop the
/// program here.
const LONGEST_CHAIN: u64 = 1 << 20;

impl Tally {
    const fn new() -> Self {
        Self {
            cells: [(0, 0); CELLS],
            used: 0,
            requests: 0,
        }
    }

    #[inline]
    fn add(&mut self, operation: Operation, kind: MemoryKind, operations: u64, bytes: u64) {
        let number = cell(operation, kind);
        if let Some(sums) = self.cells.get_mut(number) {
            sums.0 += operations;
            sums.1 += bytes;
            self.used |= 1 << number;
        }
    }

    /// Adds what the requests from `wr` up to `end` move.
    ///
    /// # Safety
    /// `wr` is a list of requests.
    #[inline]
    unsafe fn add_chain(
        &mut self,
        context: &Context,
        mut wr: *mut ibv_send_wr,
        end: *mut ibv_send_wr,
    ) {
        while !wr.is_null() && wr != end && self.requests < LONGEST_CHAIN {
            // SAFETY: a request of the list.
            let request = unsafe { &*wr };
            self.requests += 1;
            if let Some(operation) = operation_of(request.opcode) {
                // SAFETY: the request has as many entries as it says.
                let list = unsafe { entries(request.sg_list, request.num_sge) };
                let flags = ibv_send_flags(request.send_flags);
                if flags.contains(ibv_send_flags::IBV_SEND_INLINE) {
                    let bytes = list.iter().map(|sge| u64::from(sge.length)).sum();
                    self.add(operation, MemoryKind::Inline, 1, bytes);
                } else {
                    self.add_segments(context, operation, list);
                }
            }
            wr = request.next;
        }
    }

    /// Adds a request: its bytes by the memory of each segment, and itself by that of the largest.
    #[inline]
    fn add_segments(&mut self, context: &Context, operation: Operation, list: &[ibv_sge]) {
        match list {
            [] => self.add(operation, MemoryKind::Inline, 1, 0),
            [only] => {
                let kind = kind_of(context, only.lkey);
                self.add(operation, kind, 1, only.length.into());
            }
            several => {
                for sge in several {
                    let kind = kind_of(context, sge.lkey);
                    self.add(operation, kind, 0, sge.length.into());
                }
                self.add(operation, largest(context, several), 1, 0);
            }
        }
    }

    /// Adds it to the counts of a queue pair.
    #[inline]
    fn commit(&self, context: &Context, pair: &QueuePair) {
        let (row, mut left) = (pair.row(), self.used);
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some((operations, bytes)) = self.cells.get(number) {
                context
                    .recorder
                    .add_traffic(row, number, *operations, *bytes);
            }
        }
    }
}

/// The operation of a request; `None` if it moves nothing.
#[inline]
fn operation_of(opcode: Opcode) -> Option<Operation> {
    Some(match opcode {
        Opcode::IBV_WR_RDMA_WRITE
        | Opcode::IBV_WR_RDMA_WRITE_WITH_IMM
        | Opcode::IBV_WR_ATOMIC_WRITE => Operation::Write,
        Opcode::IBV_WR_SEND
        | Opcode::IBV_WR_SEND_WITH_IMM
        | Opcode::IBV_WR_SEND_WITH_INV
        | Opcode::IBV_WR_TSO => Operation::Send,
        Opcode::IBV_WR_RDMA_READ => Operation::Read,
        Opcode::IBV_WR_ATOMIC_CMP_AND_SWP | Opcode::IBV_WR_ATOMIC_FETCH_AND_ADD => {
            Operation::Atomic
        }
        _ => return None,
    })
}

/// The scatter/gather list of a request.
///
/// # Safety
/// `list` has `count` entries.
#[inline]
pub(crate) unsafe fn entries<'a>(list: *const ibv_sge, count: c_int) -> &'a [ibv_sge] {
    match usize::try_from(count) {
        // SAFETY: the contract of this function.
        Ok(count) if count > 0 && !list.is_null() => unsafe { slice::from_raw_parts(list, count) },
        _ => &[],
    }
}

/// The memory of the largest segment.
pub(crate) fn largest(context: &Context, list: &[ibv_sge]) -> MemoryKind {
    let largest = list.iter().max_by_key(|sge| sge.length);
    largest.map_or(MemoryKind::Inline, |sge| kind_of(context, sge.lkey))
}

/// # Safety
/// That of `ibv_post_send`.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    let mut tally = Tally::new();
    // Before the call: behind it the regions may be deregistered.
    let counted = quietly(|| {
        // SAFETY: the caller's queue pair.
        let pair = unsafe { QueuePair::of(qp) }?;
        let context = pair.context()?;
        // SAFETY: the caller's requests.
        unsafe { tally.add_chain(context, wr, ptr::null_mut()) };
        Some((pair, context))
    });
    let counted = counted.flatten();
    let known = counted.map(|(_, context)| context);
    // SAFETY: the caller's queue pair.
    let Some(context) = known.or_else(|| Context::of(unsafe { (*qp).context })) else {
        return Missing::missing();
    };
    let Some(real) = context.real.basic.post_send else {
        return Missing::missing();
    };
    // SAFETY: the caller's arguments.
    let result = unsafe { real(qp, wr, bad_wr) };
    if let Some((pair, _)) = counted {
        quietly(|| {
            if result == 0 {
                tally.commit(context, pair);
            } else {
                let mut accepted = Tally::new();
                // SAFETY: the library has named the first request that it refused.
                unsafe { accepted.add_chain(context, wr, *bad_wr) };
                accepted.commit(context, pair);
                context
                    .recorder
                    .add_refused(pair.row(), tally.requests - accepted.requests);
            }
        });
    }
    result
}

/// # Safety
/// That of `ibv_post_recv`.
pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's queue pair.
    let Some(context) = Context::of(unsafe { (*qp).context }) else {
        return Missing::missing();
    };
    let Some(real) = context.real.basic.post_recv else {
        return Missing::missing();
    };
    // SAFETY: the caller's queue pair.
    let pair = quietly(|| unsafe { QueuePair::of(qp) }).flatten();
    let ring = pair.and_then(QueuePair::receives);
    // SAFETY: the caller's arguments.
    unsafe { posted_receives(context, ring, wr, bad_wr, || real(qp, wr, bad_wr)) }
}

/// Posts receives in the library behind, and keeps the kinds of their memory.
///
/// # Safety
/// `wr` is a list of requests, which `call` posts.
pub(crate) unsafe fn posted_receives(
    context: &Context,
    ring: Option<&ReceiveKinds>,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    call: impl FnOnce() -> c_int,
) -> c_int {
    let Some(ring) = ring else {
        return call();
    };
    // Before the call: a receive may complete before it returns.
    quietly(|| {
        // SAFETY: the caller's requests.
        unsafe { each_receive(wr, |list| ring.push(largest(context, list))) };
    });
    let result = call();
    if result != 0 {
        let mut refused = 0;
        // SAFETY: the library has named the first request that it refused, of the same list.
        unsafe { each_receive(*bad_wr, |_| refused += 1) };
        ring.unpush(refused);
    }
    result
}

/// Calls `visit` with the segments of each request.
///
/// # Safety
/// `wr` is null or a list of requests.
unsafe fn each_receive(mut wr: *mut ibv_recv_wr, mut visit: impl FnMut(&[ibv_sge])) {
    let mut seen = 0;
    while !wr.is_null() && seen < LONGEST_CHAIN {
        // SAFETY: a request of the list.
        let request = unsafe { &*wr };
        // SAFETY: the request has as many entries as it says.
        visit(unsafe { entries(request.sg_list, request.num_sge) });
        wr = request.next;
        seen += 1;
    }
}
