//! Completion channels.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::AsRawFd as _;

use gdr_verbs_sys::{ibv_comp_channel, ibv_context, ibv_cq};

use crate::c_abi::{Handle, set_errno};
use crate::event;
use crate::ret::{plain, pointer, status};
use crate::state::{Channel, Subject};

#[unsafe(no_mangle)]
extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let verb = "ibv_create_comp_channel";
    pointer(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        let pipe = io::pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        // SAFETY: a pointer and numbers.
        let object: Handle<ibv_comp_channel> = unsafe { Handle::zeroed() };
        let (fd, refcnt) = (pipe.0.as_raw_fd(), 0);
        let channel = ibv_comp_channel {
            context,
            fd,
            refcnt,
        };
        // SAFETY: the object is new, and its address is not known elsewhere.
        unsafe { *object.as_ptr() = channel };
        library.channels.insert(
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
    status(|library| {
        let address = channel.addr();
        let Some(found) = library.channels.get(&address) else {
            library.violation(verb, "the channel does not exist or was destroyed");
            return Err(libc::EINVAL);
        };
        let id = found.device;
        library.note(verb, id, "")?;
        if library
            .queues
            .values()
            .any(|queue| queue.channel == Some(address))
        {
            return Err(libc::EBUSY);
        }
        library.channels.remove(&address);
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
    let fd = plain(None, |library| {
        let channel = library.channels.get(&address);
        let fd = channel.map(|channel| channel.pipe.0.as_raw_fd());
        if fd.is_none() {
            library.violation(
                "ibv_get_cq_event",
                "the channel does not exist or was destroyed",
            );
        }
        fd
    });
    let Some(fd) = fd else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // Without the lock, because this may wait.
    if !event::take_token(fd) {
        return -1;
    }
    let taken = plain(None, |library| {
        let queue = library.channels.get_mut(&address)?.events.pop_front()?;
        *library
            .unacknowledged
            .entry(Subject::Completions(queue))
            .or_default() += 1;
        library.queues.get(&queue).map(|queue| queue.object)
    });
    let Some(object) = taken else {
        // The queue of the event is destroyed.
        set_errno(libc::EAGAIN);
        return -1;
    };
    let object = object.as_ptr();
    // SAFETY: the contract of this function; the object is never freed.
    unsafe {
        cq.write(object.cast());
        cq_context.write((*object).cq_context);
    }
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_ack_cq_events(cq: *mut ibv_cq, events: c_uint) {
    plain((), |library| {
        event::acknowledge_completions(library, cq.addr(), events as usize);
    });
}
