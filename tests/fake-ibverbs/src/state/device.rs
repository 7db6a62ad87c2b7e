//! Devices, and the contexts, domains, channels and events of a device.

use std::collections::VecDeque;
use std::ffi::c_char;
use std::io::{PipeReader, PipeWriter};

use gdr_verbs_sys::{
    ibv_context, ibv_device, ibv_node_type, ibv_port_state, ibv_transport_type, verbs_context,
};

use crate::c_abi::{Errno, Handle, Outcome};
use crate::spec::{DeviceSpec, PortSpec};

/// An index in [`super::LibraryState::devices`].
pub(crate) type DeviceId = usize;

/// A verb that fails a number of times.
#[derive(Debug)]
struct Refusal {
    verb: String,
    errno: Errno,
    times: u32,
}

pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    pub(crate) object: Handle<ibv_device>,
    pub(crate) gone: bool,
    pub(crate) fatal: bool,
    pub(crate) held: bool,
    /// A call that destroys a queue pair destroys it and then blocks.
    pub(crate) detains: bool,
    /// The status and vendor error of the next transfers.
    pub(crate) endings: VecDeque<(u32, u32)>,
    refusals: Vec<Refusal>,
}

impl Device {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        let object = object(&spec);
        Self {
            spec,
            object,
            gone: false,
            fatal: false,
            held: false,
            detains: false,
            endings: VecDeque::new(),
            refusals: Vec::new(),
        }
    }

    pub(crate) fn refuse(&mut self, verb: String, errno: Errno, times: u32) {
        self.refusals.push(Refusal { verb, errno, times });
    }

    pub(crate) fn port(&self, number: u8) -> Option<&PortSpec> {
        self.spec.ports.get(usize::from(number).checked_sub(1)?)
    }

    pub(crate) fn port_is_up(&self, number: u8) -> bool {
        let active = ibv_port_state::IBV_PORT_ACTIVE.0;
        !self.fatal && self.port(number).is_some_and(|port| port.state == active)
    }

    /// Fails if the verb is configured to fail.
    pub(crate) fn check_refusals(&mut self, verb: &str) -> Outcome<()> {
        let due = |refusal: &&mut Refusal| refusal.verb == verb && refusal.times > 0;
        if let Some(refusal) = self.refusals.iter_mut().find(due) {
            refusal.times -= 1;
            return Err(refusal.errno);
        }
        self.spec
            .refusals
            .get(verb)
            .map_or(Ok(()), |errno| Err(*errno))
    }
}

/// An open device.
pub(crate) struct Context {
    pub(crate) device: DeviceId,
    pub(crate) object: Handle<verbs_context>,
    pub(crate) events: VecDeque<Event>,
    /// The pipe of `async_fd`; its write end makes it readable.
    pub(crate) pipe: (PipeReader, PipeWriter),
}

impl Context {
    pub(crate) fn as_ptr(&self) -> *mut ibv_context {
        // SAFETY: the object is never freed; this only computes an address in it.
        unsafe { &raw mut (*self.object.as_ptr()).context }
    }
}

pub(crate) struct Domain {
    pub(crate) device: DeviceId,
    pub(crate) context: usize,
}

pub(crate) struct Channel {
    pub(crate) device: DeviceId,
    /// The addresses of the queues with events.
    pub(crate) events: VecDeque<usize>,
    pub(crate) pipe: (PipeReader, PipeWriter),
}

/// The subject of an event: a port (0: the device), or an object by its address.
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
    pub(crate) kind: u32,
    pub(crate) subject: Subject,
}

/// Stores a text in a C field, terminated by NUL.
pub(crate) fn put_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (place, byte) in field.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
}

/// The device as the program sees it.
fn object(spec: &DeviceSpec) -> Handle<ibv_device> {
    // SAFETY: numbers, texts, and functions that may be null.
    let handle: Handle<ibv_device> = unsafe { Handle::zeroed() };
    // SAFETY: the object is new, and its address is not known elsewhere.
    let object = unsafe { &mut *handle.as_ptr() };
    object.node_type = ibv_node_type(spec.node_type);
    object.transport_type = ibv_transport_type(spec.transport);
    put_text(&mut object.name, &spec.name);
    put_text(&mut object.dev_name, "uverbs0");
    put_text(
        &mut object.dev_path,
        "/nonexistent/sys/class/infiniband_verbs/uverbs0",
    );
    put_text(&mut object.ibdev_path, &spec.sysfs);
    handle
}
