//! Contexts: open devices.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, OnceLock};

use gdr_nic::{self as nic, LinkEvent, LinkState, LinkWatch};
use gdr_nic::{Mtu, random_bytes};
use gdr_verbs_sys::{ibv_context, ibv_event_type, verbs_context};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::OFlags;

use crate::counters;
use crate::device::{Device, lock};
use crate::device_use::{self, Step};
use crate::errno::Errno;
use crate::event::{self, Event, Subject};
use crate::event_queue::EventQueue;
use crate::slab::{CObject, is_inherited};
use crate::table::Table;

/// An open device.
pub(crate) struct Context {
    object: CObject<verbs_context>,
    device: Arc<Device>,
    events: Arc<EventQueue<Event>>,
    link: Mutex<LinkWatch>,
    /// What programs poll: it is readable while there are events, or a report of the kernel that becomes
    /// one. So no thread has to wait for those.
    readiness: OwnedFd,
    /// What the descriptor waits for its sources by, so that copies of it are known.
    number: u64,
    /// The copy of another context's descriptor that it was imported by.
    imported_by: Option<OwnedFd>,
    /// The engine, from the first object on that needs it.
    engine: OnceLock<nic::Device>,
}

pub(crate) static CONTEXTS: Table<Context> = Table::new();

impl Context {
    /// Opens a device; `fill` sets the operations of its structure. The descriptor is the one that it is imported by.
    pub(crate) fn open(
        device: Arc<Device>,
        imported_by: Option<OwnedFd>,
        fill: impl FnOnce(&mut verbs_context),
    ) -> Result<Arc<Self>, Errno> {
        let events = Arc::new(EventQueue::nonblocking()?);
        let link = LinkWatch::new(device.nic());
        let number = u64::from_ne_bytes(random_bytes()?);
        let readiness = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for source in [Some(events.as_fd()), link.as_fd()].into_iter().flatten() {
            epoll::add(
                &readiness,
                source,
                EventData::new_u64(number),
                EventFlags::IN,
            )?;
        }
        let fd = readiness.as_raw_fd();
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object = unsafe {
            CObject::<verbs_context>::new(|whole| {
                fill(whole);
                whole.context.device = device.as_ptr();
                // No commands are sent to it, but programs duplicate it for other processes.
                whole.context.cmd_fd = fd;
                whole.context.async_fd = fd;
                whole.context.num_comp_vectors = 1;
            })
        };
        device_use::reached(Step::Opened);
        lock(&device.owners().contexts).push(Arc::clone(&events));
        Ok(Arc::new(Self {
            object,
            device,
            events,
            link: Mutex::new(link),
            readiness,
            number,
            imported_by,
            engine: OnceLock::new(),
        }))
    }

    pub(crate) fn of(context: *mut ibv_context) -> Result<Arc<Self>, Errno> {
        CONTEXTS.get(context)
    }

    /// The device of a context, also of one that a parent of this process opened: with hardware, too, a forked child
    /// may go on asking for what needs no engine.
    pub(crate) fn device_of(context: *mut ibv_context) -> Result<Arc<Device>, Errno> {
        match is_inherited(context) {
            // SAFETY: the memory of handles stays, and the device in it is looked up.
            true => Device::of(unsafe { (*context).device }),
            false => Ok(Arc::clone(Self::of(context)?.device())),
        }
    }

    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the object lives; this only computes an address in it.
        unsafe { &raw mut (*self.object.as_ptr()).context }
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// A number that no other context has, also not one of another process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Whether a descriptor is its own, or one that it was imported by.
    pub(crate) fn has_descriptor(&self, fd: RawFd) -> bool {
        let own = [Some(&self.readiness), self.imported_by.as_ref()];
        own.into_iter().flatten().any(|own| own.as_raw_fd() == fd)
    }

    /// Whether both belong to one device.
    pub(crate) fn is_of_device(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.device, &other.device)
    }

    pub(crate) fn events(&self) -> &Arc<EventQueue<Event>> {
        &self.events
    }

    /// The state of the interface and the address of its device. Changes become events.
    pub(crate) fn link(&self) -> LinkState {
        let mut link = lock(&self.link);
        let state = link.poll(&mut |change| {
            let kind = match change {
                LinkEvent::Up => ibv_event_type::IBV_EVENT_PORT_ACTIVE,
                LinkEvent::Down => ibv_event_type::IBV_EVENT_PORT_ERR,
                LinkEvent::AddressChanged => ibv_event_type::IBV_EVENT_GID_CHANGE,
                _ => return,
            };
            event::raise(&self.events, kind, &Subject::Port(1));
        });
        match self.engine.get() {
            Some(engine) => engine.link_with_faults(state),
            None => state,
        }
    }

    /// The largest path MTU of its interface.
    pub(crate) fn mtu(&self) -> Mtu {
        self.link().path_mtu.unwrap_or(Mtu::B1024)
    }

    /// Takes the oldest event. Waits for one unless the descriptor that the program has is non-blocking:
    /// `EAGAIN` then. `count` is as in [`EventQueue::take`].
    pub(crate) fn take_event<R>(&self, count: impl Fn(Event) -> R) -> Result<R, Errno> {
        loop {
            self.link();
            match self.events.take(&count) {
                Err(Errno::AGAIN) => {}
                taken => return taken,
            }
            if rustix::fs::fcntl_getfl(&self.readiness)?.contains(OFlags::NONBLOCK) {
                return Err(Errno::AGAIN);
            }
            let ready = PollFd::from_borrowed_fd(self.readiness.as_fd(), PollFlags::IN);
            rustix::event::poll(&mut [ready], None)?;
        }
    }

    /// The engine of its device, which it keeps open from here on.
    pub(crate) fn engine(&self) -> Result<&nic::Device, Errno> {
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
            counters::write(&self.device.name(), engine);
        }
        let mut contexts = lock(&self.device.owners().contexts);
        contexts.retain(|events| !Arc::ptr_eq(events, &self.events));
    }
}
