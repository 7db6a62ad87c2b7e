//! Devices: the list, contexts and protection domains.

use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::AsRawFd as _;
use std::ptr;

use gdr_verbs_sys::{__be64, ibv_context, ibv_device, ibv_fork_status, ibv_pd, verbs_context};

use crate::c_abi::Handle;
use crate::ret::{number, plain, pointer, status};
use crate::spec::DeviceSpec;
use crate::state::{Context, Domain, LibraryState};
use crate::{completion, pair, post, query, region};

/// The value of `ibv_context.abi_compat` in a context that is part of a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// Sets the operations of a context according to its device.
fn set_operations(context: &mut verbs_context, spec: &DeviceSpec) {
    context.sz = size_of::<verbs_context>();
    context.context.abi_compat = ptr::without_provenance_mut(EXTENDED);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(completion::poll_cq);
    ops.req_notify_cq = Some(completion::req_notify_cq);
    ops.post_send = Some(post::post_send);
    ops.post_recv = Some(post::post_recv);
    context.query_rt_values = Some(query::query_rt_values);
    if spec.on_demand {
        context.advise_mr = Some(region::advise_mr);
    }
    if spec.extended_queries {
        context.query_device_ex = Some(query::query_device_ex);
        context.query_port = Some(query::query_port);
    }
    if spec.extended_queues {
        context.create_cq_ex = Some(completion::create_cq_ex);
    }
    if spec.extended_requests {
        context.create_qp_ex = Some(pair::create_qp_ex);
    }
}

impl LibraryState {
    fn device_at(&mut self, verb: &str, device: *mut ibv_device) -> Result<usize, c_int> {
        let found = self
            .devices
            .iter()
            .position(|it| it.object.as_ptr() == device);
        if found.is_none() {
            self.violation(verb, "the device does not exist");
        }
        found.ok_or(libc::EINVAL)
    }
}

/// # Safety
///
/// `count` is writable or null.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    pointer(|library| {
        if library.list_errno != 0 {
            return Err(library.list_errno);
        }
        let present = library.devices.iter().filter(|device| !device.gone);
        let mut list: Vec<_> = present.map(|device| device.object.as_ptr()).collect();
        let found = list.len();
        list.push(ptr::null_mut());
        if !count.is_null() {
            // SAFETY: the contract of this function.
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
    // SAFETY: the list is from a box of this length, and is freed once.
    drop(unsafe { Box::from_raw(list) });
}

/// # Safety
///
/// `device` is one of this library.
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
extern "C" fn ibv_get_device_index(device: *mut ibv_device) -> c_int {
    number(|library| {
        let id = library.device_at("ibv_get_device_index", device)?;
        Ok(id as c_int)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let verb = "ibv_open_device";
    pointer(|library| {
        let id = library.device_at(verb, device)?;
        library.begin(verb, id, "")?;
        let pipe = io::pipe().map_err(|error| error.raw_os_error().unwrap_or(libc::EMFILE))?;
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let object: Handle<verbs_context> = unsafe { Handle::zeroed() };
        // SAFETY: the object is new, and its address is not known elsewhere.
        set_operations(unsafe { &mut *object.as_ptr() }, &library.devices[id].spec);
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
        library.contexts.insert(opened.addr(), context);
        Ok(opened)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    let verb = "ibv_close_device";
    status(|library| {
        let id = library.device_of(verb, context)?;
        library.note(verb, id, "")?;
        let address = context.addr();
        let left = library
            .domains
            .values()
            .filter(|domain| domain.context == address)
            .count()
            + library
                .queues
                .values()
                .filter(|queue| queue.context == address)
                .count();
        if left > 0 {
            library.violation(
                verb,
                format_args!("{left} objects of the context are still alive"),
            );
        }
        library.contexts.remove(&address);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    status(|library| {
        library.note_of_library("ibv_fork_init");
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
    let verb = "ibv_alloc_pd";
    pointer(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        // SAFETY: a pointer and a number.
        let object: Handle<ibv_pd> = unsafe { Handle::zeroed() };
        let handle = library.number();
        // SAFETY: the object is new, and its address is not known elsewhere.
        unsafe { *object.as_ptr() = ibv_pd { context, handle } };
        library.domains.insert(
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
    status(|library| {
        let (id, _) = library.domain(verb, pd)?;
        library.note(verb, id, "")?;
        let address = pd.addr();
        let in_use = library
            .regions
            .values()
            .any(|region| region.domain == address)
            || library.pairs.values().any(|pair| pair.domain == address);
        if in_use {
            return Err(libc::EBUSY);
        }
        library.domains.remove(&address);
        Ok(())
    })
}
