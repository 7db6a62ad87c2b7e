//! Posting: counts what requests move, by operation and kind of memory.

use std::ffi::c_int;
use std::slice;

use gdr_trace::layout::{CELLS, cell};
use gdr_trace::{MemoryKind, Operation};
use gdr_verbs_sys::{
    ibv_qp, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge, ibv_wr_opcode as Opcode,
};

use crate::check::{self, Caller, Posting};
use crate::context::Context;
use crate::library::missing;
use crate::nesting::keep_quiet;
use crate::queue_pair::{Queue, QueuePair};
use crate::receive_kinds::{Posting as KindsPosting, ReceiveKinds};
use crate::region::kind_of;

/// What some requests move.
struct Tally {
    /// Operations and bytes.
    cells: [(u64, u64); CELLS],
    /// Cells other than 0, one bit each.
    used: u32,
    requests: u64,
}

/// Maximum number of requests to visit in a chain, so that an endless list does not stop the program here.
pub(crate) const LONGEST_CHAIN: u64 = 1 << 20;

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

    /// Adds what the requests from `wr` up to `end` move, each with at most `segments` segments.
    ///
    /// # Safety
    /// The real library has accepted these requests in the call that goes on.
    #[inline]
    unsafe fn add_chain(
        &mut self,
        context: &Context,
        segments: u32,
        mut wr: *mut ibv_send_wr,
        end: *mut ibv_send_wr,
    ) {
        while !wr.is_null() && wr != end && self.requests < LONGEST_CHAIN {
            // SAFETY: `wr` is a request of the caller's list.
            let request = unsafe { &*wr };
            self.requests += 1;
            if let Some(operation) = operation_of(request.opcode) {
                // SAFETY: `sg_list` has `num_sge` entries.
                let list = unsafe { entries(request.sg_list, request.num_sge, segments) };
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

    /// Adds a request: its bytes by the memory of each segment, and the request itself by the memory of the largest
    /// segment.
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

/// Returns the operation of a request; `None` if it moves nothing.
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

/// Returns the scatter/gather list of a request. A list with more than `most` segments counts as empty: the real
/// library accepts it only for operations that do not read it.
///
/// # Safety
/// `list` has `count` entries, if these are not more than `most`.
#[inline]
pub(crate) unsafe fn entries<'a>(list: *const ibv_sge, count: c_int, most: u32) -> &'a [ibv_sge] {
    match u32::try_from(count) {
        Ok(count) if (1..=most).contains(&count) && !list.is_null() => {
            // SAFETY: the contract of this function.
            unsafe { slice::from_raw_parts(list, count as usize) }
        }
        _ => &[],
    }
}

/// Returns the memory of the largest segment.
pub(crate) fn largest(context: &Context, list: &[ibv_sge]) -> MemoryKind {
    let largest = list.iter().max_by_key(|sge| sge.length);
    largest.map_or(MemoryKind::Inline, |sge| kind_of(context, sge.lkey))
}

/// Fails as a post does that accepts nothing.
///
/// # Safety
/// `bad_wr` is null or writable.
pub(crate) unsafe fn refuse<T>(wr: *mut T, bad_wr: *mut *mut T) -> c_int {
    if !bad_wr.is_null() {
        // SAFETY: the contract of this function.
        unsafe { bad_wr.write(wr) };
    }
    missing::error_number()
}

/// Requests of a list that a post accepted.
#[derive(Clone, Copy)]
enum Accepted<T> {
    All,
    /// The requests before this one, which is in the list.
    Until(*mut T),
    None,
}

impl<T> Accepted<T> {
    /// Returns the address of the first request that was refused.
    fn first_refused(&self, list: *mut T) -> Option<usize> {
        match self {
            Self::All => None,
            Self::Until(bad) => Some(bad.addr()),
            Self::None => Some(list.addr()),
        }
    }
}

/// Posts in the real library; returns its result, and what it accepted.
///
/// The program's variable for the first refused request may hold anything, and a library need not set it. The library
/// therefore gets a variable in which a change is visible.
///
/// # Safety
/// `bad_wr` is null or writable; `call` posts with the place that it gets, or null.
unsafe fn post<T>(
    bad_wr: *mut *mut T,
    call: impl FnOnce(*mut *mut T) -> c_int,
) -> (c_int, Accepted<T>) {
    let mut bad: *mut T = std::ptr::null_mut();
    // No request is here.
    let unset = (&raw mut bad).cast::<T>();
    bad = unset;
    let result = match bad_wr.is_null() {
        true => call(bad_wr),
        false => call(&mut bad),
    };
    let is_set = bad != unset;
    if is_set {
        // SAFETY: not null by contract, because the library got a place to write to.
        unsafe { bad_wr.write(bad) };
    }
    let accepted = match result {
        0 => Accepted::All,
        _ if is_set && !bad.is_null() => Accepted::Until(bad),
        _ => Accepted::None,
    };
    (result, accepted)
}

/// Defines a function for a C table that passes on its arguments together with its call site. It jumps, so that the
/// frame before `$with_caller`'s is the caller's.
macro_rules! with_caller {
    (3 $(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*) => $with_caller:ident) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "mov rcx, [rsp]",
                "lea r8, [rsp + 8]",
                "jmp {with_caller}",
                with_caller = sym $with_caller,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "mov x3, x30",
                "mov x4, sp",
                "b {with_caller}",
                with_caller = sym $with_caller,
            );
        }
    };
    (1 $(#[$about:meta])* $name:ident($($argument:ident: $type:ty),*) => $with_caller:ident) => {
        $(#[$about])*
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
            #[cfg(target_arch = "x86_64")]
            core::arch::naked_asm!(
                "mov rsi, [rsp]",
                "lea rdx, [rsp + 8]",
                "jmp {with_caller}",
                with_caller = sym $with_caller,
            );
            #[cfg(target_arch = "aarch64")]
            core::arch::naked_asm!(
                "mov x1, x30",
                "mov x2, sp",
                "b {with_caller}",
                with_caller = sym $with_caller,
            );
        }
    };
}
pub(crate) use with_caller;

with_caller! { 3
    /// # Safety
    /// As for `ibv_post_send`.
    post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) => post_send_from
}

with_caller! { 3
    /// # Safety
    /// As for `ibv_post_recv`.
    post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) => post_recv_from
}

/// Posts, and counts the accepted requests.
///
/// Reads the list only after the call, up to the last accepted request, because a refused request may name unmapped
/// memory. The list belongs to the caller until this returns.
///
/// # Safety
/// As for `ibv_post_send`.
unsafe extern "C" fn post_send_from(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
    caller: Caller,
) -> c_int {
    let pair = QueuePair::known(qp);
    let known = pair.and_then(QueuePair::context);
    // SAFETY: the caller's queue pair.
    let context = known.or_else(|| Context::behind(unsafe { (*qp).context }));
    let Some(real) = context.and_then(|it| it.real.basic.post_send) else {
        // SAFETY: the caller's arguments.
        return unsafe { refuse(wr, bad_wr) };
    };
    let most = pair.map_or(0, |pair| pair.most_segments(Queue::Send));
    // SAFETY: the caller's arguments.
    let posting = keep_quiet(|| unsafe { check::sends(qp, wr, most, caller) }).flatten();
    // SAFETY: the caller's arguments.
    let (result, accepted) = unsafe { post(bad_wr, |bad_wr| real(qp, wr, bad_wr)) };
    if let Some(posting) = posting {
        keep_quiet(|| posting.end(accepted.first_refused(wr)));
    }
    keep_quiet(|| {
        let end = match accepted {
            Accepted::All => std::ptr::null_mut(),
            Accepted::Until(bad) => bad,
            Accepted::None => wr,
        };
        let pair = match pair {
            Some(pair) => pair,
            // SAFETY: the library has accepted requests for the queue pair, so it is valid.
            None if result == 0 => unsafe { QueuePair::of(qp) }?,
            None => return None,
        };
        let context = pair.context()?;
        let mut tally = Tally::new();
        // SAFETY: the library has accepted the requests up to this one.
        unsafe { tally.add_chain(context, pair.most_segments(Queue::Send), wr, end) };
        tally.commit(context, pair);
        if result != 0 {
            context.recorder.add_refused(pair.row(), 1);
        }
        Some(())
    });
    result
}

/// # Safety
/// As for `ibv_post_recv`.
unsafe extern "C" fn post_recv_from(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    caller: Caller,
) -> c_int {
    let pair = QueuePair::known(qp);
    let known = pair.and_then(QueuePair::context);
    // SAFETY: the caller's queue pair.
    let context = known.or_else(|| Context::behind(unsafe { (*qp).context }));
    let Some((context, real)) = context.and_then(|it| Some((it, it.real.basic.post_recv?))) else {
        // SAFETY: the caller's arguments.
        return unsafe { refuse(wr, bad_wr) };
    };
    // SAFETY: the caller's arguments.
    let call = |bad_wr| unsafe { real(qp, wr, bad_wr) };
    let Some((pair, ring)) = pair.and_then(|pair| Some((pair, pair.receives()?))) else {
        let result = call(bad_wr);
        if result == 0 {
            // Track kinds from the next receive on.
            // SAFETY: the library has accepted receives for the queue pair, so it is valid.
            keep_quiet(|| unsafe { QueuePair::of(qp) }.is_some());
        }
        return result;
    };
    let segments = pair.most_segments(Queue::Receive);
    // SAFETY: the caller's arguments.
    let posting = keep_quiet(|| unsafe { check::receives(qp, wr, segments, caller) }).flatten();
    // SAFETY: the caller's arguments.
    unsafe { post_receives(context, (ring, segments), (wr, posting), bad_wr, call) }
}

/// Posts receives in the real library, and records the kinds of their memory, like [`post_send`].
///
/// # Safety
/// As for `ibv_post_recv`. `call` posts the list to a queue with this ring, whose receives have at most
/// this many segments.
pub(crate) unsafe fn post_receives(
    context: &Context,
    (ring, segments): (&ReceiveKinds, u32),
    (wr, checked): (*mut ibv_recv_wr, Option<Posting>),
    bad_wr: *mut *mut ibv_recv_wr,
    call: impl FnOnce(*mut *mut ibv_recv_wr) -> c_int,
) -> c_int {
    let posting = ring.begin_post();
    // SAFETY: `bad_wr` is the caller's, and `call` posts with the place that it is given.
    let (result, accepted) = unsafe { post(bad_wr, call) };
    if let Some(checked) = checked {
        keep_quiet(|| checked.end(accepted.first_refused(wr)));
    }
    keep_quiet(|| {
        let end = match accepted {
            Accepted::All => std::ptr::null_mut(),
            Accepted::Until(bad) => bad,
            Accepted::None => wr,
        };
        // SAFETY: the library has accepted the requests up to this one.
        unsafe { record_receives(context, &posting, segments, wr, end) };
    });
    result
}

/// Records the receives from `wr` up to `end`.
///
/// # Safety
/// The real library has accepted these receives in the call that goes on.
unsafe fn record_receives(
    context: &Context,
    posting: &KindsPosting<'_>,
    segments: u32,
    mut wr: *mut ibv_recv_wr,
    end: *mut ibv_recv_wr,
) {
    let mut seen = 0;
    while !wr.is_null() && wr != end && seen < LONGEST_CHAIN {
        // SAFETY: `wr` is a request of the caller's list.
        let request = unsafe { &*wr };
        // SAFETY: `sg_list` has `num_sge` entries.
        let list = unsafe { entries(request.sg_list, request.num_sge, segments) };
        let kind = largest(context, list);
        posting.record(kind, |received| {
            context.recorder.add_receive(received, kind);
        });
        wr = request.next;
        seen += 1;
    }
}
