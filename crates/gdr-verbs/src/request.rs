//! Parts of requests in the form of the engine.

use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;
use std::slice;

use gdr_rdma::raw::{Data, Segment, SendFlags, UdSendRequest};
use gdr_rdma::{Immediate, Lkey, Qkey, Qpn, WrId};
use gdr_verbs_sys::{ibv_ah, ibv_send_flags, ibv_sge};
use smallvec::SmallVec;

use crate::address_handle::HANDLES;
use crate::errno::Errno;

/// The segments of a request, on the stack for most.
pub(crate) type Segments = SmallVec<[Segment; 8]>;
/// Inline bytes that were gathered from several places.
pub(crate) type Gathered = SmallVec<[u8; 256]>;

/// The scatter/gather list of a request.
///
/// # Safety
/// `list` has `count` entries.
pub(crate) unsafe fn entries<'a>(
    list: *const ibv_sge,
    count: c_int,
    most: u32,
) -> Result<&'a [ibv_sge], Errno> {
    let count = u32::try_from(count).map_err(|_| Errno::INVAL)?;
    if count > most {
        return Err(Errno::INVAL);
    }
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: the contract of this function; the program changes no list while it posts it.
    Ok(unsafe { slice::from_raw_parts(list, count as usize) })
}

pub(crate) fn segment(sge: &ibv_sge) -> Segment {
    Segment {
        lkey: Lkey(sge.lkey),
        addr: sge.addr,
        len: sge.length,
    }
}

/// The bytes of a place in the program's memory.
///
/// # Safety
/// The place is readable, and does not change while the result is used.
pub(crate) unsafe fn bytes_at<'a>(address: u64, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    let place = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the contract of this function.
    unsafe { slice::from_raw_parts(place, len) }
}

pub(crate) fn flags(send_flags: c_uint, signals_all: bool) -> SendFlags {
    let given = ibv_send_flags(send_flags);
    let mut flags = SendFlags::empty();
    let signalled = signals_all || given.contains(ibv_send_flags::IBV_SEND_SIGNALED);
    flags.set(SendFlags::SIGNALLED, signalled);
    flags.set(
        SendFlags::FENCE,
        given.contains(ibv_send_flags::IBV_SEND_FENCE),
    );
    flags.set(
        SendFlags::SOLICITED,
        given.contains(ibv_send_flags::IBV_SEND_SOLICITED),
    );
    flags.set(
        SendFlags::IP_CHECKSUM,
        given.contains(ibv_send_flags::IBV_SEND_IP_CSUM),
    );
    flags
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) to: SocketAddr,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

impl Destination {
    pub(crate) fn of(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<Self, Errno> {
        Ok(Self {
            to: HANDLES.get(ah)?.to(),
            qpn: Qpn::new(qpn),
            qkey: Qkey(qkey),
        })
    }

    pub(crate) fn request<'a>(
        self,
        id: WrId,
        immediate: Option<Immediate>,
        data: Data<'a>,
        flags: SendFlags,
    ) -> UdSendRequest<'a, SocketAddr> {
        UdSendRequest {
            id,
            to: self.to,
            dest_qpn: self.qpn,
            qkey: self.qkey,
            immediate,
            data,
            flags,
        }
    }
}
