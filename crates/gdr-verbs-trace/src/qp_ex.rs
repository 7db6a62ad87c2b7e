//! Extended posting interface: `ibv_wr_start` and related functions.
//!
//! Between `ibv_wr_start` and `ibv_wr_complete`, one thread builds requests of a queue pair. They are counted when
//! complete.

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use gdr_trace::layout::{CELLS, cell};
use gdr_trace::{MemoryKind, Operation};
use gdr_verbs_sys::{__be32, ibv_data_buf, ibv_qp_ex, ibv_sge};

use crate::check::{self, Caller};
use crate::interned::Interned;
use crate::key_map::KeyMap;
use crate::library::missing;
use crate::nesting::keep_quiet;
use crate::post::{largest, with_caller};
use crate::queue_pair::{Queue, QueuePair};
use crate::region::kind_of;

/// Requests being built.
pub(crate) struct Builder {
    real: AtomicPtr<RealFunctions>,
    /// Operation of the last request.
    operation: AtomicU32,
    /// Operations and bytes.
    cells: [[AtomicU64; 2]; CELLS],
    /// Cells other than 0, one bit each.
    used: AtomicU32,
    requests: AtomicU64,
}

/// A request that moves nothing.
const NOTHING: u32 = u32::MAX;

impl Builder {
    pub(crate) const fn new() -> Self {
        Self {
            real: AtomicPtr::new(std::ptr::null_mut()),
            operation: AtomicU32::new(NOTHING),
            cells: [const { [const { AtomicU64::new(0) }; 2] }; CELLS],
            used: AtomicU32::new(0),
            requests: AtomicU64::new(0),
        }
    }

    fn real(&self) -> Option<&'static RealFunctions> {
        // SAFETY: null, or functions, which are never freed.
        unsafe { self.real.load(Ordering::Acquire).as_ref() }
    }

    /// Forgets all requests.
    pub(crate) fn reset(&self) {
        self.drain(|_, _, _| {});
    }

    fn begin(&self, operation: Option<Operation>) {
        let number = operation.map_or(NOTHING, |operation| operation.number() as u32);
        self.operation.store(number, Ordering::Relaxed);
        let requests = self.requests.load(Ordering::Relaxed);
        self.requests.store(requests + 1, Ordering::Relaxed);
    }

    /// Adds to the last request. Only one thread builds requests of a queue pair.
    fn add(&self, kind: MemoryKind, operations: u64, bytes: u64) {
        let number = self.operation.load(Ordering::Relaxed) as usize;
        let Some(operation) = Operation::ALL.get(number) else {
            return;
        };
        let number = cell(*operation, kind);
        let Some(sums) = self.cells.get(number) else {
            return;
        };
        for (sum, more) in sums.iter().zip([operations, bytes]) {
            let sum_before = sum.load(Ordering::Relaxed);
            sum.store(sum_before + more, Ordering::Relaxed);
        }
        let used = self.used.load(Ordering::Relaxed);
        self.used.store(used | 1 << number, Ordering::Relaxed);
    }

    /// Takes and resets all sums; returns the number of requests.
    fn drain(&self, mut take: impl FnMut(usize, u64, u64)) -> u64 {
        let mut left = self.used.swap(0, Ordering::Relaxed);
        while left != 0 {
            let number = left.trailing_zeros() as usize;
            left &= left - 1;
            if let Some([operations, bytes]) = self.cells.get(number) {
                let operations = operations.swap(0, Ordering::Relaxed);
                take(number, operations, bytes.swap(0, Ordering::Relaxed));
            }
        }
        self.requests.swap(0, Ordering::Relaxed)
    }
}

/// Declares the functions of the extended interface that begin a request.
macro_rules! requests {
    ($($name:ident($($argument:ident: $type:ty),*) = $operation:expr;)*) => {
        /// Functions that a queue pair held.
        #[derive(Clone, Copy)]
        #[repr(C)]
        struct RealFunctions {
            $($name: Option<unsafe extern "C" fn(*mut ibv_qp_ex, $($type),*)>,)*
            wr_start: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
            wr_complete: Option<unsafe extern "C" fn(*mut ibv_qp_ex) -> c_int>,
            wr_abort: Option<unsafe extern "C" fn(*mut ibv_qp_ex)>,
            wr_set_sge: Option<unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, u32)>,
            wr_set_sge_list: Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_sge)>,
            wr_set_inline_data:
                Option<unsafe extern "C" fn(*mut ibv_qp_ex, *mut c_void, usize)>,
            wr_set_inline_data_list:
                Option<unsafe extern "C" fn(*mut ibv_qp_ex, usize, *const ibv_data_buf)>,
        }

        $(
            unsafe extern "C" fn $name(qp: *mut ibv_qp_ex, $($argument: $type),*) {
                if let Some(pair) = QueuePair::known(qp.cast()) {
                    pair.builder.begin($operation);
                    // SAFETY: the caller's queue pair.
                    keep_quiet(|| unsafe { check::begin(qp, checked($operation)) });
                }
                if let Some(real) = functions_of(qp).and_then(|real| real.$name) {
                    // SAFETY: the caller's arguments.
                    unsafe { real(qp, $($argument),*) };
                }
            }
        )*

        /// Replaces a queue pair's functions.
        ///
        /// # Safety
        /// `qp` is a queue pair with the extended interface that no other thread uses yet, and `pair`
        /// is its record.
        pub(crate) unsafe fn replace(qp: *mut ibv_qp_ex, pair: &'static QueuePair) {
            // SAFETY: the contract of this function.
            let object = unsafe { &mut *qp };
            let real = RealFunctions {
                $($name: object.$name,)*
                wr_start: object.wr_start,
                wr_complete: object.wr_complete,
                wr_abort: object.wr_abort,
                wr_set_sge: object.wr_set_sge,
                wr_set_sge_list: object.wr_set_sge_list,
                wr_set_inline_data: object.wr_set_inline_data,
                wr_set_inline_data_list: object.wr_set_inline_data_list,
            };
            // SAFETY: the structure consists of nullable functions.
            let known = unsafe { FUNCTIONS.get(real) };
            let known = std::ptr::from_ref(known).cast_mut();
            pair.builder.real.store(known, Ordering::Release);
            QUEUE_PAIRS.insert(qp.addr() as u64, known.expose_provenance() as u64);
            $(object.$name = object.$name.and(Some($name));)*
            object.wr_start = object.wr_start.and(Some(wr_start));
            object.wr_complete = object.wr_complete.and(Some(wr_complete));
            object.wr_abort = object.wr_abort.and(Some(wr_abort));
            object.wr_set_sge = object.wr_set_sge.and(Some(wr_set_sge));
            object.wr_set_sge_list = object.wr_set_sge_list.and(Some(wr_set_sge_list));
            object.wr_set_inline_data = object.wr_set_inline_data.and(Some(wr_set_inline_data));
            object.wr_set_inline_data_list =
                object.wr_set_inline_data_list.and(Some(wr_set_inline_data_list));
        }
    };
}

requests! {
    wr_send() = Some(Operation::Send);
    wr_send_imm(immediate: __be32) = Some(Operation::Send);
    wr_send_inv(rkey: u32) = Some(Operation::Send);
    wr_rdma_write(rkey: u32, address: u64) = Some(Operation::Write);
    wr_rdma_write_imm(rkey: u32, address: u64, immediate: __be32) = Some(Operation::Write);
    wr_rdma_read(rkey: u32, address: u64) = Some(Operation::Read);
    wr_atomic_cmp_swp(rkey: u32, address: u64, compare: u64, swap: u64) = Some(Operation::Atomic);
    wr_atomic_fetch_add(rkey: u32, address: u64, add: u64) = Some(Operation::Atomic);
    wr_send_tso(header: *mut c_void, len: u16, mss: u16) = Some(Operation::Send);
    wr_local_inv(rkey: u32) = None;
}

/// Returns what a request does with its segments, for rules.
fn checked(operation: Option<Operation>) -> check::Operation {
    match operation {
        Some(Operation::Write | Operation::Send) => check::Operation::Gathers,
        Some(Operation::Read | Operation::Atomic | Operation::Receive) => {
            check::Operation::Scatters
        }
        None => check::Operation::Other,
    }
}

/// Function tables, shared by queue pairs with equal ones.
static FUNCTIONS: Interned<RealFunctions> = Interned::new();

/// Functions that queue pairs held, by the address of the structure. Entries of destroyed queue pairs stay, because
/// calls through them must still reach the real library.
static QUEUE_PAIRS: KeyMap = KeyMap::new();

/// Returns a queue pair's own functions.
#[inline]
fn functions_of(qp: *mut ibv_qp_ex) -> Option<&'static RealFunctions> {
    let known = QueuePair::known(qp.cast()).and_then(|pair| pair.builder.real());
    known.or_else(|| {
        let address = QUEUE_PAIRS.get(qp.addr() as u64)?;
        let real = std::ptr::with_exposed_provenance::<RealFunctions>(address as usize);
        // SAFETY: the map holds only addresses of leaked values.
        Some(unsafe { &*real })
    })
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_start) {
        // SAFETY: the caller's argument.
        unsafe { real(qp) };
    }
    // After the call, which locks the queue pair.
    if let Some(pair) = QueuePair::known(qp.cast()) {
        pair.builder.reset();
        keep_quiet(|| check::start(qp));
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // Before the call, which unlocks the queue pair.
    if let Some(pair) = QueuePair::known(qp.cast()) {
        pair.builder.reset();
        keep_quiet(|| check::start(qp));
    }
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_abort) {
        // SAFETY: the caller's argument.
        unsafe { real(qp) };
    }
}

with_caller! { 1
    /// # Safety
    /// As for `ibv_wr_complete`.
    wr_complete(qp: *mut ibv_qp_ex) => wr_complete_from
}

unsafe extern "C" fn wr_complete_from(qp: *mut ibv_qp_ex, caller: Caller) -> c_int {
    let Some(real) = functions_of(qp).and_then(|real| real.wr_complete) else {
        return missing::error_number();
    };
    let pair = QueuePair::known(qp.cast());
    // Before the call, which unlocks the queue pair.
    let mut sums = [(0, 0, 0); CELLS];
    let mut used = 0;
    let requests = pair.map_or(0, |pair| {
        pair.builder.drain(|number, operations, bytes| {
            if let Some(sum) = sums.get_mut(used) {
                *sum = (number, operations, bytes);
                used += 1;
            }
        })
    });
    // SAFETY: the caller's argument.
    let posting = pair.and_then(|_| keep_quiet(|| unsafe { check::built(qp, caller) }).flatten());
    // SAFETY: the caller's argument.
    let result = unsafe { real(qp) };
    if let Some(posting) = posting {
        keep_quiet(|| posting.end((result != 0).then_some(0)));
    }
    keep_quiet(|| {
        let pair = pair?;
        let context = pair.context()?;
        if result != 0 {
            context.recorder.add_refused(pair.row(), requests);
            return Some(());
        }
        for (number, operations, bytes) in sums.iter().take(used) {
            context
                .recorder
                .add_traffic(pair.row(), *number, *operations, *bytes);
        }
        Some(())
    });
    result
}

/// Adds the data of the last request of a queue pair.
fn add_segments(pair: &QueuePair, list: &[ibv_sge]) {
    let Some(context) = pair.context() else {
        return;
    };
    for sge in list {
        let kind = kind_of(context, sge.lkey);
        pair.builder.add(kind, 0, sge.length.into());
    }
    pair.builder.add(largest(context, list), 1, 0);
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    if let Some(pair) = QueuePair::known(qp.cast()) {
        let list = [ibv_sge { addr, length, lkey }];
        add_segments(pair, &list);
        keep_quiet(|| check::segments(qp, &list));
    }
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_set_sge) {
        // SAFETY: the caller's arguments.
        unsafe { real(qp, lkey, addr, length) };
    }
}

/// Returns the elements of a caller's list. A list longer than `most` counts as empty: the real library refuses the
/// request without reading it.
///
/// # Safety
/// `list` has `count` elements, if these are not more than `most`.
unsafe fn elements<'a, T>(list: *const T, count: usize, most: u32) -> &'a [T] {
    match list.is_null() || count > most as usize {
        true => &[],
        // SAFETY: the contract of this function.
        false => unsafe { slice::from_raw_parts(list, count) },
    }
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_set_sge_list) {
        // SAFETY: the caller's arguments.
        unsafe { real(qp, count, list) };
    }
    if let Some(pair) = QueuePair::known(qp.cast()) {
        // SAFETY: the library has read the caller's list.
        let list = unsafe { elements(list, count, pair.most_segments(Queue::Send)) };
        add_segments(pair, list);
        keep_quiet(|| check::segments(qp, list));
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, address: *mut c_void, len: usize) {
    if let Some(pair) = QueuePair::known(qp.cast()) {
        pair.builder.add(MemoryKind::Inline, 1, len as u64);
        keep_quiet(|| check::inline(qp));
    }
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_set_inline_data) {
        // SAFETY: the caller's arguments.
        unsafe { real(qp, address, len) };
    }
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    if let Some(real) = functions_of(qp).and_then(|real| real.wr_set_inline_data_list) {
        // SAFETY: the caller's arguments.
        unsafe { real(qp, count, list) };
    }
    if let Some(pair) = QueuePair::known(qp.cast()) {
        // SAFETY: the library has read the caller's list.
        let buffers = unsafe { elements(list, count, pair.most_inline_buffers()) };
        let bytes = buffers.iter().map(|buffer| buffer.length as u64).sum();
        pair.builder.add(MemoryKind::Inline, 1, bytes);
        keep_quiet(|| check::inline(qp));
    }
}
