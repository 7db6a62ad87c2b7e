//! Completion channels.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;

use gdr_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::completion_queue::Queue;
use crate::context::Context;
use crate::domain::Users;
use crate::errno::Errno;
use crate::event_queue::{COMPLETION_EVENTS, EventQueue};
use crate::ret::{minus_one, plain, pointer, status};
use crate::slab::{CObject, is_own};
use crate::system::forward;
use crate::table::Table;

/// A completion channel.
pub(crate) struct Channel {
    object: CObject<ibv_comp_channel>,
    context: Arc<Context>,
    /// The address of the queue of each event.
    events: Arc<EventQueue<usize>>,
    users: Users,
}

pub(crate) static CHANNELS: Table<Channel> = Table::new();

impl Channel {
    pub(crate) fn of(channel: *mut ibv_comp_channel) -> Result<Arc<Self>, Errno> {
        CHANNELS.get(channel)
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_comp_channel {
        self.object.as_ptr()
    }

    pub(crate) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.context, context)
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<usize>> {
        &self.events
    }

    pub(crate) fn users(&self) -> &Users {
        &self.users
    }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    forward!(unless is_own(context), ibv_create_comp_channel(context));
    pointer(|| {
        let context = Context::of(context)?;
        let events = Arc::new(EventQueue::new()?);
        // SAFETY: a pointer and numbers.
        let object = unsafe {
            CObject::<ibv_comp_channel>::new(|channel| {
                channel.context = context.as_ptr();
                channel.fd = events.raw_fd();
            })
        };
        let handle = object.as_ptr();
        let channel = Channel {
            object,
            context,
            events,
            users: Users::default(),
        };
        CHANNELS.insert(handle, Arc::new(channel));
        Ok(handle)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    forward!(unless is_own(channel), ibv_destroy_comp_channel(channel));
    status(|| {
        Channel::of(channel)?.users.check_unused()?;
        CHANNELS.remove(channel).map(drop)
    })
}

/// # Safety
/// `cq` and `cq_context` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    forward!(unless is_own(channel), ibv_get_cq_event(channel, cq, cq_context));
    minus_one(|| {
        let events = Arc::clone(Channel::of(channel)?.events());
        let queue = loop {
            let taken = events.take(|address| {
                let handle = std::ptr::with_exposed_provenance_mut::<ibv_cq>(address);
                let queue = Queue::of(handle)?;
                queue.unacknowledged_completions().add();
                Ok::<_, Errno>(queue)
            })?;
            // A queue that is being destroyed discards its events.
            if let Ok(queue) = taken {
                break queue;
            }
        };
        // SAFETY: the contract of this function; the queue's structure lives as long as the queue.
        unsafe {
            cq.write(queue.as_ptr());
            cq_context.write((*queue.as_ptr()).cq_context);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    forward!(unless is_own(cq), ibv_ack_cq_events(cq, events));
    plain((), || {
        COMPLETION_EVENTS.get(cq)?.acknowledge(events);
        Ok(())
    });
}
