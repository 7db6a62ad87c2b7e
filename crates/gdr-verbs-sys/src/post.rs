//! Posting to basic queue pairs, and polling basic completion queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use crate::bindings::*;
use crate::errno::Errno;
use crate::error::VerbError;
use crate::ret::status;

/// Why a list of requests was not posted completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct PostError<W> {
    /// The error of the provider: `ENOMEM` if the queue is full, `EINVAL` for an invalid request or
    /// state.
    #[source]
    pub error: VerbError,
    /// The first request that was not posted; earlier ones were. Null if the provider was not called.
    pub bad: *mut W,
}

/// Posts a list of requests to the send queue. With `IBV_SEND_INLINE` the data is copied before this
/// returns. Otherwise the device uses it until the request, or a later one of the queue, completes.
///
/// # Errors
///
/// See [`PostError`].
///
/// # Safety
///
/// `qp` is valid. `wr`, the linked requests and their scatter-gather lists are readable. The device
/// may read the memory of their entries, and write it for READs and atomics, until the request
/// completes or the queue pair is destroyed.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
) -> Result<(), PostError<ibv_send_wr>> {
    let verb = "ibv_post_send";
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is valid, and its context open.
    let post = unsafe { (*(*qp).context).ops.post_send };
    let error = VerbError::NotInProvider { verb };
    let post = post.ok_or(PostError { error, bad })?;
    // SAFETY: the requests are valid by contract.
    let ret = unsafe { post(qp, wr, &mut bad) };
    status(verb, ret).map_err(|error| PostError { error, bad })
}

/// Posts a list of requests to the receive queue.
///
/// # Errors
///
/// See [`PostError`].
///
/// # Safety
///
/// `qp` is valid. `wr`, the linked requests and their scatter-gather lists are readable. The device
/// may write the memory of their entries until the request completes or the queue pair is
/// destroyed.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
) -> Result<(), PostError<ibv_recv_wr>> {
    let verb = "ibv_post_recv";
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is valid, and its context open.
    let post = unsafe { (*(*qp).context).ops.post_recv };
    let error = VerbError::NotInProvider { verb };
    let post = post.ok_or(PostError { error, bad })?;
    // SAFETY: the requests are valid by contract.
    let ret = unsafe { post(qp, wr, &mut bad) };
    status(verb, ret).map_err(|error| PostError { error, bad })
}

/// Removes up to `wc.len()` completions from the queue, without waiting, and returns them at the
/// start of `wc`. If the status of a completion is not success, only `wr_id`, `status`, `qp_num` and
/// `vendor_err` are valid.
///
/// # Errors
///
/// The queue has failed, because of an overflow or with its device. The provider chose the number.
///
/// # Safety
///
/// `cq` is valid. If it is extended, it is not between `ibv_start_poll` and `ibv_end_poll`.
#[inline]
pub unsafe fn ibv_poll_cq(
    cq: *mut ibv_cq,
    wc: &mut [MaybeUninit<ibv_wc>],
) -> Result<&mut [ibv_wc], VerbError> {
    let verb = "ibv_poll_cq";
    // SAFETY: the queue is valid, and its context open.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    let poll = poll.ok_or(VerbError::NotInProvider { verb })?;
    let (first, room) = (wc.as_mut_ptr().cast::<ibv_wc>(), wc.len());
    let limit = c_int::try_from(room).unwrap_or(c_int::MAX);
    // SAFETY: `wc` has room for this many completions.
    let count = unsafe { poll(cq, limit, first) };
    let count = usize::try_from(count).map_err(|_| VerbError::Failed {
        verb,
        errno: Errno(count.checked_abs().unwrap_or(count)),
    })?;
    // SAFETY: the provider has initialized this many completions of `wc`, whose borrow this is.
    Ok(unsafe { slice::from_raw_parts_mut(first, count.min(room)) })
}

/// Which completions generate an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next completion that is solicited (`IBV_SEND_SOLICITED`) or failed.
    NextSolicited,
}

/// Requests one event on the channel of the queue. Earlier completions do not generate it, so the
/// caller must poll once more afterwards.
///
/// # Errors
///
/// The device's errors.
///
/// # Safety
///
/// `cq` is valid.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, notify: Notify) -> Result<(), VerbError> {
    let verb = "ibv_req_notify_cq";
    // SAFETY: the queue is valid, and its context open.
    let request = unsafe { (*(*cq).context).ops.req_notify_cq };
    let request = request.ok_or(VerbError::NotInProvider { verb })?;
    let solicited_only = c_int::from(notify == Notify::NextSolicited);
    // SAFETY: the queue is valid.
    status(verb, unsafe { request(cq, solicited_only) })
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;
    use crate::fixture::Provider;

    unsafe extern "C" fn full(
        _: *mut ibv_qp,
        wr: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> c_int {
        // SAFETY: the caller passes a list of two requests and a writable pointer.
        unsafe { *bad = (*wr).next };
        libc::ENOMEM
    }

    unsafe extern "C" fn one_completion(_: *mut ibv_cq, room: c_int, wc: *mut ibv_wc) -> c_int {
        if room < 1 {
            return -libc::EIO;
        }
        let completion = ibv_wc {
            wr_id: 5,
            status: ibv_wc_status::IBV_WC_REM_ACCESS_ERR,
            ..Default::default()
        };
        // SAFETY: the caller passes this much room.
        unsafe { wc.write(completion) };
        1
    }

    unsafe extern "C" fn notify(_: *mut ibv_cq, solicited_only: c_int) -> c_int {
        solicited_only * libc::EINVAL
    }

    fn provider() -> Provider {
        Provider::new(|context| {
            context.context.ops.post_send = Some(full);
            context.context.ops.poll_cq = Some(one_completion);
            context.context.ops.req_notify_cq = Some(notify);
        })
    }

    fn qp(provider: &Provider) -> ibv_qp {
        // SAFETY: numbers, pointers that may be null and a mutex that is not locked.
        let mut qp: ibv_qp = unsafe { mem::zeroed() };
        qp.context = provider.context();
        qp
    }

    fn cq(provider: &Provider) -> ibv_cq {
        // SAFETY: as for the queue pair.
        let mut cq: ibv_cq = unsafe { mem::zeroed() };
        cq.context = provider.context();
        cq
    }

    #[test]
    fn a_full_queue_returns_the_first_request_that_was_not_posted() {
        let provider = provider();
        let mut second = ibv_send_wr::default();
        let mut first = ibv_send_wr {
            next: &mut second,
            ..Default::default()
        };
        // SAFETY: the queue pair and the requests are valid, and use no memory.
        let error = unsafe { ibv_post_send(&mut qp(&provider), &mut first) }.unwrap_err();
        assert_eq!(error.error.errno(), Errno::ENOMEM);
        assert_eq!(error.bad, &raw mut second);
    }

    #[test]
    fn a_missing_function_of_the_provider_is_an_error() {
        let provider = provider();
        let mut request = ibv_recv_wr::default();
        // SAFETY: the queue pair and the request are valid, and use no memory.
        let error = unsafe { ibv_post_recv(&mut qp(&provider), &mut request) }.unwrap_err();
        let verb = "ibv_post_recv";
        assert_eq!(error.error, VerbError::NotInProvider { verb });
        assert!(error.bad.is_null());
    }

    #[test]
    fn polling_returns_the_completions_of_the_provider() {
        let provider = provider();
        let mut room = [MaybeUninit::uninit(); 3];
        // SAFETY: the queue is valid.
        let completions = unsafe { ibv_poll_cq(&mut cq(&provider), &mut room) }.unwrap();
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].wr_id, 5);
        assert_eq!(completions[0].status.name(), Some("IBV_WC_REM_ACCESS_ERR"));
    }

    #[test]
    fn polling_a_failed_queue_is_an_error() {
        let provider = provider();
        // SAFETY: the queue is valid.
        let error = unsafe { ibv_poll_cq(&mut cq(&provider), &mut []) }.err();
        assert_eq!(error.map(|error| error.errno()), Some(Errno::EIO));
    }

    #[test]
    fn the_solicited_flag_is_passed_to_the_provider() {
        let provider = provider();
        let mut cq = cq(&provider);
        // SAFETY: the queue is valid.
        assert!(unsafe { ibv_req_notify_cq(&mut cq, Notify::Next) }.is_ok());
        // SAFETY: the queue is valid.
        assert!(unsafe { ibv_req_notify_cq(&mut cq, Notify::NextSolicited) }.is_err());
    }
}
