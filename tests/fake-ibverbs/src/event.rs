//! Asynchronous events: first the ones that a test raises, then the NIC's.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use gdr_verbs_sys::{ibv_async_event, ibv_context, ibv_event_type};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};
use rustix::fs::OFlags;

use crate::nic::nic;
use crate::state::{DeviceId, Kind, LibraryState, lock_state};
use crate::verb::{Outcome, errno_of, minus_one, plain};

/// Returns an event of this type about a port, or the device if 0.
pub(crate) fn of_port(kind: ibv_event_type, port: u8) -> ibv_async_event {
    let mut event = ibv_async_event {
        event_type: kind,
        ..Default::default()
    };
    event.element.port_num = c_int::from(port);
    event
}

/// Returns what an event is about. All events here were zeros before a member was set.
fn subject(event: &ibv_async_event) -> usize {
    // SAFETY: each member is within these bytes.
    unsafe { event.element.qp }.addr()
}

/// The events of a context.
pub(crate) struct Events {
    raised: VecDeque<ibv_async_event>,
    unacknowledged: Vec<ibv_async_event>,
    /// Counts the raised events.
    count: OwnedFd,
    /// Descriptor that programs poll: readable while there are raised events, or events of the NIC.
    readiness: OwnedFd,
}

// SAFETY: the pointers in events are only passed on.
unsafe impl Send for Events {}

impl Events {
    /// Returns the events in addition to the NIC's, which this descriptor announces.
    pub(crate) fn beside(nic: c_int) -> Outcome<Self> {
        // SAFETY: the context of the descriptor was just opened.
        let nic = unsafe { BorrowedFd::borrow_raw(nic) };
        let made = || {
            rustix::fs::fcntl_setfl(nic, rustix::fs::fcntl_getfl(nic)? | OFlags::NONBLOCK)?;
            let flags = EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
            let count = eventfd(0, flags)?;
            let readiness = epoll::create(CreateFlags::CLOEXEC)?;
            for source in [nic, count.as_fd()] {
                epoll::add(&readiness, source, EventData::new_u64(0), EventFlags::IN)?;
            }
            Ok(Self {
                raised: VecDeque::new(),
                unacknowledged: Vec::new(),
                count,
                readiness,
            })
        };
        made().map_err(|error: rustix::io::Errno| error.raw_os_error())
    }

    pub(crate) fn fd(&self) -> c_int {
        self.readiness.as_raw_fd()
    }

    fn push(&mut self, event: ibv_async_event) {
        self.raised.push_back(event);
        // Fails only at 2^64 - 1 events.
        let _ = rustix::io::write(&self.count, &1_u64.to_ne_bytes());
    }

    fn take(&mut self) -> Option<ibv_async_event> {
        while rustix::io::read(&self.count, &mut [0; 8]).is_ok() {
            // If there is none, it was an event of an object that was destroyed.
            if let Some(event) = self.raised.pop_front() {
                self.unacknowledged.push(event);
                return Some(event);
            }
        }
        None
    }
}

impl LibraryState {
    /// Adds an event to every context of the device.
    pub(crate) fn raise(&mut self, id: DeviceId, event: ibv_async_event) {
        for (address, context) in &mut self.contexts {
            if self.objects.get(address).is_some_and(|it| it.device == id) {
                context.events.push(event);
            }
        }
    }

    /// Removes the events of a destroyed queue pair.
    pub(crate) fn forget_events(&mut self, verb: &str, pair: usize) {
        let mut unacknowledged = 0;
        for context in self.contexts.values_mut() {
            let events = &mut context.events;
            events.raised.retain(|event| subject(event) != pair);
            let waiting = events.unacknowledged.iter();
            unacknowledged += waiting.filter(|event| subject(event) == pair).count();
        }
        if unacknowledged > 0 {
            let what = "events were not acknowledged: libibverbs waits without a limit";
            self.violation(verb, format_args!("{unacknowledged} {what}"));
        }
    }
}

/// Waits until the program's descriptor is readable, unless it is non-blocking: `EAGAIN` then.
fn wait(context: *mut ibv_context) -> Outcome<()> {
    // SAFETY: the context is open during the call.
    let fd = unsafe { BorrowedFd::borrow_raw((*context).async_fd) };
    let wait = || {
        if rustix::fs::fcntl_getfl(fd)?.contains(OFlags::NONBLOCK) {
            return Err(rustix::io::Errno::AGAIN);
        }
        rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], None)
    };
    wait()
        .map(|_ready| ())
        .map_err(|error| error.raw_os_error())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let verb = "ibv_get_async_event";
    minus_one(|| {
        loop {
            let mut library = lock_state();
            library.object(verb, Kind::Context, context.addr())?;
            let opened = library.contexts.get_mut(&context.addr());
            if let Some(raised) = opened.and_then(|opened| opened.events.take()) {
                // SAFETY: the contract of this function.
                unsafe { event.write(raised) };
                return Ok(());
            }
            // Release the lock first, because the NIC may wait for its own.
            drop(library);
            // SAFETY: the contract of this function; the context is open.
            match unsafe { nic().ibv_get_async_event(context, event) }.map_err(errno_of) {
                Err(libc::EAGAIN) => wait(context)?,
                taken => return taken,
            }
        }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the contract of this function.
    let given = unsafe { event.read() };
    let is_raised = plain(false, |library| {
        library.contexts.values_mut().any(|context| {
            let unacknowledged = &mut context.events.unacknowledged;
            let found = unacknowledged.iter().position(|raised| {
                raised.event_type == given.event_type && subject(raised) == subject(&given)
            });
            found.map(|at| unacknowledged.remove(at)).is_some()
        })
    });
    if !is_raised {
        // SAFETY: an event of the NIC, which checks its object.
        unsafe { nic().ibv_ack_async_event(event) };
    }
}
