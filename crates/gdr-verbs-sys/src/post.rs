//! Posting to plain queue pairs, and polling plain completion queues.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;
use std::slice;

use crate::answer::status;
use crate::bindings::*;
use crate::errno::Errno;
use crate::error::VerbError;

/// Why a list of requests was not posted as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct PostError<W> {
    /// What the provider said: `ENOMEM` when the queue is full, `EINVAL` for a request or a state
    /// that it does not take.
    #[source]
    pub error: VerbError,
    /// The first request that was not posted; those before it were. Null where no provider was
    /// asked.
    pub bad: *mut W,
}

/// Posts a list of requests to the send queue. With `IBV_SEND_INLINE` the data was read when this
/// returns; else it stays the device's until the request, or a later one of the queue, completes.
///
/// # Errors
///
/// See [`PostError`].
///
/// # Safety
///
/// `qp` is alive. `wr` and what it links and points to are readable now. The memory that its
/// entries name may be read by the device, and for reads and atomics written, until the request
/// completes or the queue pair is destroyed.
#[inline]
pub unsafe fn ibv_post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
) -> Result<(), PostError<ibv_send_wr>> {
    let verb = "ibv_post_send";
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is alive, and its context open.
    let post = unsafe { (*(*qp).context).ops.post_send };
    let error = VerbError::NotInProvider { verb };
    let post = post.ok_or(PostError { error, bad })?;
    // SAFETY: the requests are as the caller answers for.
    let answer = unsafe { post(qp, wr, &mut bad) };
    status(verb, answer).map_err(|error| PostError { error, bad })
}

/// Posts a list of requests to the receive queue.
///
/// # Errors
///
/// See [`PostError`].
///
/// # Safety
///
/// `qp` is alive. `wr` and what it links and points to are readable now. The memory that its
/// entries name may be written by the device until the request completes or the queue pair is
/// destroyed.
#[inline]
pub unsafe fn ibv_post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
) -> Result<(), PostError<ibv_recv_wr>> {
    let verb = "ibv_post_recv";
    let mut bad = ptr::null_mut();
    // SAFETY: the queue pair is alive, and its context open.
    let post = unsafe { (*(*qp).context).ops.post_recv };
    let error = VerbError::NotInProvider { verb };
    let post = post.ok_or(PostError { error, bad })?;
    // SAFETY: the requests are as the caller answers for.
    let answer = unsafe { post(qp, wr, &mut bad) };
    status(verb, answer).map_err(|error| PostError { error, bad })
}

/// Takes completions, as many as there are and fit: those that were written, at the beginning of
/// `wc`. Never waits. Of a completion that is no success only `wr_id`, `status`, `qp_num` and
/// `vendor_err` mean anything.
///
/// # Errors
///
/// The queue is lost: it ran over, or the device failed. The number is the provider's own.
///
/// # Safety
///
/// `cq` is alive and plain, or extended and not between `ibv_start_poll` and `ibv_end_poll`.
#[inline]
pub unsafe fn ibv_poll_cq(
    cq: *mut ibv_cq,
    wc: &mut [MaybeUninit<ibv_wc>],
) -> Result<&mut [ibv_wc], VerbError> {
    let verb = "ibv_poll_cq";
    // SAFETY: the queue is alive, and its context open.
    let poll = unsafe { (*(*cq).context).ops.poll_cq };
    let poll = poll.ok_or(VerbError::NotInProvider { verb })?;
    let (first, room) = (wc.as_mut_ptr().cast::<ibv_wc>(), wc.len());
    let asked = c_int::try_from(room).unwrap_or(c_int::MAX);
    // SAFETY: there is room for this many completions.
    let count = unsafe { poll(cq, asked, first) };
    let count = usize::try_from(count).map_err(|_| VerbError::Failed {
        verb,
        errno: Errno(count.checked_abs().unwrap_or(count)),
    })?;
    // SAFETY: the provider wrote this many, and there was room for them; the borrow is that of
    // `wc`.
    Ok(unsafe { slice::from_raw_parts_mut(first, count.min(room)) })
}

/// Which completions make an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Notify {
    /// Whichever comes next.
    Next,
    /// The next that its sender marked (`IBV_SEND_SOLICITED`), or that failed.
    NextSolicited,
}

/// Asks for one event on the queue's channel. What came before this makes none: poll once more
/// afterwards.
///
/// # Errors
///
/// Those of the device.
///
/// # Safety
///
/// `cq` is alive.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, notify: Notify) -> Result<(), VerbError> {
    let verb = "ibv_req_notify_cq";
    // SAFETY: the queue is alive, and its context open.
    let request = unsafe { (*(*cq).context).ops.req_notify_cq };
    let request = request.ok_or(VerbError::NotInProvider { verb })?;
    let solicited_only = c_int::from(notify == Notify::NextSolicited);
    // SAFETY: the queue is alive.
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
        // SAFETY: the caller gives a list of two and a place.
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
        // SAFETY: the caller gives this much room.
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
        // SAFETY: numbers, pointers that may be null and a mutex nobody locks.
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
    fn a_full_queue_names_the_request_that_found_no_room() {
        let provider = provider();
        let mut second = ibv_send_wr::default();
        let mut first = ibv_send_wr {
            next: &mut second,
            ..Default::default()
        };
        // SAFETY: the queue pair and the requests are there, and name no memory.
        let error = unsafe { ibv_post_send(&mut qp(&provider), &mut first) }.unwrap_err();
        assert_eq!(error.error.errno(), Errno::ENOMEM);
        assert_eq!(error.bad, &raw mut second);
    }

    #[test]
    fn a_queue_without_the_function_is_refused() {
        let provider = provider();
        let mut request = ibv_recv_wr::default();
        // SAFETY: the queue pair and the request are there, and name no memory.
        let error = unsafe { ibv_post_recv(&mut qp(&provider), &mut request) }.unwrap_err();
        let verb = "ibv_post_recv";
        assert_eq!(error.error, VerbError::NotInProvider { verb });
        assert!(error.bad.is_null());
    }

    #[test]
    fn polling_gives_the_completions_that_were_written() {
        let provider = provider();
        let mut room = [MaybeUninit::uninit(); 3];
        // SAFETY: the queue is there.
        let completions = unsafe { ibv_poll_cq(&mut cq(&provider), &mut room) }.unwrap();
        assert_eq!(completions.len(), 1);
        assert_eq!(completions[0].wr_id, 5);
        assert_eq!(completions[0].status.name(), Some("IBV_WC_REM_ACCESS_ERR"));
    }

    #[test]
    fn polling_a_lost_queue_fails() {
        let provider = provider();
        // SAFETY: the queue is there.
        let error = unsafe { ibv_poll_cq(&mut cq(&provider), &mut []) }.err();
        assert_eq!(error.map(|error| error.errno()), Some(Errno::EIO));
    }

    #[test]
    fn only_solicited_events_are_asked_for_as_such() {
        let provider = provider();
        let mut cq = cq(&provider);
        // SAFETY: the queue is there.
        assert!(unsafe { ibv_req_notify_cq(&mut cq, Notify::Next) }.is_ok());
        // SAFETY: the queue is there.
        assert!(unsafe { ibv_req_notify_cq(&mut cq, Notify::NextSolicited) }.is_err());
    }
}
