//! Reading extended completion queues, one completion at a time.

use std::ffi::c_uint;

use crate::answer::status;
use crate::bindings::*;
use crate::errno::Errno;
use crate::error::VerbError;

/// What a step of polling found.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Polled {
    /// A completion: `cq.wr_id` and `cq.status` are its, and the `ibv_wc_read_` functions.
    Completion,
    /// No completion is there.
    Empty,
}

fn polled(verb: &'static str, answer: std::ffi::c_int) -> Result<Polled, VerbError> {
    match status(verb, answer) {
        Ok(()) => Ok(Polled::Completion),
        Err(error) if error.errno() == Errno::ENOENT => Ok(Polled::Empty),
        Err(error) => Err(error),
    }
}

/// Begins to poll. Only after [`Polled::Completion`] must [`ibv_end_poll`] follow; in between, the
/// queue may be locked.
///
/// # Errors
///
/// The queue is lost: it ran over, or the device failed.
///
/// # Safety
///
/// `cq` is alive and not between this and [`ibv_end_poll`].
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex) -> Result<Polled, VerbError> {
    let verb = "ibv_start_poll";
    // SAFETY: the queue is alive.
    let start = unsafe { (*cq).start_poll }.ok_or(VerbError::NotInProvider { verb })?;
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the queue is alive, and nobody polls it.
    polled(verb, unsafe { start(cq, &mut attr) })
}

/// Goes on to the next completion.
///
/// # Errors
///
/// As [`ibv_start_poll`]; [`ibv_end_poll`] must follow all the same.
///
/// # Safety
///
/// `cq` is between [`ibv_start_poll`] and [`ibv_end_poll`].
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> Result<Polled, VerbError> {
    let verb = "ibv_next_poll";
    // SAFETY: the queue is alive.
    let next = unsafe { (*cq).next_poll }.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the queue is being polled.
    polled(verb, unsafe { next(cq) })
}

/// Ends what [`ibv_start_poll`] began.
///
/// # Errors
///
/// [`VerbError::NotInProvider`] where the queue is not an extended one.
///
/// # Safety
///
/// `cq` is between [`ibv_start_poll`] and this.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) -> Result<(), VerbError> {
    let verb = "ibv_end_poll";
    // SAFETY: the queue is alive.
    let end = unsafe { (*cq).end_poll }.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the queue is being polled.
    unsafe { end(cq) };
    Ok(())
}

/// Declares the functions that read the current completion.
macro_rules! read {
    ($($(#[$doc:meta])* $name:ident = $field:ident -> $type:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Errors
        ///
        /// [`VerbError::NotInProvider`] where the provider did not fill this in: the queue was
        /// made without the flag for it.
        ///
        /// # Safety
        ///
        /// The last step of polling `cq` found a completion, and polling did not end. What a flag
        /// of [`ibv_create_cq_wc_flags`] enables is read only from queues made with that flag.
        #[inline]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> Result<$type, VerbError> {
            let verb = stringify!($name);
            // SAFETY: the queue is alive.
            let read = unsafe { (*cq).$field }.ok_or(VerbError::NotInProvider { verb })?;
            // SAFETY: a completion is there to be read.
            Ok(unsafe { read(cq) })
        }
    )*};
}

read! {
    /// What completed. Means something for successes alone.
    ibv_wc_read_opcode = read_opcode -> ibv_wc_opcode;
    /// The vendor's own error number.
    ibv_wc_read_vendor_err = read_vendor_err -> u32;
    /// Bytes received, or read by a read or an atomic.
    ibv_wc_read_byte_len = read_byte_len -> u32;
    /// The immediate data, in network byte order.
    ibv_wc_read_imm_data = read_imm_data -> __be32;
    /// The number of the queue pair.
    ibv_wc_read_qp_num = read_qp_num -> u32;
    /// The number of the queue pair that sent (unreliable datagrams).
    ibv_wc_read_src_qp = read_src_qp -> u32;
    /// Flags: [`ibv_wc_flags`].
    ibv_wc_read_wc_flags = read_wc_flags -> c_uint;
    /// The sender's LID (InfiniBand).
    ibv_wc_read_slid = read_slid -> u32;
    /// The service level.
    ibv_wc_read_sl = read_sl -> u8;
    /// The low bits of the destination's LID (InfiniBand).
    ibv_wc_read_dlid_path_bits = read_dlid_path_bits -> u8;
    /// When it completed, in ticks of the device's clock.
    ibv_wc_read_completion_ts = read_completion_ts -> u64;
    /// When it completed, in nanoseconds since 1970.
    ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns -> u64;
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::mem;

    use super::*;

    unsafe extern "C" fn start(_: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
        // SAFETY: the caller gives readable attributes.
        assert_eq!(unsafe { (*attr).comp_mask }, 0);
        0
    }

    unsafe extern "C" fn next(_: *mut ibv_cq_ex) -> c_int {
        libc::ENOENT
    }

    unsafe extern "C" fn byte_len(_: *mut ibv_cq_ex) -> u32 {
        4096
    }

    #[test]
    fn a_queue_is_read_until_it_is_empty_and_what_it_lacks_is_refused() {
        // SAFETY: numbers, pointers and functions that may be null, and a mutex nobody locks.
        let mut cq: ibv_cq_ex = unsafe { mem::zeroed() };
        cq.start_poll = Some(start);
        cq.next_poll = Some(next);
        cq.read_byte_len = Some(byte_len);
        let cq = &raw mut cq;
        // SAFETY: the queue is there, for all of these; it is polled in their order.
        unsafe {
            assert_eq!(ibv_start_poll(cq), Ok(Polled::Completion));
            assert_eq!(ibv_wc_read_byte_len(cq), Ok(4096));
            let verb = "ibv_wc_read_completion_ts";
            let refused = VerbError::NotInProvider { verb };
            assert_eq!(ibv_wc_read_completion_ts(cq), Err(refused));
            assert_eq!(ibv_next_poll(cq), Ok(Polled::Empty));
            let verb = "ibv_end_poll";
            assert_eq!(ibv_end_poll(cq), Err(VerbError::NotInProvider { verb }));
        }
    }

    #[test]
    fn an_error_of_polling_is_no_empty_queue() {
        assert_eq!(polled("ibv_next_poll", libc::ENOENT), Ok(Polled::Empty));
        let error = polled("ibv_next_poll", libc::EINVAL).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
    }
}
