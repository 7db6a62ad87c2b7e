//! Asynchronous events.

use std::ffi::c_int;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::sync::{Condvar, PoisonError};
use std::time::{Duration, Instant};

use gdr_verbs_sys::{ibv_async_event, ibv_context, ibv_cq, ibv_event_type, ibv_qp};

use crate::answer::{plain, set_errno};
use crate::world::{DeviceId, World, world};

/// What an event is about: a port (0: the device), or an object by its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Port(u8),
    Queue(usize),
    Pair(usize),
    /// Completion events of a queue.
    Completions(usize),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    kind: u32,
    subject: Subject,
}

/// Notified when events are acknowledged.
static ACKNOWLEDGED: Condvar = Condvar::new();

/// How long destroying an object waits for its events to be acknowledged. libibverbs has no limit.
const LIMIT: Duration = Duration::from_secs(5);

impl World {
    /// Tells every context of the device.
    pub(crate) fn raise(&mut self, id: DeviceId, kind: u32, subject: Subject) {
        for context in self.contexts.values_mut().filter(|it| it.device == id) {
            context.events.push_back(Event { kind, subject });
            // A pipe takes tens of thousands of bytes before it is full.
            let _ = context.pipe.1.write(&[0]);
        }
    }

    fn acknowledge(&mut self, verb: &str, subject: Subject, events: usize) {
        let waiting = self.unacknowledged.entry(subject).or_default();
        if *waiting < events {
            let said = format!("acknowledges {events} events of which {waiting} were taken");
            self.violation(verb, said);
        } else {
            *waiting -= events;
        }
        ACKNOWLEDGED.notify_all();
    }

    /// Forgets events of an object that is no more.
    pub(crate) fn forget_events(&mut self, subject: Subject) {
        for context in self.contexts.values_mut() {
            context.events.retain(|event| event.subject != subject);
        }
        self.unacknowledged.remove(&subject);
    }
}

/// Waits until the object's events are acknowledged, as destroying it does. To wait for ever is
/// what the real library does; here it is noted.
pub(crate) fn wait_for_acknowledgement(verb: &str, subject: Subject) {
    let until = Instant::now() + LIMIT;
    let mut world = world();
    while let Some(count) = world
        .unacknowledged
        .get(&subject)
        .copied()
        .filter(|it| *it > 0)
    {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let said = format!("{count} events were not acknowledged: libibverbs waits for ever");
            world.violation(verb, said);
            return;
        }
        let waited = ACKNOWLEDGED.wait_timeout(world, left);
        world = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// Takes the byte that says that there is an event, waiting for it where the descriptor does.
pub(crate) fn take_token(fd: c_int) -> bool {
    let mut token = 0_u8;
    // SAFETY: a place for one byte.
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
    let fd = plain(None, |world| {
        world.device_of(verb, context).ok()?;
        let context = world.contexts.get(&context.addr())?;
        Some(context.pipe.0.as_raw_fd())
    });
    let Some(fd) = fd else {
        set_errno(libc::EINVAL);
        return -1;
    };
    // Without the lock: this may wait.
    if !take_token(fd) {
        return -1;
    }
    let taken = plain(None, |world| {
        let taken = world
            .contexts
            .get_mut(&context.addr())?
            .events
            .pop_front()?;
        *world.unacknowledged.entry(taken.subject).or_default() += 1;
        Some(taken)
    });
    let Some(taken) = taken else {
        // It was about an object that is gone.
        set_errno(libc::EAGAIN);
        return -1;
    };
    let mut told = ibv_async_event {
        event_type: ibv_event_type(taken.kind),
        ..Default::default()
    };
    match taken.subject {
        Subject::Port(port) => told.element.port_num = c_int::from(port),
        Subject::Queue(queue) | Subject::Completions(queue) => {
            told.element.cq = std::ptr::with_exposed_provenance_mut::<ibv_cq>(queue);
        }
        Subject::Pair(pair) => {
            told.element.qp = std::ptr::with_exposed_provenance_mut::<ibv_qp>(pair);
        }
    }
    // SAFETY: this function's contract.
    unsafe { event.write(told) };
    0
}

/// # Safety
///
/// `event` is readable, and as it was given.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut ibv_async_event) {
    // SAFETY: this function's contract.
    let event = unsafe { event.read() };
    // SAFETY: all of the union's members are numbers or addresses, set as the event was given.
    let (address, port) = unsafe { (event.element.qp.addr(), event.element.port_num) };
    plain((), |world| {
        let subject = if world.queues.contains_key(&address) {
            Subject::Queue(address)
        } else if world
            .pairs
            .values()
            .any(|pair| pair.object.address() == address)
        {
            Subject::Pair(address)
        } else {
            Subject::Port(u8::try_from(port).unwrap_or(u8::MAX))
        };
        world.acknowledge("ibv_ack_async_event", subject, 1);
    });
}

/// Acknowledges completion events of a queue.
pub(crate) fn acknowledge_completions(world: &mut World, queue: usize, events: usize) {
    world.acknowledge("ibv_ack_cq_events", Subject::Completions(queue), events);
}
