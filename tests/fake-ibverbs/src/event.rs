//! Asynchronous events.

use std::ffi::c_int;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use gdr_verbs_sys::{ibv_async_event, ibv_context, ibv_cq, ibv_event_type, ibv_qp};

use crate::c_abi::set_errno;
use crate::ret::plain;
use crate::state::{DeviceId, Event, LibraryState, Subject, lock_state};

/// Notified when events are acknowledged.
static ACKNOWLEDGED: Condvar = Condvar::new();

/// How long the destruction of an object waits for the acknowledgement of its events. libibverbs has
/// no limit.
const LIMIT: Duration = Duration::from_secs(5);

impl LibraryState {
    /// Adds an event to every context of the device.
    pub(crate) fn raise(&mut self, id: DeviceId, kind: u32, subject: Subject) {
        for context in self.contexts.values_mut().filter(|it| it.device == id) {
            context.events.push_back(Event { kind, subject });
            // A pipe has room for tens of thousands of bytes.
            let _ = context.pipe.1.write(&[0]);
        }
    }

    fn acknowledge(&mut self, verb: &str, subject: Subject, events: usize) {
        let waiting = self.unacknowledged.entry(subject).or_default();
        if *waiting < events {
            let what = format!("acknowledges {events} events, but only {waiting} were returned");
            self.violation(verb, what);
        } else {
            *waiting -= events;
        }
        ACKNOWLEDGED.notify_all();
    }

    /// Removes the events of a destroyed object.
    pub(crate) fn forget_events(&mut self, subject: Subject) {
        for context in self.contexts.values_mut() {
            context.events.retain(|event| event.subject != subject);
        }
        self.unacknowledged.remove(&subject);
    }
}

/// Waits until the events of the object are acknowledged, as its destruction does. The real library
/// may wait without a limit; here a timeout is recorded as a violation.
pub(crate) fn wait_for_acknowledgement(verb: &str, subject: Subject) {
    let until = Instant::now() + LIMIT;
    let mut library = lock_state();
    while let Some(count) = library
        .unacknowledged
        .get(&subject)
        .copied()
        .filter(|it| *it > 0)
    {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let what =
                format!("{count} events were not acknowledged: libibverbs waits without a limit");
            library.violation(verb, what);
            return;
        }
        let waited = ACKNOWLEDGED.wait_timeout(library, left);
        library = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Reads the byte of an event, and waits for it if the descriptor is blocking.
pub(crate) fn take_token(fd: c_int) -> bool {
    let mut token = 0_u8;
    // SAFETY: the buffer has room for one byte.
    let read = unsafe { libc::read(fd, (&raw mut token).cast(), 1) };
    read == 1
}

/// # Safety
///
/// `event` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let verb = "ibv_get_async_event";
    let fd = plain(None, |library| {
        library.device_of(verb, context).ok()?;
        let context = library.contexts.get(&context.addr())?;
        Some(context.pipe.0.as_raw_fd())
    });
    let Some(fd) = fd else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // Without the lock, because this may wait.
    if !take_token(fd) {
        return -1;
    }
    let taken = plain(None, |library| {
        let taken = library
            .contexts
            .get_mut(&context.addr())?
            .events
            .pop_front()?;
        *library.unacknowledged.entry(taken.subject).or_default() += 1;
        Some(taken)
    });
    let Some(taken) = taken else {
        // The object of the event is destroyed.
        set_errno(libc::EAGAIN);
        return -1;
    };
    let mut returned = ibv_async_event {
        event_type: ibv_event_type(taken.kind),
        ..Default::default()
    };
    match taken.subject {
        Subject::Port(port) => returned.element.port_num = c_int::from(port),
        Subject::Queue(queue) | Subject::Completions(queue) => {
            returned.element.cq = std::ptr::with_exposed_provenance_mut::<ibv_cq>(queue);
        }
        Subject::Pair(pair) => {
            returned.element.qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair);
        }
    }
    // SAFETY: the contract of this function.
    unsafe { event.write(returned) };
    0
}

/// # Safety
///
/// `event` is readable and unchanged since it was returned.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: the contract of this function.
    let event = unsafe { event.read() };
    // SAFETY: all of the union's members are numbers or addresses, set when the event was returned.
    let (address, port) = unsafe { (event.element.qp.addr(), event.element.port_num) };
    plain((), |library| {
        let subject = if library.queues.contains_key(&address) {
            Subject::Queue(address)
        } else if library
            .pairs
            .values()
            .any(|pair| pair.object.address() == address)
        {
            Subject::Pair(address)
        } else {
            Subject::Port(u8::try_from(port).unwrap_or(u8::MAX))
        };
        library.acknowledge("ibv_ack_async_event", subject, 1);
    });
}

/// Acknowledges completion events of a queue.
pub(crate) fn acknowledge_completions(library: &mut LibraryState, queue: usize, events: usize) {
    library.acknowledge("ibv_ack_cq_events", Subject::Completions(queue), events);
}
