//! Queue pairs.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gdr_check::Signal;
use gdr_process::PerProcess;
use gdr_verbs_sys::{
    ibv_context, ibv_pd, ibv_qp, ibv_qp_attr, ibv_qp_cap, ibv_qp_init_attr, ibv_qp_init_attr_ex,
    ibv_qp_init_attr_mask,
};

use crate::check;
use crate::context::Context;
use crate::key_map::KeyMap;
use crate::library::{self, missing};
use crate::nesting::{Nesting, keep_quiet};
use crate::qp_ex::{self, Builder};
use crate::receive_kinds::{ReceiveKinds, Slot};
use crate::shared_receive_queue;

/// A queue pair. Its record is never freed but reused, because a completion may be looking at it.
pub(crate) struct QueuePair {
    context: AtomicPtr<Context>,
    row: AtomicU32,
    /// The number of the queue pair.
    number: AtomicU32,
    /// Maximum number of segments per request of the send queue and of the receive queue. A request with more is
    /// refused, or has segments that the real library does not read.
    segments: [AtomicU32; 2],
    /// Maximum number of bytes of inline data.
    inline: AtomicU32,
    /// Kinds of its own receives, or of its shared receive queue's receives.
    receives: Slot,
    /// Address of the shared receive queue that the ring belongs to, if any.
    shared: AtomicPtr<()>,
    /// Requests of the extended interface.
    pub(crate) builder: Builder,
}

/// Queue pairs by the address of the structure.
static PAIRS: KeyMap = KeyMap::new();
/// Queue pairs by the numbers of the context and of the queue pair.
static NUMBERS: KeyMap = KeyMap::new();
/// Unused records. A forked child has its own list.
static FREE: PerProcess<Mutex<Vec<&'static QueuePair>>> = PerProcess::new();

/// Sizes of a queue pair whose creation was not seen. No device supports more segments per request.
const UNKNOWN: ibv_qp_cap = ibv_qp_cap {
    max_send_wr: 0,
    max_recv_wr: 4096,
    max_send_sge: 64,
    max_recv_sge: 64,
    max_inline_data: 4096,
};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn at(address: u64) -> &'static QueuePair {
    let record = ptr::with_exposed_provenance::<QueuePair>(address as usize);
    // SAFETY: the maps hold only addresses of leaked values.
    unsafe { &*record }
}

impl QueuePair {
    const fn new() -> Self {
        Self {
            context: AtomicPtr::new(ptr::null_mut()),
            row: AtomicU32::new(0),
            number: AtomicU32::new(0),
            segments: [const { AtomicU32::new(0) }; 2],
            inline: AtomicU32::new(0),
            receives: Slot::new(),
            shared: AtomicPtr::new(ptr::null_mut()),
            builder: Builder::new(),
        }
    }

    /// Returns the queue pair with an address, if it is traced.
    #[inline]
    pub(crate) fn known(qp: *mut ibv_qp) -> Option<&'static Self> {
        PAIRS.get(qp.addr() as u64).map(at)
    }

    /// Returns the queue pair of a structure. One that comes from another library is counted from here on.
    ///
    /// # Safety
    /// `qp` is valid.
    #[inline]
    pub(crate) unsafe fn of(qp: *mut ibv_qp) -> Option<&'static Self> {
        // SAFETY: the contract of this function.
        Self::known(qp).or_else(|| unsafe { add(qp, &UNKNOWN) })
    }

    /// Returns the queue pair that a completion names.
    pub(crate) fn numbered(context: &Context, qpn: u32) -> Option<&'static Self> {
        NUMBERS.get(context.key(qpn)).map(at)
    }

    #[inline]
    pub(crate) fn context(&self) -> Option<&'static Context> {
        // SAFETY: null, or a context, which is never freed.
        unsafe { self.context.load(Ordering::Acquire).as_ref() }
    }

    #[inline]
    pub(crate) fn row(&self) -> u32 {
        self.row.load(Ordering::Relaxed)
    }

    /// Returns the most segments of a request of a queue.
    #[inline]
    pub(crate) fn most_segments(&self, queue: Queue) -> u32 {
        self.segments[queue as usize].load(Ordering::Relaxed)
    }

    /// Returns the most buffers of inline data that can have any bytes.
    pub(crate) fn most_inline_buffers(&self) -> u32 {
        self.inline.load(Ordering::Relaxed)
    }

    pub(crate) fn receives(&self) -> Option<&'static ReceiveKinds> {
        self.receives.get()
    }

    /// Forgets its receives after a failure, unless other queue pairs share them.
    pub(crate) fn flush_receives(&self) {
        if self.shared.load(Ordering::Relaxed).is_null()
            && let Some(ring) = self.receives()
        {
            ring.clear();
        }
    }
}

/// A queue of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Queue {
    Send,
    Receive,
}

/// Adds a queue pair with these sizes.
///
/// # Safety
/// `qp` is valid.
unsafe fn add(qp: *mut ibv_qp, cap: &ibv_qp_cap) -> Option<&'static QueuePair> {
    // SAFETY: the contract of this function.
    let created = unsafe { &*qp };
    let context = Context::of(created.context)?;
    let free = lock(FREE.get_fast()).pop();
    let record = free.unwrap_or_else(|| Box::leak(Box::new(QueuePair::new())));
    let row = context
        .recorder
        .add_queue_pair(context.nic, created.qp_num, created.qp_type.0);
    record.row.store(row, Ordering::Relaxed);
    record.number.store(created.qp_num, Ordering::Relaxed);
    for (place, most) in record
        .segments
        .iter()
        .zip([cap.max_send_sge, cap.max_recv_sge])
    {
        place.store(most, Ordering::Relaxed);
    }
    record.inline.store(cap.max_inline_data, Ordering::Relaxed);
    record.builder.reset();
    record.shared.store(created.srq.cast(), Ordering::Relaxed);
    record.receives.set(match created.srq.is_null() {
        true => Some(ReceiveKinds::take_ring(cap.max_recv_wr)),
        false => shared_receive_queue::receives_of(created.srq),
    });
    let of = ptr::from_ref(context).cast_mut();
    record.context.store(of, Ordering::Release);
    let address = ptr::from_ref(record).expose_provenance() as u64;
    NUMBERS.insert(context.key(created.qp_num), address);
    PAIRS.insert(qp.addr() as u64, address);
    Some(record)
}

/// Counts a queue pair that was created, and its extended interface if it has one.
///
/// # Safety
/// `qp` is null or valid with these sizes, and the program does not have it yet; with `extended` it was created with
/// flags for the extended interface.
unsafe fn created(qp: *mut ibv_qp, cap: &ibv_qp_cap, signal: Signal, extended: Interface) {
    if qp.is_null() {
        return;
    }
    // SAFETY: the contract of this function.
    unsafe { check::pair_created(qp, cap, signal) };
    // SAFETY: the contract of this function.
    let Some(pair) = (unsafe { add(qp, cap) }) else {
        return;
    };
    if extended == Interface::Extended {
        // SAFETY: the contract of this function: the structure is an `ibv_qp_ex`.
        unsafe { qp_ex::replace(qp.cast(), pair) };
    }
}

/// Returns whether requests are signaled that do not say so.
const fn signal_of(sq_sig_all: c_int) -> Signal {
    match sq_sig_all {
        0 => Signal::Unsignaled,
        _ => Signal::Signaled,
    }
}

/// How requests are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interface {
    Basic,
    Extended,
}

impl Interface {
    /// Returns it for a queue pair that is created with these attributes.
    pub(crate) fn of(attr: &ibv_qp_init_attr_ex) -> Self {
        let flags = ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        match attr.comp_mask & flags {
            0 => Self::Basic,
            _ => Self::Extended,
        }
    }
}

/// # Safety
/// As for `ibv_create_qp`.
pub(crate) unsafe extern "C" fn create_qp<const L: usize>(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    let nesting = Nesting::enter();
    // SAFETY: the caller's arguments.
    let qp = unsafe { library::ibv_create_qp(L)(pd, attr) };
    if nesting.is_outermost() && !qp.is_null() {
        // SAFETY: the library has read the attributes and written the sizes, and the queue pair is new.
        keep_quiet(|| unsafe {
            let attr = &*attr;
            created(qp, &attr.cap, signal_of(attr.sq_sig_all), Interface::Basic);
        });
    }
    qp
}

/// # Safety
/// As for `ibv_create_qp_ex`.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    let Some(real) = Context::behind(context).and_then(|it| it.real.create_qp_ex) else {
        return missing::null();
    };
    // SAFETY: the caller's arguments.
    unsafe { create_extended(attr, || real(context, attr)) }
}

/// Creates a queue pair in the real library, and counts it.
///
/// # Safety
/// `attr` is null or readable; `call` returns null or a queue pair that was made with it.
pub(crate) unsafe fn create_extended(
    attr: *mut ibv_qp_init_attr_ex,
    call: impl FnOnce() -> *mut ibv_qp,
) -> *mut ibv_qp {
    let nesting = Nesting::enter();
    let qp = call();
    if nesting.is_outermost() && !qp.is_null() {
        keep_quiet(|| {
            // SAFETY: the library has read the attributes and written the sizes.
            let attr = unsafe { &*attr };
            // SAFETY: the queue pair is new and has the extended interface.
            unsafe {
                created(
                    qp,
                    &attr.cap,
                    signal_of(attr.sq_sig_all),
                    Interface::of(attr),
                )
            };
        });
    }
    qp
}

/// # Safety
/// As for `ibv_modify_qp`.
pub(crate) unsafe extern "C" fn modify_qp<const L: usize>(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    let nesting = Nesting::enter();
    // SAFETY: the caller's arguments.
    let result = unsafe { library::ibv_modify_qp(L)(qp, attr, mask) };
    if nesting.is_outermost() && result == 0 {
        // SAFETY: the library has read the attributes.
        keep_quiet(|| check::pair_modified(qp, unsafe { &*attr }, mask));
    }
    result
}

/// # Safety
/// As for `ibv_destroy_qp`.
pub(crate) unsafe extern "C" fn destroy_qp<const L: usize>(qp: *mut ibv_qp) -> c_int {
    let nesting = Nesting::enter();
    let address = qp.addr() as u64;
    // Before the call: afterwards, address and number may belong to another queue pair.
    let record = nesting
        .is_outermost()
        .then(|| PAIRS.remove(address))
        .flatten();
    let number = record.and_then(|record| {
        let pair = at(record);
        let key = pair.context()?.key(pair.number.load(Ordering::Relaxed));
        NUMBERS.remove(key).and(Some(key))
    });
    // SAFETY: the caller's argument.
    let result = unsafe { library::ibv_destroy_qp(L)(qp) };
    let Some(record) = record else {
        return result;
    };
    if result != 0 {
        PAIRS.insert(address, record);
        if let Some(key) = number {
            NUMBERS.insert(key, record);
        }
        return result;
    }
    keep_quiet(|| check::pair_destroyed(qp));
    let pair = at(record);
    if pair.shared.load(Ordering::Relaxed).is_null()
        && let Some(ring) = pair.receives()
    {
        ring.give_back();
    }
    pair.receives.set(None);
    lock(FREE.get_fast()).push(pair);
    result
}
