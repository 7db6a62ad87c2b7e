//! Multicast groups that queue pairs of datagrams are attached to.

use std::ffi::c_int;
use std::net::IpAddr;

use gdr_nic::{Datagrams, QueuePair};
use gdr_verbs_sys::{ibv_gid, ibv_qp};

use crate::address_handle::address_of;
use crate::errno::Errno;
use crate::queue_pair::{NicPair, Pair};
use crate::ret::status;
use crate::slab::is_own;
use crate::system::forward;

/// Calls a function with the queue pair and the group of a call. The LID is InfiniBand's.
///
/// # Errors
/// `EINVAL` for a queue pair of another service, and for a GID that is not one of a group.
///
/// # Safety
/// `gid` is readable.
unsafe fn with_group(
    qp: *mut ibv_qp,
    gid: *const ibv_gid,
    act: impl FnOnce(&QueuePair<Datagrams>, IpAddr) -> gdr_nic::Result<()>,
) -> c_int {
    status(|| {
        let pair = Pair::of(qp)?;
        let NicPair::Datagrams(datagrams) = pair.nic() else {
            return Err(Errno::INVAL);
        };
        // SAFETY: the contract of this function.
        let gid = unsafe { gid.read_unaligned() };
        Ok(act(datagrams, address_of(&gid))?)
    })
}

/// # Safety
/// `gid` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    forward!(unless is_own(qp), ibv_attach_mcast(qp, gid, lid));
    // SAFETY: the contract of this function.
    unsafe { with_group(qp, gid, QueuePair::attach_multicast) }
}

/// # Safety
/// `gid` is readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int {
    forward!(unless is_own(qp), ibv_detach_mcast(qp, gid, lid));
    // SAFETY: the contract of this function.
    unsafe { with_group(qp, gid, QueuePair::detach_multicast) }
}
