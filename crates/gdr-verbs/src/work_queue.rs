//! Work queues, and the queue pairs whose frames are spread over them (receive-side scaling).

use std::ffi::{c_int, c_void};
use std::slice;
use std::sync::{Arc, Mutex};

use gdr_nic::{
    self as nic, Capabilities, HashFields, QueuePair, Queues, RawPackets, RecvRequest, Spread, WrId,
};
use gdr_verbs_sys::{
    ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,
    ibv_rx_hash_conf, ibv_wq, ibv_wq_attr, ibv_wq_init_attr, pthread_cond_t, pthread_mutex_t,
};

use crate::completion_queue::Queue;
use crate::context::Context;
use crate::device::{MOST_REQUESTS, MOST_SEGMENTS, lock};
use crate::domain::{Domain, Use, Users, next_handle};
use crate::errno::Errno;
use crate::queue_pair::announce;
use crate::request::{Segments, entries, post_each, segment};
use crate::ret::{pointer, status};
use crate::slab::CObject;
use crate::table::Table;

/// `struct ibv_wq`.
#[repr(C)]
struct CQueue {
    context: *mut ibv_context,
    wq_context: *mut c_void,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    wq_num: u32,
    handle: u32,
    state: u32,
    wq_type: u32,
    post_recv: Option<PostRecv>,
    mutex: pthread_mutex_t,
    cond: pthread_cond_t,
    events_completed: u32,
    comp_mask: u32,
}

type PostRecv = unsafe extern "C" fn(*mut ibv_wq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// `struct ibv_wq_init_attr`.
#[repr(C)]
struct CInit {
    wq_context: *mut c_void,
    wq_type: u32,
    max_wr: u32,
    max_sge: u32,
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    comp_mask: u32,
    create_flags: u32,
}

/// `struct ibv_wq_attr`.
#[repr(C)]
struct CAttr {
    attr_mask: u32,
    wq_state: u32,
    curr_wq_state: u32,
    flags: u32,
    flags_mask: u32,
}

/// `enum ibv_wq_state`.
const RESET: u32 = 0;
const READY: u32 = 1;
const ERROR: u32 = 2;

/// `IBV_WQ_ATTR_STATE` and `IBV_WQ_ATTR_CURR_STATE`.
const WITH_STATE: u32 = 1;
const WITH_CURRENT_STATE: u32 = 1 << 1;

/// `struct ibv_rwq_ind_table`.
#[repr(C)]
struct CTable {
    context: *mut ibv_context,
    ind_tbl_handle: c_int,
    ind_tbl_num: c_int,
    comp_mask: u32,
}

/// `struct ibv_rwq_ind_table_init_attr`.
#[repr(C)]
struct CTableInit {
    log_ind_tbl_size: u32,
    ind_tbl: *mut *mut ibv_wq,
    comp_mask: u32,
}

/// The most entries of a table, as a power of two.
const MOST_ENTRIES_LOG: u32 = 7;
pub(crate) const MOST_ENTRIES: u32 = 1 << MOST_ENTRIES_LOG;

/// `IBV_RX_HASH_FUNC_TOEPLITZ`.
pub(crate) const TOEPLITZ: u8 = 1;

/// A work queue: a raw packet queue pair that only receives.
pub(crate) struct WorkQueue {
    // Dropped before the objects that it uses.
    pair: QueuePair<RawPackets>,
    object: CObject<CQueue>,
    context: Arc<Context>,
    max_wr: u32,
    max_sge: u32,
    state: Mutex<u32>,
    users: Users,
    _uses: [Use; 2],
}

pub(crate) static WORK_QUEUES: Table<WorkQueue> = Table::new();

impl WorkQueue {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    fn change(&self, attr: &CAttr) -> Result<(), Errno> {
        if attr.attr_mask & !(WITH_STATE | WITH_CURRENT_STATE) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // Allow one change at a time, so that what was checked stays valid.
        let mut state = lock(&self.state);
        if attr.attr_mask & WITH_CURRENT_STATE != 0 && attr.curr_wq_state != *state {
            return Err(Errno::INVAL);
        }
        if attr.attr_mask & WITH_STATE == 0 {
            return Ok(());
        }
        match (*state, attr.wq_state) {
            (RESET, READY) => {
                self.pair.to_init()?;
                self.pair.to_rtr()?;
            }
            (RESET | READY | ERROR, RESET) => self.pair.reset()?,
            (READY, ERROR) => self.pair.to_error()?,
            (from, to) if from == to => {}
            _ => return Err(Errno::INVAL),
        }
        *state = attr.wq_state;
        // SAFETY: the structure lives as long as the queue; libibverbs' providers write it here too.
        unsafe { (*self.object.as_ptr()).state = *state };
        Ok(())
    }
}

/// Makes a raw packet queue pair that sends nothing.
pub(crate) fn receiver(
    engine: &nic::Device,
    domain: &Domain,
    completions: &nic::CompletionQueue,
    max_recv_wr: u32,
) -> Result<QueuePair<RawPackets>, Errno> {
    let capabilities = Capabilities {
        max_send_wr: 0,
        max_recv_wr,
        max_inline: 0,
    };
    let queues = Queues::completing_in(completions);
    let pair = engine.raw_packet_queue_pair(domain.nic(), queues, capabilities);
    Ok(pair.inspect_err(announce)?)
}

/// # Safety
/// `init` is readable.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function: `struct ibv_wq_init_attr`.
        let init = unsafe { init.cast::<CInit>().read() };
        // Only receive queues without flags are supported.
        if init.wq_type != 0 || init.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let (domain, cq) = (Domain::of(init.pd)?, Queue::of(init.cq)?);
        let fits = (1..=MOST_REQUESTS).contains(&init.max_wr) && init.max_sge <= MOST_SEGMENTS;
        if !fits || !domain.is_of(&context) || !cq.is_of(&context) {
            return Err(Errno::INVAL);
        }
        let pair = receiver(context.engine()?, &domain, cq.nic(), init.max_wr)?;
        // SAFETY: numbers, pointers and a function that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<CQueue>::new(|wq| {
                wq.context = context.as_ptr();
                wq.wq_context = init.wq_context;
                wq.pd = init.pd;
                wq.cq = init.cq;
                wq.wq_num = pair.qpn().get();
                wq.handle = next_handle();
                wq.post_recv = Some(post_recv);
            })
        };
        let handle = object.as_ptr().cast::<ibv_wq>();
        let created = WorkQueue {
            pair,
            object,
            context,
            max_wr: init.max_wr,
            max_sge: init.max_sge.max(1),
            state: Mutex::new(RESET),
            users: Users::default(),
            _uses: [domain.users(), cq.users()].map(Users::add),
        };
        WORK_QUEUES.insert(handle, Arc::new(created));
        Ok(handle)
    })
}

/// # Safety
/// `attr` is readable.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    status(|| {
        // SAFETY: the contract of this function: `struct ibv_wq_attr`.
        WORK_QUEUES
            .get(wq)?
            .change(unsafe { &*attr.cast::<CAttr>() })
    })
}

pub(crate) extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    status(|| {
        WORK_QUEUES.get(wq)?.users.check_unused()?;
        WORK_QUEUES.remove(wq).map(drop)
    })
}

/// # Safety
/// `wr` is a list of requests of libibverbs; `bad_wr` is writable.
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        let mut next = wr;
        let posted = WORK_QUEUES.lend(wq).and_then(|queue| {
            queue.pair.post_recvs(|receives| {
                let post = |wr: &ibv_recv_wr| {
                    // SAFETY: a request of the caller's list has as many entries as it says.
                    let list = unsafe { entries(wr.sg_list, wr.num_sge, queue.max_sge) }?;
                    let segments: Segments = list.iter().map(segment).collect();
                    receives.push(&RecvRequest {
                        id: WrId(wr.wr_id),
                        segments: &segments,
                    })?;
                    Ok(())
                };
                // SAFETY: `next` is the caller's list.
                unsafe { post_each(&mut next, queue.max_wr, post) }
            })?
        });
        if posted.is_err() && !bad_wr.is_null() {
            // SAFETY: the contract of this function.
            unsafe { bad_wr.write(next) };
        }
        posted
    })
}

/// An indirection table: the work queues that a hash selects from.
pub(crate) struct Indirection {
    _object: CObject<CTable>,
    context: Arc<Context>,
    queues: Vec<Arc<WorkQueue>>,
    users: Users,
    _uses: Vec<Use>,
}

pub(crate) static INDIRECTIONS: Table<Indirection> = Table::new();

impl Indirection {
    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    /// Frames spread over the queues of the table.
    ///
    /// # Safety
    /// The configuration's key is as long as it says.
    pub(crate) unsafe fn spread(&self, hash: &ibv_rx_hash_conf) -> Result<Spread, Errno> {
        let fields = HashFields::from_bits(hash.rx_hash_fields_mask).ok_or(Errno::OPNOTSUPP)?;
        if hash.rx_hash_function != TOEPLITZ {
            return Err(Errno::OPNOTSUPP);
        }
        if usize::from(hash.rx_hash_key_len) != Spread::KEY || hash.rx_hash_key.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the contract of this function.
        let key = unsafe { hash.rx_hash_key.cast::<[u8; Spread::KEY]>().read() };
        let numbers = self.queues.iter().map(|queue| queue.pair.qpn());
        Spread::new(key, fields, numbers.collect()).ok_or(Errno::INVAL)
    }
}

/// # Safety
/// `init` is readable, and its table is as long as it says.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function: `struct ibv_rwq_ind_table_init_attr`.
        let init = unsafe { init.cast::<CTableInit>().read() };
        if init.comp_mask != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if init.log_ind_tbl_size > MOST_ENTRIES_LOG || init.ind_tbl.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: the contract of this function.
        let handles = unsafe { slice::from_raw_parts(init.ind_tbl, 1 << init.log_ind_tbl_size) };
        let queues = handles.iter().map(|handle| WORK_QUEUES.get(*handle));
        let queues: Vec<_> = queues.collect::<Result<_, _>>()?;
        if !queues.iter().all(|queue| queue.is_of(&context)) {
            return Err(Errno::INVAL);
        }
        let number = next_handle().cast_signed();
        // SAFETY: a pointer and numbers.
        let object = unsafe {
            CObject::<CTable>::new(|table| {
                table.context = context.as_ptr();
                (table.ind_tbl_handle, table.ind_tbl_num) = (number, number);
            })
        };
        let handle = object.as_ptr().cast::<ibv_rwq_ind_table>();
        let created = Indirection {
            _object: object,
            context,
            users: Users::default(),
            _uses: queues.iter().map(|queue| queue.users.add()).collect(),
            queues,
        };
        INDIRECTIONS.insert(handle, Arc::new(created));
        Ok(handle)
    })
}

pub(crate) extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    status(|| {
        INDIRECTIONS.get(table)?.users.check_unused()?;
        INDIRECTIONS.remove(table).map(drop)
    })
}
