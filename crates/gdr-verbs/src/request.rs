//! Parts of requests in the form of the engine.

use std::ffi::{c_int, c_uint};
use std::net::SocketAddr;
use std::slice;

use gdr_nic::{Data, Segment, SendFlags, UdSendRequest};
use gdr_nic::{Immediate, Lkey, Qkey, Qpn, WrId};
use gdr_verbs_sys::{ibv_ah, ibv_recv_wr, ibv_send_flags, ibv_send_wr, ibv_sge};
use smallvec::SmallVec;

use crate::address_handle::HANDLES;
use crate::errno::Errno;

/// The segments of a request, on the stack for most.
pub(crate) type Segments = SmallVec<[Segment; 8]>;
/// Inline bytes that were gathered from several places.
pub(crate) type Gathered = SmallVec<[u8; 256]>;

/// A request in a list of requests.
pub(crate) trait Request {
    /// The next request; null if it is the last one.
    fn next(&self) -> *mut Self;
}

impl Request for ibv_send_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

impl Request for ibv_recv_wr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

/// Posts the requests of a list in turn until one is refused, at which `next` points then.
///
/// No call posts more than `most`, the size of the queue. A list can be a circle, and a queue that
/// flushes its requests at once is never full.
///
/// # Errors
/// The error of `post`, and `ENOMEM`.
///
/// # Safety
/// `next` is null or points at a list of requests.
pub(crate) unsafe fn post_each<W: Request>(
    next: &mut *mut W,
    most: u32,
    mut post: impl FnMut(&W) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // The queue itself refuses the first request if it has no room at all.
    let mut room = most.max(1);
    // SAFETY: null or a request: what a request of the list names is one of the list.
    while let Some(wr) = unsafe { next.as_ref() } {
        room = room.checked_sub(1).ok_or(Errno::NOMEM)?;
        post(wr)?;
        *next = wr.next();
    }
    Ok(())
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_without_an_end_is_posted_as_often_as_the_queue_has_places() {
        let mut circle = [ibv_recv_wr::default(); 3];
        let first = circle.as_mut_ptr();
        for (at, next) in [(0, 1), (1, 2), (2, 0)] {
            // SAFETY: both are in the array.
            unsafe { (*first.add(at)).next = first.add(next) };
        }
        for (most, expected) in [(0, 1), (1, 1), (7, 7)] {
            let (mut next, mut posted) = (first, 0);
            // SAFETY: the list is alive.
            let refused = unsafe {
                post_each(&mut next, most, |_| {
                    posted += 1;
                    assert!(posted < 100, "without an end");
                    Ok(())
                })
            };
            assert_eq!((refused, posted), (Err(Errno::NOMEM), expected));
            // SAFETY: an entry of the list.
            assert_eq!(next, unsafe { first.add(expected % 3) });
        }
    }
}
