//! Devices: the list, contexts and protection domains.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;

use gdr_verbs_sys::{
    __be64, Verbs, ibv_context, ibv_device, ibv_fork_status, ibv_gid, ibv_node_type, ibv_pd,
    ibv_port_state, ibv_transport_type, verbs_context,
};

use crate::event::Events;
use crate::nic::{self, is_listing, keep_operations};
use crate::report::Call;
use crate::spec::{DeviceSpec, PortSpec};
use crate::state::{DeviceId, Kind, LibraryState, Object, lock_state};
use crate::verb::{Errno, Outcome, end, ends, make, plain, pointer, status};
use crate::{pair, query, queue, region};

pub(crate) struct Device {
    pub(crate) spec: DeviceSpec,
    /// The device as the program sees it. It is never freed.
    object: *mut ibv_device,
    /// Not listed any more.
    pub(crate) gone: bool,
    pub(crate) fatal: bool,
    pub(crate) held: bool,
    /// A call that destroys a queue pair blocks after destroying it.
    pub(crate) detains: bool,
    /// The status and vendor error of the next transfers.
    pub(crate) endings: VecDeque<(u32, u32)>,
    /// Verbs that fail, with their `errno` and how often; the first of a verb applies.
    refusals: VecDeque<(String, Errno, u32)>,
}

// SAFETY: the object is never freed, and does not change.
unsafe impl Send for Device {}

impl Device {
    pub(crate) fn new(spec: DeviceSpec) -> Self {
        // SAFETY: numbers, texts, and functions that may be null.
        let mut object: ibv_device = unsafe { std::mem::zeroed() };
        object.node_type = ibv_node_type(spec.node_type);
        object.transport_type = ibv_transport_type(spec.transport);
        put_text(&mut object.name, &spec.name);
        let refusals = spec.refusals.iter();
        Self {
            refusals: refusals
                .map(|(verb, errno)| (verb.clone(), *errno, u32::MAX))
                .collect(),
            spec,
            object: Box::into_raw(Box::new(object)),
            gone: false,
            fatal: false,
            held: false,
            detains: false,
            endings: VecDeque::new(),
        }
    }

    pub(crate) fn is(&self, object: *mut ibv_device) -> bool {
        self.object == object
    }

    pub(crate) fn refuse(&mut self, verb: String, errno: Errno, times: u32) {
        self.refusals.push_front((verb, errno, times));
    }

    pub(crate) fn port(&self, number: u8) -> Option<&PortSpec> {
        self.spec.ports.get(usize::from(number).checked_sub(1)?)
    }

    pub(crate) fn is_up(&self, port: &PortSpec) -> bool {
        !self.fatal && port.state == ibv_port_state::IBV_PORT_ACTIVE.0
    }

    /// Fails if the verb is configured to fail.
    pub(crate) fn check_refusals(&mut self, verb: &str) -> Outcome<()> {
        for (refused, errno, times) in &mut self.refusals {
            if refused == verb && *times > 0 {
                *times -= 1;
                return Err(*errno);
            }
        }
        Ok(())
    }
}

/// Stores a text in a C field, terminated by NUL.
pub(crate) fn put_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (place, byte) in field.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
}

/// An open device.
pub(crate) struct Context {
    pub(crate) events: Events,
    /// The GID of the NIC's device.
    pub(crate) gid: ibv_gid,
}

/// Replaces the operations that the device performs differently, and removes the ones that it lacks.
fn set_operations(context: &mut verbs_context, spec: &DeviceSpec) {
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(queue::poll_cq);
    ops.post_send = Some(pair::post_send);
    ops.post_recv = Some(pair::post_recv);
    context.advise_mr = spec.on_demand.then_some(region::advise_mr as _);
    let extended = spec.extended_queries;
    context.query_device_ex = extended.then_some(query::query_device_ex as _);
    context.query_port = extended.then_some(query::query_port as _);
    context.create_cq_ex = spec.extended_queues.then_some(queue::create_cq_ex as _);
    context.create_qp_ex = spec.extended_requests.then_some(pair::create_qp_ex as _);
}

impl LibraryState {
    fn device_at(&mut self, verb: &str, device: *mut ibv_device) -> Outcome<DeviceId> {
        let found = self.devices.iter().position(|it| it.is(device));
        if found.is_none() {
            self.violation(verb, "the device does not exist");
        }
        found.ok_or(libc::EINVAL)
    }

    fn open(&mut self, id: DeviceId) -> Outcome<*mut ibv_context> {
        let opened = nic::open()?;
        let gid = nic::gid(opened)?;
        // SAFETY: a context of the NIC is part of this structure. It is new, and its address is not
        // known elsewhere.
        let context = unsafe {
            &mut *opened
                .cast::<u8>()
                .sub(offset_of!(verbs_context, context))
                .cast::<verbs_context>()
        };
        keep_operations(context);
        set_operations(context, &self.devices[id].spec);
        context.context.device = self.devices[id].object;
        let events = Events::beside(context.context.async_fd)?;
        context.context.async_fd = events.fd();
        let address = opened.expose_provenance();
        self.contexts.insert(address, Context { events, gid });
        let object = Object {
            kind: Kind::Context,
            device: id,
            context: address,
        };
        self.objects.insert(address, object);
        Ok(opened)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|| {
        let mut list = Vec::new();
        if !is_listing() {
            let mut library = lock_state();
            for device in &mut library.devices {
                device.check_refusals("ibv_get_device_list")?;
            }
            let present = library.devices.iter().filter(|device| !device.gone);
            list.extend(present.map(|device| device.object));
        }
        let found = list.len();
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: the contract of this function.
            unsafe { count.write(found as c_int) };
        }
        Ok(list.leak().as_mut_ptr())
    })
}

/// Leaks the list: lists are short, and tests end soon.
#[unsafe(no_mangle)]
extern "C" fn ibv_free_device_list(_: *mut *mut ibv_device) {}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the device is never freed; this only computes an address in it.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    plain(0, |library| {
        let id = library.device_at("ibv_get_device_guid", device);
        id.map_or(0, |id| library.devices[id].spec.guid.to_be())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let verb = "ibv_open_device";
    pointer(|| {
        let mut library = lock_state();
        let id = library.device_at(verb, device)?;
        library.begin(verb, id, "")?;
        library.open(id)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let verb = "ibv_close_device";
    status(|| {
        let address = context.addr();
        // SAFETY: the program closes it once.
        end(Kind::Context, verb, context, "", |nic| unsafe {
            nic.ibv_close_device(context)
        })?;
        let mut library = lock_state();
        library.contexts.remove(&address);
        let left = library.objects.values();
        let left = left.filter(|object| object.context == address).count();
        if left > 0 {
            library.violation(
                verb,
                format_args!("{left} objects of the context are still alive"),
            );
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    status(|| {
        let mut library = lock_state();
        library.calls.push(Call {
            verb: "ibv_fork_init".to_owned(),
            ..Call::default()
        });
        library.fork_status = ibv_fork_status::IBV_FORK_ENABLED;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> ibv_fork_status {
    plain(ibv_fork_status::IBV_FORK_DISABLED, |library| {
        library.fork_status
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let of = (Kind::Context, context);
    // SAFETY: the context is open.
    make(of, ("ibv_alloc_pd", Kind::Domain), "", |nic| unsafe {
        nic.ibv_alloc_pd(context)
    })
}

ends!(ibv_dealloc_pd(Domain, ibv_pd));
