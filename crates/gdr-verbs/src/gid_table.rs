//! The GIDs of a port.
//!
//! A device has one GID, its address. Programs written for network cards name it by other indices than
//! 0: with Linux's rxe the GID of an IPv4 address is at 1, and with mlx5 the one of RoCE v2 is at 3.
//! So several indices name it.
//!
//! The table that is listed has the first entry only, as in `/sys/class/infiniband`: programs that choose
//! among entries have nothing to choose.

use std::ffi::c_int;
use std::net::Ipv6Addr;

use gdr_verbs_sys::{ibv_context, ibv_gid, ibv_gid_entry, ibv_gid_type};

use crate::context::Context;
use crate::device::check_gid_index;
use crate::errno::Errno;
use crate::query::{PORT, device_with_port, put_part};
use crate::ret::{count, minus_one, status_and_errno};
use crate::slab::is_own;
use crate::system::forward;

/// # Safety
/// `gid` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    forward!(unless is_own(context), ibv_query_gid(context, port, index, gid));
    minus_one(|| {
        let context = device_with_port(context, port.into())?;
        check_gid_index(index.cast_unsigned())?;
        // This is how libibverbs reads an empty entry.
        let empty = Ipv6Addr::UNSPECIFIED;
        let raw = found(&context).unwrap_or(empty).octets();
        // SAFETY: the contract of this function.
        unsafe { gid.write(ibv_gid { raw }) };
        Ok(())
    })
}

/// The GID, while this host has the address.
fn found(context: &Context) -> Option<Ipv6Addr> {
    let has_address = context.link().has_address;
    has_address.then(|| context.device().gid())
}

/// The entry of an index.
fn entry(context: &Context, gid: Ipv6Addr, index: u32) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: ibv_gid { raw: gid.octets() },
        gid_index: index,
        port_num: PORT,
        gid_type: ibv_gid_type::IBV_GID_TYPE_ROCE_V2.0,
        ndev_ifindex: context.link().interface,
    }
}

/// # Safety
/// `size` bytes at `entry` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    forward!(unless is_own(context), _ibv_query_gid_ex(context, port, index, entry, flags, size));
    status_and_errno(|| {
        let context = device_with_port(context, port)?;
        if flags != 0 {
            return Err(Errno::INVAL);
        }
        check_gid_index(index)?;
        let gid = found(&context).ok_or(Errno::NODATA)?;
        // SAFETY: the contract of this function.
        unsafe { put_part(&self::entry(&context, gid, index), entry, size) };
        Ok(())
    })
}

/// # Safety
/// `room` entries of `size` bytes are writable at `entries`.
#[unsafe(no_mangle)]
unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut ibv_context,
    entries: *mut ibv_gid_entry,
    room: usize,
    flags: u32,
    size: usize,
) -> isize {
    forward!(unless is_own(context), _ibv_query_gid_table(context, entries, room, flags, size));
    count(|| {
        let context = Context::of(context)?;
        if flags != 0 || room == 0 {
            return Err(Errno::INVAL);
        }
        let Some(gid) = found(&context) else {
            return Ok(0);
        };
        // SAFETY: the contract of this function: there is room for one.
        unsafe { put_part(&entry(&context, gid, 0), entries, size) };
        Ok(1)
    })
}

/// `enum ibv_gid_type_sysfs`: RoCE v1, which libibverbs also says of an empty entry, and RoCE v2.
const SYSFS_ROCE_V1: u32 = 0;
const SYSFS_ROCE_V2: u32 = 1;

/// The type of a GID, by a private function of libibverbs that its example programs call.
///
/// # Safety
/// `kind` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    forward!(unless is_own(context), ibv_query_gid_type(context, port, index, kind));
    minus_one(|| {
        let context = device_with_port(context, port.into())?;
        check_gid_index(index)?;
        let found = found(&context).map_or(SYSFS_ROCE_V1, |_| SYSFS_ROCE_V2);
        // SAFETY: the contract of this function.
        unsafe { kind.write(found) };
        Ok(())
    })
}
