//! Queries of devices and ports.

use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use gdr_nic::{HashFields, MOST_ATTACHED, MOST_GROUPS, monotonic_clock};
use gdr_verbs_sys::{
    __be16, IBV_LINK_LAYER_ETHERNET, ibv_atomic_cap, ibv_context, ibv_device_attr,
    ibv_device_attr_ex, ibv_device_cap_flags, ibv_mtu, ibv_odp_caps, ibv_odp_caps__bindgen_ty_1,
    ibv_odp_general_caps, ibv_odp_transport_cap_bits, ibv_port_attr, ibv_port_cap_flags, ibv_qp,
    ibv_qp_type, ibv_query_device_ex_input, ibv_rss_caps, ibv_values_ex, ibv_values_mask,
    ibv_wr_opcode,
};

use crate::completion_queue::MOST_ENTRIES;
use crate::context::Context;
use crate::device::{Device, GIDS_LISTED, MOST_READS, MOST_REQUESTS, MOST_SEGMENTS, put_text};
use crate::device_memory;
use crate::errno::Errno;
use crate::port_state::PortState;
use crate::queue_pair::Pair;
use crate::ret::{minus_one, number, status, status_and_errno, unsupported};
use crate::slab::is_own;
use crate::system::{forward, forward_or};
use crate::work_queue;

/// The longest message.
const MOST_BYTES: u32 = 1 << 30;
/// How many objects of a kind there can be, as far as queries say: memory is the limit.
pub(crate) const MANY: c_int = 1 << 20;
/// `IBV_RAW_PACKET_CAP_IP_CSUM`.
const RAW_PACKET_CAP_IP_CSUM: u32 = 1 << 2;
/// `IB_UVERBS_DEVICE_FLUSH_GLOBAL` and `IB_UVERBS_DEVICE_ATOMIC_WRITE`.
const FLUSH_GLOBAL: u64 = 1 << 38;
const ATOMIC_WRITE: u64 = 1 << 40;
/// The frequency of the device's clock in kHz: it counts nanoseconds.
const CLOCK: u64 = 1_000_000;
/// The only port.
pub(crate) const PORT: u32 = 1;
/// 4x and 25 Gb/s a lane: 100 Gb/s, in the codes of the specification.
const WIDTH_4X: u8 = 2;
const SPEED_25: u8 = 32;
/// The same in units of 100 Mb/s.
const SPEED: u64 = 4 * 250;

fn device_attributes(device: &Device) -> ibv_device_attr {
    let reads = c_int::from(MOST_READS);
    let mut attr = ibv_device_attr {
        node_guid: device.guid().to_be(),
        sys_image_guid: device.guid().to_be(),
        max_mr_size: i64::MAX as u64,
        page_size_cap: !(rustix::param::page_size() as u64 - 1),
        // This is not the ID of any vendor, so no vendor's library claims the device. Linux's rxe uses it,
        // too.
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        hw_ver: 0,
        max_qp: MANY,
        max_qp_wr: MOST_REQUESTS as c_int,
        device_cap_flags: (ibv_device_cap_flags::IBV_DEVICE_RC_RNR_NAK_GEN
            | ibv_device_cap_flags::IBV_DEVICE_SYS_IMAGE_GUID
            | ibv_device_cap_flags::IBV_DEVICE_PORT_ACTIVE_EVENT
            | ibv_device_cap_flags::IBV_DEVICE_SRQ_RESIZE
            | ibv_device_cap_flags::IBV_DEVICE_XRC
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW
            | ibv_device_cap_flags::IBV_DEVICE_MEM_WINDOW_TYPE_2B
            | ibv_device_cap_flags::IBV_DEVICE_RAW_IP_CSUM
            | ibv_device_cap_flags::IBV_DEVICE_MANAGED_FLOW_STEERING)
            .0,
        max_sge: MOST_SEGMENTS as c_int,
        max_sge_rd: MOST_SEGMENTS as c_int,
        max_cq: MANY,
        max_cqe: MOST_ENTRIES,
        max_mr: MANY,
        max_mw: MANY,
        max_pd: MANY,
        max_qp_rd_atom: reads,
        max_res_rd_atom: reads * MANY,
        max_qp_init_rd_atom: reads,
        atomic_cap: ibv_atomic_cap::IBV_ATOMIC_HCA,
        max_mcast_grp: MOST_GROUPS as c_int,
        max_mcast_qp_attach: MOST_ATTACHED as c_int,
        max_total_mcast_qp_attach: (MOST_GROUPS * MOST_ATTACHED) as c_int,
        max_ah: MANY,
        max_srq: MANY,
        max_srq_wr: MOST_REQUESTS as c_int,
        max_srq_sge: MOST_SEGMENTS as c_int,
        max_raw_ethy_qp: MANY,
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: PORT as u8,
        ..Default::default()
    };
    put_text(&mut attr.fw_ver, env!("CARGO_PKG_VERSION"));
    attr
}

/// Writes as much of `whole` as the caller has room for.
///
/// # Safety
/// `size` bytes at `place` are writable.
pub(crate) unsafe fn put_part<T>(whole: &T, place: *mut T, size: usize) {
    let size = size.min(size_of::<T>());
    // SAFETY: both have at least this many bytes, and do not overlap: one is the caller's.
    unsafe { ptr::copy_nonoverlapping(ptr::from_ref(whole).cast::<u8>(), place.cast(), size) };
}

/// # Safety
/// `attr` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    forward!(unless is_own(context), ibv_query_device(context, attr));
    status(|| {
        let context = Context::of(context)?;
        // SAFETY: the contract of this function.
        unsafe { attr.write(device_attributes(context.device())) };
        Ok(())
    })
}

/// Every operation works on memory that is paged on demand.
fn on_demand_paging() -> ibv_odp_caps {
    use ibv_odp_transport_cap_bits as Bits;
    let datagrams =
        Bits::IBV_ODP_SUPPORT_SEND | Bits::IBV_ODP_SUPPORT_RECV | Bits::IBV_ODP_SUPPORT_SRQ_RECV;
    let unreliable = datagrams | Bits::IBV_ODP_SUPPORT_WRITE;
    let reliable = unreliable
        | Bits::IBV_ODP_SUPPORT_READ
        | Bits::IBV_ODP_SUPPORT_ATOMIC
        | Bits::IBV_ODP_SUPPORT_FLUSH
        | Bits::IBV_ODP_SUPPORT_ATOMIC_WRITE;
    let general =
        ibv_odp_general_caps::IBV_ODP_SUPPORT | ibv_odp_general_caps::IBV_ODP_SUPPORT_IMPLICIT;
    ibv_odp_caps {
        general_caps: general.0.into(),
        per_transport_caps: ibv_odp_caps__bindgen_ty_1 {
            rc_odp_caps: reliable.0,
            uc_odp_caps: unreliable.0,
            ud_odp_caps: datagrams.0,
        },
    }
}

/// # Safety
/// `size` bytes at `attr` are writable.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    status(|| {
        let device = Context::device_of(context)?;
        let whole = ibv_device_attr_ex {
            orig_attr: device_attributes(&device),
            phys_port_cnt_ex: PORT,
            device_cap_flags_ex: u64::from(device_attributes(&device).device_cap_flags)
                | FLUSH_GLOBAL
                | ATOMIC_WRITE,
            raw_packet_caps: RAW_PACKET_CAP_IP_CSUM,
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK,
            odp_caps: on_demand_paging(),
            xrc_odp_caps: on_demand_paging().per_transport_caps.rc_odp_caps,
            rss_caps: ibv_rss_caps {
                supported_qpts: 1 << ibv_qp_type::IBV_QPT_RAW_PACKET.0,
                max_rwq_indirection_tables: MANY as u32,
                max_rwq_indirection_table_size: work_queue::MOST_ENTRIES,
                rx_hash_fields_mask: HashFields::all().bits(),
                rx_hash_function: work_queue::TOEPLITZ,
            },
            max_wq_type_rq: MANY as u32,
            max_dm_size: device_memory::MOST_BYTES,
            ..Default::default()
        };
        // SAFETY: the contract of this function.
        unsafe { put_part(&whole, attr, size) };
        Ok(())
    })
}

fn port_attributes(context: &Context) -> ibv_port_attr {
    let port = PortState::from(context.link().condition);
    ibv_port_attr {
        state: port.state,
        max_mtu: ibv_mtu::IBV_MTU_4096,
        active_mtu: ibv_mtu(u32::from(context.mtu().code())),
        gid_tbl_len: GIDS_LISTED,
        port_cap_flags: ibv_port_cap_flags::IBV_PORT_IP_BASED_GIDS.0,
        max_msg_sz: MOST_BYTES,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_25,
        active_speed_ex: u32::from(SPEED_25),
        phys_state: port.physical,
        link_layer: IBV_LINK_LAYER_ETHERNET,
        ..Default::default()
    }
}

/// The device of a context that has this port.
pub(crate) fn device_with_port(
    context: *mut ibv_context,
    port: u32,
) -> Result<Arc<Context>, Errno> {
    let context = Context::of(context)?;
    if port == PORT {
        Ok(context)
    } else {
        Err(Errno::INVAL)
    }
}

/// # Safety
/// `size` bytes at `attr` are writable.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    status(|| {
        let context = device_with_port(context, port.into())?;
        // SAFETY: the contract of this function.
        unsafe { put_part(&port_attributes(&context), attr, size) };
        Ok(())
    })
}

/// # Safety
/// The structure of libibverbs 1.1, which ends before `port_cap_flags2`, is writable at `attr`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut c_void,
) -> c_int {
    forward!(unless is_own(context), ibv_query_port(context, port, attr));
    let size = offset_of!(ibv_port_attr, port_cap_flags2);
    // SAFETY: the contract of this function.
    unsafe { query_port(context, port, attr.cast(), size) }
}

/// # Safety
/// `speed` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    forward_or!(unless is_own(context), ibv_query_port_speed(context, port, speed), unsupported());
    status(|| {
        device_with_port(context, port)?;
        // SAFETY: the contract of this function.
        unsafe { speed.write(SPEED) };
        Ok(())
    })
}

/// Full membership of the default partition.
const PKEY: u16 = 0xffff;

/// # Safety
/// `pkey` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut __be16,
) -> c_int {
    forward!(unless is_own(context), ibv_query_pkey(context, port, index, pkey));
    minus_one(|| {
        device_with_port(context, port.into())?;
        if index != 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the contract of this function.
        unsafe { pkey.write(PKEY.to_be()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn ibv_get_pkey_index(context: *mut ibv_context, port: u8, pkey: __be16) -> c_int {
    forward!(unless is_own(context), ibv_get_pkey_index(context, port, pkey));
    let found = status_and_errno(|| {
        device_with_port(context, port.into())?;
        if u16::from_be(pkey) == PKEY {
            Ok(())
        } else {
            Err(Errno::NOENT)
        }
    });
    if found == 0 { 0 } else { -1 }
}

/// # Safety
/// `values` is readable and writable.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    status(|| {
        Context::of(context)?;
        // SAFETY: the contract of this function.
        let values = unsafe { &mut *values };
        let wanted = ibv_values_mask(values.comp_mask);
        if wanted.contains(ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK) {
            let now = Duration::from_nanos(monotonic_clock());
            values.raw_clock.tv_sec = now.as_secs().cast_signed();
            values.raw_clock.tv_nsec = now.subsec_nanos().into();
        }
        values.comp_mask &= ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        Ok(())
    })
}

/// Messages are placed in order, packet by packet, but a packet may be copied in any order.
#[unsafe(no_mangle)]
extern "C" fn ibv_query_qp_data_in_order(
    qp: *mut ibv_qp,
    opcode: ibv_wr_opcode,
    flags: u32,
) -> c_int {
    forward!(unless is_own(qp), ibv_query_qp_data_in_order(qp, opcode, flags));
    number(|| Pair::of(qp).map(|_| 0)).max(0)
}
