//! Channels of completion events.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::AsRawFd as _;

use gdr_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::answer::{plain, pointer, set_errno, status};
use crate::event::{self, Subject};
use crate::handle::Handle;
use crate::world::Channel;

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let verb = "ibv_create_comp_channel";
    pointer(|world| {
        let id = world.device_of(verb, context)?;
        world.begin(verb, id, "")?;
        let pipe = io::pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        // SAFETY: a pointer and numbers.
        let object: Handle<ibv_comp_channel> = unsafe { Handle::zeroed() };
        let (fd, refcnt) = (pipe.0.as_raw_fd(), 0);
        let channel = ibv_comp_channel {
            context,
            fd,
            refcnt,
        };
        // SAFETY: the object is new: nobody else has its address.
        unsafe { *object.as_ptr() = channel };
        world.channels.insert(
            object.address(),
            Channel {
                device: id,
                events: VecDeque::new(),
                pipe,
            },
        );
        Ok(object.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    let verb = "ibv_destroy_comp_channel";
    status(|world| {
        let address = channel.addr();
        let Some(found) = world.channels.get(&address) else {
            world.violation(verb, "the channel is none, or was destroyed");
            return Err(libc::EINVAL);
        };
        let id = found.device;
        world.note(verb, id, "")?;
        if world
            .queues
            .values()
            .any(|queue| queue.channel == Some(address))
        {
            return Err(libc::EBUSY);
        }
        world.channels.remove(&address);
        Ok(())
    })
}

/// # Safety
///
/// `cq` and `cq_context` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    cq_context: *mut *mut c_void,
) -> c_int {
    let address = channel.addr();
    let fd = plain(None, |world| {
        let channel = world.channels.get(&address);
        let fd = channel.map(|channel| channel.pipe.0.as_raw_fd());
        if fd.is_none() {
            world.violation("ibv_get_cq_event", "the channel is none, or was destroyed");
        }
        fd
    });
    let Some(fd) = fd else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // Without the lock: this may wait.
    if !event::take_token(fd) {
        return -1;
    }
    let taken = plain(None, |world| {
        let queue = world.channels.get_mut(&address)?.events.pop_front()?;
        *world
            .unacknowledged
            .entry(Subject::Completions(queue))
            .or_default() += 1;
        world.queues.get(&queue).map(|queue| queue.object)
    });
    let Some(object) = taken else {
        // It was about a queue that is gone.
        set_errno(libc::EAGAIN);
        return -1;
    };
    let object = object.as_ptr();
    // SAFETY: this function's contract; the object is there for ever.
    unsafe {
        cq.write(object.cast());
        cq_context.write((*object).cq_context);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    plain((), |world| {
        event::acknowledge_completions(world, cq.addr(), events as usize);
    });
}
