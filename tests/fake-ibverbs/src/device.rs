//! Devices: listing, opening, closing.

use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

use gdr_verbs_sys::{
    __be64, ibv_context, ibv_device, ibv_node_type, ibv_pd, ibv_transport_type, verbs_context,
};

use crate::answer::{number, plain, pointer, status};
use crate::handle::Handle;
use crate::provider;
use crate::spec::DeviceSpec;
use crate::world::{Context, Domain, World};

/// Puts text into a field of C, ending in NUL.
pub(crate) fn put_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (place, byte) in field.iter_mut().zip(text.bytes().take(room)) {
        *place = byte as c_char;
    }
}

/// The device as programs see it.
pub(crate) fn object(spec: &DeviceSpec) -> Handle<ibv_device> {
    // SAFETY: numbers, texts, and functions that may be null.
    let handle: Handle<ibv_device> = unsafe { Handle::zeroed() };
    // SAFETY: the object is new: nobody else has its address.
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

impl World {
    fn device_at(&mut self, verb: &str, device: *mut ibv_device) -> Result<usize, c_int> {
        let found = self
            .devices
            .iter()
            .position(|it| it.object.as_ptr() == device);
        if found.is_none() {
            self.violation(verb, "the device is none");
        }
        found.ok_or(libc::EINVAL)
    }
}

/// # Safety
///
/// `count` is writable or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|world| {
        if world.list_errno != 0 {
            return Err(world.list_errno);
        }
        let present = world.devices.iter().filter(|device| !device.gone);
        let mut list: Vec<_> = present.map(|device| device.object.as_ptr()).collect();
        let found = list.len();
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: this function's contract.
            unsafe { count.write(found as c_int) };
        }
        Ok(Box::into_raw(list.into_boxed_slice()).cast())
    })
}

/// # Safety
///
/// `list` is from `ibv_get_device_list` and was not freed, or is null.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    if list.is_null() {
        return;
    }
    let mut entries = 1;
    // SAFETY: the list ends with null.
    while !unsafe { list.add(entries - 1).read() }.is_null() {
        entries += 1;
    }
    let list = ptr::slice_from_raw_parts_mut(list, entries);
    // SAFETY: it was made from a box of this length, and is given back once.
    drop(unsafe { Box::from_raw(list) });
}

/// # Safety
///
/// `device` is one of this library.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: the device is there for ever; this only computes an address in it.
    unsafe { (&raw const (*device).name).cast() }
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64 {
    plain(0, |world| {
        let id = world.device_at("ibv_get_device_guid", device);
        id.map_or(0, |id| world.devices[id].spec.guid.to_be())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number(|world| {
        let id = world.device_at("ibv_get_device_index", device)?;
        Ok(id as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let verb = "ibv_open_device";
    pointer(|world| {
        let id = world.device_at(verb, device)?;
        world.begin(verb, id, "")?;
        let pipe = io::pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        // SAFETY: numbers, pointers and functions that may be null, and a mutex nobody locks.
        let object: Handle<verbs_context> = unsafe { Handle::zeroed() };
        // SAFETY: the object is new: nobody else has its address.
        provider::fill(unsafe { &mut *object.as_ptr() }, &world.devices[id].spec);
        let context = Context {
            device: id,
            object,
            events: Default::default(),
            pipe,
        };
        let opened = context.as_ptr();
        // SAFETY: as above.
        unsafe {
            (*opened).device = device;
            (*opened).cmd_fd = -1;
            (*opened).async_fd = context.pipe.0.as_raw_fd();
            (*opened).num_comp_vectors = 1;
        }
        world.contexts.insert(opened.addr(), context);
        Ok(opened)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let verb = "ibv_close_device";
    status(|world| {
        let id = world.device_of(verb, context)?;
        world.note(verb, id, "")?;
        let address = context.addr();
        let left = world
            .domains
            .values()
            .filter(|domain| domain.context == address)
            .count()
            + world
                .queues
                .values()
                .filter(|queue| queue.context == address)
                .count();
        if left > 0 {
            world.violation(
                verb,
                format_args!("{left} objects of the context are still alive"),
            );
        }
        world.contexts.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    let verb = "ibv_alloc_pd";
    pointer(|world| {
        let id = world.device_of(verb, context)?;
        world.begin(verb, id, "")?;
        // SAFETY: a pointer and a number.
        let object: Handle<ibv_pd> = unsafe { Handle::zeroed() };
        let handle = world.number();
        // SAFETY: the object is new: nobody else has its address.
        unsafe { *object.as_ptr() = ibv_pd { context, handle } };
        world.domains.insert(
            object.address(),
            Domain {
                device: id,
                context: context.addr(),
            },
        );
        Ok(object.as_ptr())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    let verb = "ibv_dealloc_pd";
    status(|world| {
        let (id, _) = world.domain(verb, pd)?;
        world.note(verb, id, "")?;
        let address = pd.addr();
        let in_use = world
            .regions
            .values()
            .any(|region| region.domain == address)
            || world.pairs.values().any(|pair| pair.domain == address);
        if in_use {
            return Err(libc::EBUSY);
        }
        world.domains.remove(&address);
        Ok(())
    })
}
