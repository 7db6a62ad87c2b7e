//! Contexts: open devices.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, OnceLock};

use gdr_rdma::raw;
use gdr_verbs_sys::{ibv_context, ibv_device, verbs_context};

use crate::async_event::Event;
use crate::c_object::CObject;
use crate::channel;
use crate::completion;
use crate::completion_queue;
use crate::device::{Device, lock};
use crate::domain;
use crate::errno::Errno;
use crate::event_queue::EventQueue;
use crate::post;
use crate::query;
use crate::queue_pair;
use crate::region;
use crate::ret::{minus_one, pointer};
use crate::table::Table;

/// The value of `ibv_context.abi_compat` in a context that is part of a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// An open device.
pub(crate) struct Context {
    object: CObject<verbs_context>,
    device: Arc<Device>,
    events: Arc<EventQueue<Event>>,
    /// The engine, from the first object on that needs it.
    engine: OnceLock<raw::Device>,
}

pub(crate) static CONTEXTS: Table<Context> = Table::new();

impl Context {
    fn open(device: Arc<Device>) -> Result<Arc<Self>, Errno> {
        let events = Arc::new(EventQueue::new()?);
        let fd = events.raw_fd();
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<verbs_context>::new(|whole| {
                set_operations(whole);
                whole.context.device = device.as_ptr();
                whole.context.cmd_fd = -1;
                whole.context.async_fd = fd;
                whole.context.num_comp_vectors = 1;
            })
        };
        lock(&device.owners().contexts).push(Arc::clone(&events));
        Ok(Arc::new(Self {
            object,
            device,
            events,
            engine: OnceLock::new(),
        }))
    }

    pub(crate) fn of(context: *mut ibv_context) -> Result<Arc<Self>, Errno> {
        CONTEXTS.get(context)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the object lives; this only computes an address in it.
        unsafe { &raw mut (*self.object.as_ptr()).context }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<Event>> {
        &self.events
    }

    /// The engine of its device, which it keeps open from here on.
    pub(crate) fn engine(&self) -> Result<&raw::Device, Errno> {
        if let Some(engine) = self.engine.get() {
            return Ok(engine);
        }
        let opened = self.device.engine()?;
        Ok(self.engine.get_or_init(|| opened))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let mut contexts = lock(&self.device.owners().contexts);
        contexts.retain(|events| !Arc::ptr_eq(events, &self.events));
    }
}

/// Sets the operations that the inline functions of libibverbs' header call.
fn set_operations(context: &mut verbs_context) {
    context.sz = size_of::<verbs_context>();
    context.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion_queue::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    context.query_port = Some(query::query_port);
    context.query_device_ex = Some(query::query_device_ex);
    context.query_rt_values = Some(query::query_rt_values);
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    pointer(|| {
        let context = Context::open(Device::of(device)?)?;
        let handle = context.as_ptr();
        CONTEXTS.insert(handle, context);
        Ok(handle)
    })
}

/// Ends the context with everything that was made from it, as the kernel does.
#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    minus_one(|| {
        let closed = CONTEXTS.remove(context)?;
        // In the order in which they use each other.
        drop(queue_pair::PAIRS.remove_all(|pair| pair.is_of(&closed)));
        drop(completion_queue::QUEUES.remove_all(|queue| queue.is_of(&closed)));
        drop(channel::CHANNELS.remove_all(|channel| channel.is_of(&closed)));
        drop(region::REGIONS.remove_all(|region| region.is_of(&closed)));
        drop(domain::DOMAINS.remove_all(|domain| domain.is_of(&closed)));
        Ok(())
    })
}
