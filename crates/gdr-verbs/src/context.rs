//! Contexts: open devices.

use std::sync::{Arc, OnceLock};

use gdr_rdma::raw;
use gdr_verbs_sys::{ibv_context, verbs_context};

use crate::counters;
use crate::device::{Device, lock};
use crate::errno::Errno;
use crate::event::Event;
use crate::event_queue::EventQueue;
use crate::slab::CObject;
use crate::table::Table;

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
    /// Opens a device; `fill` sets the operations of its structure.
    pub(crate) fn open(
        device: Arc<Device>,
        fill: impl FnOnce(&mut verbs_context),
    ) -> Result<Arc<Self>, Errno> {
        let events = Arc::new(EventQueue::new()?);
        let fd = events.raw_fd();
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<verbs_context>::new(|whole| {
                fill(whole);
                whole.context.device = device.as_ptr();
                // There are no commands to it; programs duplicate it for other processes.
                whole.context.cmd_fd = fd;
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
        counters::watch(&self.device.name(), &opened);
        Ok(self.engine.get_or_init(|| opened))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(engine) = self.engine.get() {
            counters::write(&self.device.name(), || engine.counters().payload);
        }
        let mut contexts = lock(&self.device.owners().contexts);
        contexts.retain(|events| !Arc::ptr_eq(events, &self.events));
    }
}
