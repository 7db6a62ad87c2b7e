//! Queries of devices and ports: values from a [`DeviceSpec`] where it has them, otherwise the NIC's.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;

use gdr_verbs_sys::{
    __be16, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_mtu, ibv_odp_general_caps, ibv_port_attr, ibv_port_state,
    ibv_query_device_ex_input,
};

use crate::device::put_text;
use crate::nic::nic;
use crate::spec::{DeviceSpec, GidSpec, PortSpec};
use crate::state::Kind;
use crate::verb::{Outcome, errno_of, forwards, number, on, status};

/// Answers a query of a device from its specification.
fn of_device<T>(
    verb: &str,
    context: *mut ibv_context,
    answer: impl FnOnce(&DeviceSpec) -> Outcome<T>,
) -> Outcome<T> {
    on((Kind::Context, context), verb, "", |library, id| {
        answer(&library.devices[id].spec)
    })
}

/// Answers a query of a port from its specification, in `size` bytes at `place`.
///
/// # Safety
///
/// They are writable.
unsafe fn of_port<T>(
    (verb, context, port): (&str, *mut ibv_context, u32),
    (place, size): (*mut T, usize),
    answer: impl FnOnce(&PortSpec) -> Outcome<T>,
) -> c_int {
    let detail = format_args!("port {port}");
    status(|| {
        on((Kind::Context, context), verb, detail, |library, id| {
            let port = u8::try_from(port).map_err(|_| libc::EINVAL)?;
            let port = library.devices[id].port(port).ok_or(libc::EINVAL)?;
            // SAFETY: the contract of this function.
            unsafe { put_part(&answer(port)?, place, size) };
            Ok(())
        })
    })
}

fn limits(context: *mut ibv_context, spec: &DeviceSpec) -> Outcome<ibv_device_attr> {
    let mut attr = ibv_device_attr::default();
    // SAFETY: the context is open.
    unsafe { nic().ibv_query_device(context, &mut attr) }.map_err(errno_of)?;
    attr.node_guid = spec.guid.to_be();
    attr.sys_image_guid = spec.guid.to_be();
    attr.vendor_id = spec.vendor_id;
    attr.vendor_part_id = spec.vendor_part_id;
    attr.max_qp_wr = spec.max_requests;
    attr.max_qp_rd_atom = spec.max_reads;
    attr.max_qp_init_rd_atom = spec.max_reads;
    attr.atomic_cap = ibv_atomic_cap(spec.atomics);
    attr.phys_port_cnt = spec.ports.len() as u8;
    attr.fw_ver.fill(0);
    put_text(&mut attr.fw_ver, &spec.firmware);
    Ok(attr)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    status(|| {
        of_device("ibv_query_device", context, |spec| {
            // SAFETY: the contract of this function.
            unsafe { attr.write(limits(context, spec)?) };
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        of_device("ibv_query_device_ex", context, |spec| {
            let mut full = ibv_device_attr_ex {
                orig_attr: limits(context, spec)?,
                phys_port_cnt_ex: spec.ports.len() as u32,
                ..Default::default()
            };
            if spec.on_demand {
                full.odp_caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
            }
            // SAFETY: the contract of this function. The whole structure is initialized, because it was zeroed first.
            unsafe { put_part(&full, attr, size) };
            Ok(())
        })
    })
}

/// Writes as much of `whole` as fits.
///
/// # Safety
///
/// `size` bytes at `place` are writable.
unsafe fn put_part<T>(whole: &T, place: *mut T, size: usize) {
    let size = size.min(size_of::<T>());
    // SAFETY: both have at least this many bytes, and do not overlap, because one belongs to the caller.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(whole).cast::<u8>(), place.cast(), size) };
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    let attributes = |spec: &PortSpec| ibv_port_attr {
        state: ibv_port_state(spec.state),
        max_mtu: ibv_mtu(spec.max_mtu),
        active_mtu: ibv_mtu(spec.active_mtu),
        gid_tbl_len: spec.gid_table as c_int,
        lid: spec.lid,
        active_width: spec.width,
        active_speed: spec.speed,
        active_speed_ex: u32::from(spec.speed),
        phys_state: spec.phys_state,
        link_layer: spec.link_layer,
        ..Default::default()
    };
    let query = ("ibv_query_port", context, port.into());
    // SAFETY: the contract of this function.
    unsafe { of_port(query, (attr, size), |spec| Ok(attributes(spec))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    // SAFETY: the contract of this function.
    unsafe {
        let size = offset_of!(ibv_port_attr, port_cap_flags2);
        query_port(context, port, attr.cast(), size)
    }
}

/// Returns the entry of a table with this index.
fn gid_at(spec: &PortSpec, index: u32) -> Outcome<Option<&GidSpec>> {
    if index >= spec.gid_table {
        return Err(libc::EINVAL);
    }
    Ok(spec.gids.iter().find(|entry| entry.index == index))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    let of_spec = |spec: &PortSpec| {
        let index = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        let raw = gid_at(spec, index)?.map_or([0; 16], |entry| entry.gid);
        Ok(ibv_gid { raw })
    };
    let query = ("ibv_query_gid", context, port.into());
    // SAFETY: the contract of this function.
    unsafe { of_port(query, (gid, size_of::<ibv_gid>()), of_spec) }
}

fn gid_entry(port: u32, spec: &GidSpec) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: spec.gid },
        gid_index: spec.index,
        port_num: port,
        gid_type: spec.kind,
        ndev_ifindex: spec.interface,
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _: u32,
    size: usize,
) -> c_int {
    let of_spec = |spec: &PortSpec| {
        let found = gid_at(spec, index)?.ok_or(libc::ENODATA)?;
        Ok(gid_entry(port, found))
    };
    // SAFETY: the contract of this function.
    unsafe { of_port(("ibv_query_gid_ex", context, port), (entry, size), of_spec) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    size: usize,
) -> isize {
    let written = number(|| {
        of_device("ibv_query_gid_table", context, |spec| {
            let ports = (1..).zip(&spec.ports);
            let all = ports.flat_map(|(port, spec)| spec.gids.iter().map(move |gid| (port, gid)));
            let mut written = 0;
            for (port, gid) in all {
                if written == room {
                    return Err(libc::EINVAL);
                }
                // SAFETY: there is room for this many entries of this size.
                unsafe {
                    let place = entries.byte_add(written * size);
                    put_part(&gid_entry(port, gid), place, size);
                }
                written += 1;
            }
            Ok(written as c_int)
        })
    });
    written as isize
}

forwards!(ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, key: *mut __be16));
