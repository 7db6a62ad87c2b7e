//! Receive queues that several queue pairs share.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, Mutex};

use gdr_nic::WrId;
use gdr_nic::{self as nic, RecvRequest};
use gdr_verbs_sys::{
    ibv_context, ibv_cq, ibv_pd, ibv_recv_wr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr_ex,
    ibv_xrcd, pthread_cond_t, pthread_mutex_t,
};

use crate::completion_queue::Queue;
use crate::context::Context;
use crate::device::{MOST_REQUESTS, MOST_SEGMENTS, lock};
use crate::domain::{Domain, Use, Users, next_handle};
use crate::errno::Errno;
use crate::event::Subject;
use crate::event_queue::{ASYNC_EVENTS, Unacknowledged};
use crate::request::{Segments, entries, post_each, segment};
use crate::ret::{pointer, status};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;
use crate::xrc_domain::XrcDomain;

/// `struct ibv_srq`.
#[repr(C)]
struct CQueue {
    context: *mut ibv_context,
    srq_context: *mut c_void,
    pd: *mut ibv_pd,
    handle: u32,
    mutex: pthread_mutex_t,
    cond: pthread_cond_t,
    events_completed: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
struct CInit {
    srq_context: *mut c_void,
    attr: ibv_srq_attr,
}

/// `struct ibv_srq_init_attr_ex`, up to what tag matching has.
#[repr(C)]
#[derive(Clone, Copy)]
struct CInitEx {
    srq_context: *mut c_void,
    attr: ibv_srq_attr,
    comp_mask: u32,
    srq_type: u32,
    pd: *mut ibv_pd,
    xrcd: *mut ibv_xrcd,
    cq: *mut ibv_cq,
}

/// `enum ibv_srq_init_attr_mask`.
const WITH_TYPE: u32 = 1;
const WITH_PD: u32 = 1 << 1;
const WITH_XRCD: u32 = 1 << 2;
const WITH_CQ: u32 = 1 << 3;

/// `enum ibv_srq_type`.
const BASIC: u32 = 0;
const XRC: u32 = 1;

/// Flags of `ibv_modify_srq`.
const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

/// A shared receive queue.
pub(crate) struct SharedQueue {
    object: CObject<CQueue>,
    context: Arc<Context>,
    queue: nic::SharedReceiveQueue,
    attr: Mutex<ibv_srq_attr>,
    unacknowledged: Arc<Unacknowledged>,
    users: Users,
    _uses: Vec<Use>,
}

pub(crate) static SHARED_QUEUES: Table<SharedQueue> = Table::new();

impl SharedQueue {
    pub(crate) fn of(srq: *mut ibv_srq) -> Result<Arc<Self>, Errno> {
        SHARED_QUEUES.get(srq)
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn nic(&self) -> &nic::SharedReceiveQueue {
        &self.queue
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }

    fn create(
        domain: &Arc<Domain>,
        srq_context: *mut c_void,
        attr: &mut ibv_srq_attr,
        named: Option<(&XrcDomain, &Queue)>,
    ) -> Result<*mut ibv_srq, Errno> {
        if attr.max_wr == 0 || attr.max_wr > MOST_REQUESTS || attr.max_sge > MOST_SEGMENTS {
            return Err(Errno::INVAL);
        }
        attr.max_sge = attr.max_sge.max(1);
        let context = Arc::clone(domain.context());
        let engine = context.engine()?;
        let (queue, uses) = match named {
            None => (
                engine.shared_receive_queue(domain.nic(), attr.max_wr)?,
                vec![domain.users().add()],
            ),
            Some((xrcd, cq)) => (
                xrcd.nic()
                    .receive_queue(domain.nic(), attr.max_wr, cq.nic())?,
                [domain.users(), xrcd.users(), cq.users()]
                    .map(Users::add)
                    .into(),
            ),
        };
        // SAFETY: pointers and numbers, and a mutex that is not locked.
        let object = unsafe {
            CObject::<CQueue>::new(|srq| {
                srq.context = context.as_ptr();
                srq.srq_context = srq_context;
                srq.pd = domain.as_ptr();
                srq.handle = next_handle();
            })
        };
        let handle = object.as_ptr().cast::<ibv_srq>();
        // SAFETY: computes an address in the structure.
        let completed = unsafe { &raw mut (*object.as_ptr()).events_completed };
        // SAFETY: a field of the structure.
        let unacknowledged = Arc::new(unsafe { Unacknowledged::new(completed) });
        let subject = Subject::Shared(handle.expose_provenance(), Arc::clone(&unacknowledged));
        let owners = context.device().owners();
        owners.add_shared(queue.number(), subject, context.events());
        let created = Self {
            object,
            context,
            queue,
            attr: Mutex::new(ibv_srq_attr {
                srq_limit: 0,
                ..*attr
            }),
            unacknowledged,
            users: Users::default(),
            _uses: uses,
        };
        ASYNC_EVENTS.insert(handle, Arc::clone(&created.unacknowledged));
        SHARED_QUEUES.insert(handle, Arc::new(created));
        Ok(handle)
    }

    /// Changes both or, with an error, neither.
    fn modify(&self, max_wr: Option<u32>, limit: Option<u32>) -> Result<(), Errno> {
        // Allow one change at a time, so that what was checked stays valid.
        let mut attr = lock(&self.attr);
        let most = max_wr.unwrap_or(attr.max_wr);
        let armed = limit.map_or_else(|| self.queue.limit(), Ok)?;
        if !(1..=MOST_REQUESTS).contains(&most) || armed > most {
            return Err(Errno::INVAL);
        }
        if max_wr.is_some() && !self.queue.resize(most)? {
            return Err(Errno::INVAL);
        }
        attr.max_wr = most;
        if let Some(limit) = limit {
            self.queue.arm_limit(limit)?;
        }
        Ok(())
    }
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        let owners = self.context.device().owners();
        owners.remove_shared(self.queue.number());
        // An error means that creation failed before the entry existed.
        let _ = ASYNC_EVENTS.remove(self.object.as_ptr());
    }
}

/// # Safety
/// `init` is readable and writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, init: *mut c_void) -> *mut ibv_srq {
    forward!(unless is_own(pd), ibv_create_srq(pd, init));
    pointer(|| {
        let domain = Domain::of(pd)?;
        // SAFETY: the contract of this function: `struct ibv_srq_init_attr`.
        let init = unsafe { &mut *init.cast::<CInit>() };
        SharedQueue::create(&domain, init.srq_context, &mut init.attr, None)
    })
}

/// # Safety
/// `init` is readable and writable.
pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut ibv_context,
    init: *mut ibv_srq_init_attr_ex,
) -> *mut ibv_srq {
    pointer(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function: `struct ibv_srq_init_attr_ex`.
        let init = unsafe { &mut *init.cast::<CInitEx>() };
        let has = |fields: u32| init.comp_mask & fields == fields;
        let kind = match has(WITH_TYPE) {
            true => init.srq_type,
            false => BASIC,
        };
        // Tag matching is a different type, with another field.
        if ![BASIC, XRC].contains(&kind)
            || init.comp_mask & !(WITH_TYPE | WITH_PD | WITH_XRCD | WITH_CQ) != 0
        {
            return Err(Errno::OPNOTSUPP);
        }
        let required = match kind {
            XRC => WITH_PD | WITH_XRCD | WITH_CQ,
            _ => WITH_PD,
        };
        if !has(required) {
            return Err(Errno::INVAL);
        }
        let domain = Domain::of(init.pd)?;
        let named = match kind {
            XRC => Some((XrcDomain::of(init.xrcd)?, Queue::of(init.cq)?)),
            _ => None,
        };
        let is_of_device = named
            .as_ref()
            .is_none_or(|(xrcd, cq)| xrcd.is_of(&context) && cq.is_of(&context));
        if !domain.is_of(&context) || !is_of_device {
            return Err(Errno::INVAL);
        }
        let named = named.as_ref().map(|(xrcd, cq)| (&**xrcd, &**cq));
        SharedQueue::create(&domain, init.srq_context, &mut init.attr, named)
    })
}

/// # Safety
/// `number` is writable.
pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    status(|| {
        let named = SharedQueue::of(srq)?.queue.xrc_number();
        // SAFETY: the contract of this function.
        unsafe { number.write(named.ok_or(Errno::OPNOTSUPP)?.get()) };
        Ok(())
    })
}

/// # Safety
/// `attr` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    forward!(unless is_own(srq), ibv_modify_srq(srq, attr, mask));
    status(|| {
        let queue = SharedQueue::of(srq)?;
        if mask & !(MAX_WR | LIMIT) != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // SAFETY: the contract of this function.
        let wanted = unsafe { attr.read() };
        queue.modify(
            (mask & MAX_WR != 0).then_some(wanted.max_wr),
            (mask & LIMIT != 0).then_some(wanted.srq_limit),
        )
    })
}

/// # Safety
/// `attr` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    forward!(unless is_own(srq), ibv_query_srq(srq, attr));
    status(|| {
        let queue = SharedQueue::of(srq)?;
        let current = ibv_srq_attr {
            srq_limit: queue.queue.limit()?,
            ..*lock(&queue.attr)
        };
        // SAFETY: the contract of this function.
        unsafe { attr.write(current) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    forward!(unless is_own(srq), ibv_destroy_srq(srq));
    status(|| {
        SharedQueue::of(srq)?.users.check_unused()?;
        let queue = SHARED_QUEUES.remove(srq)?;
        let owners = queue.context.device().owners();
        owners.remove_shared(queue.queue.number());
        let address = srq.addr();
        queue
            .context
            .events()
            .forget(|event| event.is_about(address));
        queue.unacknowledged.wait();
        Ok(())
    })
}

/// # Safety
/// `wr` is a list of requests of libibverbs; `bad_wr` is writable.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        let mut next = wr;
        let posted = SHARED_QUEUES.lend(srq).and_then(|queue| {
            let ibv_srq_attr {
                max_wr, max_sge, ..
            } = *lock(&queue.attr);
            let post = |wr: &ibv_recv_wr| {
                // SAFETY: a request of the caller's list has as many entries as it says.
                let list = unsafe { entries(wr.sg_list, wr.num_sge, max_sge) }?;
                let segments: Segments = list.iter().map(segment).collect();
                queue.queue.post(&RecvRequest {
                    id: WrId(wr.wr_id),
                    segments: &segments,
                })??;
                Ok(())
            };
            // SAFETY: `next` is the caller's list.
            unsafe { post_each(&mut next, max_wr, post) }
        });
        if posted.is_err() && !bad_wr.is_null() {
            // SAFETY: the contract of this function.
            unsafe { bad_wr.write(next) };
        }
        posted
    })
}
