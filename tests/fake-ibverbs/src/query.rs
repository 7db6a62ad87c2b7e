//! Queries of devices and ports.

use std::ffi::{c_int, c_void};
use std::ptr;

use gdr_verbs_sys::{
    __be16, ibv_atomic_cap, ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid,
    ibv_gid_entry, ibv_mtu, ibv_odp_general_caps, ibv_odp_transport_cap_bits, ibv_port_attr,
    ibv_port_state, ibv_qp, ibv_query_device_ex_input, ibv_values_ex, ibv_wr_opcode,
};

use crate::c_abi::Outcome;
use crate::ret::{count, number, status};
use crate::spec::{DeviceSpec, GidSpec, PortSpec};
use crate::state::{LibraryState, put_text};

fn limits(spec: &DeviceSpec) -> ibv_device_attr {
    let mut attr = ibv_device_attr {
        node_guid: spec.guid.to_be(),
        sys_image_guid: spec.guid.to_be(),
        max_mr_size: u64::MAX,
        page_size_cap: !0xfff,
        vendor_id: spec.vendor_id,
        vendor_part_id: spec.vendor_part_id,
        max_qp: 131_072,
        max_qp_wr: spec.max_requests,
        max_sge: 30,
        max_sge_rd: 30,
        max_cq: 16_777_216,
        max_cqe: 4_194_303,
        max_mr: 16_777_216,
        max_pd: 8_388_608,
        max_qp_rd_atom: spec.max_reads,
        max_res_rd_atom: spec.max_reads.saturating_mul(131_072),
        max_qp_init_rd_atom: spec.max_reads,
        atomic_cap: ibv_atomic_cap(spec.atomics),
        max_pkeys: 128,
        local_ca_ack_delay: 16,
        phys_port_cnt: spec.ports.len() as u8,
        ..Default::default()
    };
    put_text(&mut attr.fw_ver, &spec.firmware);
    attr
}

/// # Safety
///
/// `attr` is writable.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    let verb = "ibv_query_device";
    status(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        // SAFETY: the contract of this function.
        unsafe { attr.write(limits(&library.devices[id].spec)) };
        Ok(())
    })
}

/// # Safety
///
/// `size` bytes at `attr` are writable.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    let verb = "ibv_query_device_ex";
    status(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        let spec = &library.devices[id].spec;
        let mut full = ibv_device_attr_ex {
            orig_attr: limits(spec),
            hca_core_clock: 1_000_000,
            completion_timestamp_mask: u64::MAX >> 1,
            phys_port_cnt_ex: spec.ports.len() as u32,
            ..Default::default()
        };
        if spec.on_demand {
            full.odp_caps.general_caps = u64::from(ibv_odp_general_caps::IBV_ODP_SUPPORT.0);
            let all = ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_SEND
                | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_RECV
                | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_WRITE
                | ibv_odp_transport_cap_bits::IBV_ODP_SUPPORT_READ;
            full.odp_caps.per_transport_caps.rc_odp_caps = all.0;
        }
        // SAFETY: the contract of this function; all of the structure is initialized, for it began as
        // zeros.
        unsafe { put_part(&full, attr, size) };
        Ok(())
    })
}

/// Writes as much of `whole` as fits.
///
/// # Safety
///
/// `size` bytes at `place` are writable.
unsafe fn put_part<T>(whole: &T, place: *mut T, size: usize) {
    let size = size.min(size_of::<T>());
    // SAFETY: both have at least this many bytes, and do not overlap: one is the caller's.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(whole).cast::<u8>(), place.cast(), size) };
}

fn port_attributes(spec: &PortSpec) -> ibv_port_attr {
    ibv_port_attr {
        state: ibv_port_state(spec.state),
        max_mtu: ibv_mtu(spec.max_mtu),
        active_mtu: ibv_mtu(spec.active_mtu),
        gid_tbl_len: spec.gid_table as c_int,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: 1,
        lid: spec.lid,
        sm_lid: spec.sm_lid,
        active_width: spec.width,
        active_speed: spec.speed,
        phys_state: spec.phys_state,
        link_layer: spec.link_layer,
        ..Default::default()
    }
}

impl LibraryState {
    fn port_spec(&mut self, verb: &str, context: *mut ibv_context, port: u32) -> Outcome<PortSpec> {
        let id = self.device_of(verb, context)?;
        self.begin(verb, id, format_args!("port {port}"))?;
        let port = u8::try_from(port).map_err(|_| libc::EINVAL)?;
        self.devices[id].port(port).cloned().ok_or(libc::EINVAL)
    }
}

/// # Safety
///
/// `size` bytes at `attr` are writable.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|library| {
        let spec = library.port_spec("ibv_query_port", context, u32::from(port))?;
        let mut full = port_attributes(&spec);
        full.active_speed_ex = u32::from(spec.speed);
        // SAFETY: the contract of this function.
        unsafe { put_part(&full, attr, size) };
        Ok(())
    })
}

/// # Safety
///
/// The old structure, which ends before `port_cap_flags2`, is writable at `attr`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    status(|library| {
        let spec = library.port_spec("ibv_query_port", context, u32::from(port))?;
        let size = std::mem::offset_of!(ibv_port_attr, port_cap_flags2);
        // SAFETY: the contract of this function.
        unsafe { put_part(&port_attributes(&spec), attr.cast(), size) };
        Ok(())
    })
}

/// # Safety
///
/// `speed` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    status(|library| {
        let spec = library.port_spec("ibv_query_port_speed", context, port)?;
        let lanes = match spec.width {
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => 1,
        };
        let lane = if spec.speed == 128 { 1000 } else { 250 };
        // SAFETY: the contract of this function.
        unsafe { speed.write(lane * lanes) };
        Ok(())
    })
}

/// # Safety
///
/// `gid` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    status(|library| {
        let spec = library.port_spec("ibv_query_gid", context, u32::from(port))?;
        let index = u32::try_from(index).map_err(|_| libc::EINVAL)?;
        if index >= spec.gid_table {
            return Err(libc::EINVAL);
        }
        let entry = spec.gids.iter().find(|entry| entry.index == index);
        let raw = entry.map_or([0; 16], |entry| entry.gid);
        // SAFETY: the contract of this function.
        unsafe { gid.write(ibv_gid { raw }) };
        Ok(())
    })
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

/// # Safety
///
/// `size` bytes at `entry` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    _: u32,
    size: usize,
) -> c_int {
    status(|library| {
        let spec = library.port_spec("ibv_query_gid_ex", context, port)?;
        if index >= spec.gid_table {
            return Err(libc::EINVAL);
        }
        let found = spec.gids.iter().find(|entry| entry.index == index);
        let found = found.ok_or(libc::ENODATA)?;
        // SAFETY: the contract of this function.
        unsafe { put_part(&gid_entry(port, found), entry, size) };
        Ok(())
    })
}

/// # Safety
///
/// `room` entries of `size` bytes are writable at `entries`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    _: u32,
    size: usize,
) -> isize {
    let verb = "ibv_query_gid_table";
    count(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        let ports = (1..).zip(&library.devices[id].spec.ports);
        let all = ports.flat_map(|(port, spec)| spec.gids.iter().map(move |gid| (port, gid)));
        let mut written = 0;
        for (port, gid) in all {
            if written == room {
                return Err(libc::EINVAL);
            }
            // SAFETY: there is room for this many entries of this size.
            unsafe {
                put_part(
                    &gid_entry(port, gid),
                    entries.byte_add(written * size),
                    size,
                )
            };
            written += 1;
        }
        Ok(written as isize)
    })
}

/// # Safety
///
/// `pkey` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    status(|library| {
        library.port_spec("ibv_query_pkey", context, u32::from(port))?;
        if index != 0 {
            return Err(libc::EINVAL);
        }
        // SAFETY: the contract of this function.
        unsafe { pkey.write(0xffff) };
        Ok(())
    })
}

/// # Safety
///
/// `values` is readable and writable.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    let verb = "ibv_query_rt_values_ex";
    status(|library| {
        let id = library.device_of(verb, context)?;
        library.begin(verb, id, "")?;
        // SAFETY: a place for the time, in the caller's structure.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut (*values).raw_clock) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, _: ibv_wr_opcode, _: u32) -> c_int {
    let verb = "ibv_query_qp_data_in_order";
    number(|library| {
        let (_, id) = library.pair(verb, qp.addr())?;
        library.begin(verb, id, "")?;
        Ok(0)
    })
}
