//! Extended completion queues, which return one completion at a time.

use std::ffi::c_uint;
use std::ptr::NonNull;

use crate::bindings::*;
use crate::errno::Errno;
use crate::error::VerbError;
use crate::provider_ops::provider_op;
use crate::ret::{pointer, status};

/// Creates a completion queue that is polled with [`ibv_start_poll`] and related functions.
/// `attr.wc_flags` ([`ibv_create_cq_wc_flags`]) selects the fields of its completions.
/// [`Verbs::ibv_destroy_cq`](crate::Verbs::ibv_destroy_cq) destroys it.
///
/// # Errors
///
/// [`VerbError::NotInProvider`] if the provider has no extended queues; `EOPNOTSUPP` or `EINVAL` for
/// flags that it does not know.
///
/// # Safety
///
/// `context` is open; the objects in `attr` belong to this context and outlive the queue.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> Result<NonNull<ibv_cq_ex>, VerbError> {
    let verb = "ibv_create_cq_ex";
    // SAFETY: the context is open; the macro takes the type from the field.
    let create = unsafe { provider_op!(context, create_cq_ex) };
    let create = create.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the attributes are valid by contract; the provider reads only the
    // fields that the masks select.
    pointer(verb, unsafe { create(context, attr) })
}

/// Returns the queue as a basic one, whose fields are the first ones of an extended queue.
pub const fn ibv_cq_ex_to_cq(cq: NonNull<ibv_cq_ex>) -> NonNull<ibv_cq> {
    cq.cast()
}

/// Result of a polling call.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Polled {
    /// A completion, which `cq.wr_id`, `cq.status` and the `ibv_wc_read_` functions describe.
    Completion,
    /// The queue is empty.
    Empty,
}

fn polled(verb: &'static str, ret: std::ffi::c_int) -> Result<Polled, VerbError> {
    match status(verb, ret) {
        Ok(()) => Ok(Polled::Completion),
        Err(error) if error.errno() == Errno::ENOENT => Ok(Polled::Empty),
        Err(error) => Err(error),
    }
}

/// Starts polling. [`ibv_end_poll`] must follow after [`Polled::Completion`], and only then. In between, the queue may
/// be locked.
///
/// # Errors
///
/// The queue has failed, because of an overflow or with its device.
///
/// # Safety
///
/// `cq` is valid and not being polled.
#[inline]
pub unsafe fn ibv_start_poll(cq: *mut ibv_cq_ex) -> Result<Polled, VerbError> {
    let verb = "ibv_start_poll";
    // SAFETY: the queue is valid.
    let start = unsafe { (*cq).start_poll }.ok_or(VerbError::NotInProvider { verb })?;
    let mut attr = ibv_poll_cq_attr { comp_mask: 0 };
    // SAFETY: the queue is valid and not being polled.
    polled(verb, unsafe { start(cq, &mut attr) })
}

/// Continues with the next completion.
///
/// # Errors
///
/// Same as [`ibv_start_poll`]; [`ibv_end_poll`] must follow nevertheless.
///
/// # Safety
///
/// `cq` is between [`ibv_start_poll`] and [`ibv_end_poll`].
#[inline]
pub unsafe fn ibv_next_poll(cq: *mut ibv_cq_ex) -> Result<Polled, VerbError> {
    let verb = "ibv_next_poll";
    // SAFETY: the queue is valid.
    let next = unsafe { (*cq).next_poll }.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the queue is being polled.
    polled(verb, unsafe { next(cq) })
}

/// Ends a poll after [`ibv_start_poll`].
///
/// # Errors
///
/// [`VerbError::NotInProvider`] if the queue is not an extended one.
///
/// # Safety
///
/// `cq` is between [`ibv_start_poll`] and this.
#[inline]
pub unsafe fn ibv_end_poll(cq: *mut ibv_cq_ex) -> Result<(), VerbError> {
    let verb = "ibv_end_poll";
    // SAFETY: the queue is valid.
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
        /// [`VerbError::NotInProvider`] if the queue was created without the flag for this field.
        ///
        /// # Safety
        ///
        /// `cq` is being polled, and its latest poll returned a completion. If the field needs a flag
        /// of [`ibv_create_cq_wc_flags`], the queue was created with that flag.
        #[inline]
        pub unsafe fn $name(cq: *mut ibv_cq_ex) -> Result<$type, VerbError> {
            let verb = stringify!($name);
            // SAFETY: the queue is valid.
            let read = unsafe { (*cq).$field }.ok_or(VerbError::NotInProvider { verb })?;
            // SAFETY: the queue has a current completion.
            Ok(unsafe { read(cq) })
        }
    )*};
}

read! {
    /// The operation. It is valid only for successful completions.
    ibv_wc_read_opcode = read_opcode -> ibv_wc_opcode;
    /// The vendor-specific error number.
    ibv_wc_read_vendor_err = read_vendor_err -> u32;
    /// The number of bytes that were received, or read by a READ or an atomic.
    ibv_wc_read_byte_len = read_byte_len -> u32;
    /// The immediate data, in network byte order.
    ibv_wc_read_imm_data = read_imm_data -> __be32;
    /// The number of the queue pair.
    ibv_wc_read_qp_num = read_qp_num -> u32;
    /// The number of the sending queue pair (unreliable datagrams).
    ibv_wc_read_src_qp = read_src_qp -> u32;
    /// The flags: [`ibv_wc_flags`].
    ibv_wc_read_wc_flags = read_wc_flags -> c_uint;
    /// The LID of the sender (InfiniBand).
    ibv_wc_read_slid = read_slid -> u32;
    /// The service level.
    ibv_wc_read_sl = read_sl -> u8;
    /// The low bits of the destination LID (InfiniBand).
    ibv_wc_read_dlid_path_bits = read_dlid_path_bits -> u8;
    /// The time of completion in ticks of the device clock.
    ibv_wc_read_completion_ts = read_completion_ts -> u64;
    /// The time of completion in nanoseconds since 1970.
    ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns -> u64;
}

#[cfg(test)]
mod tests {
    use std::ffi::c_int;
    use std::mem;
    use std::ptr;

    use super::*;
    use crate::fixture::Provider;

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
    fn a_queue_is_polled_until_it_is_empty_and_a_missing_field_is_an_error() {
        // SAFETY: numbers, nullable pointers and functions, and an unlocked mutex.
        let mut cq: ibv_cq_ex = unsafe { mem::zeroed() };
        cq.start_poll = Some(start);
        cq.next_poll = Some(next);
        cq.read_byte_len = Some(byte_len);
        let cq = &raw mut cq;
        // SAFETY: the queue is valid for all calls, which poll it in the right order.
        unsafe {
            assert_eq!(ibv_start_poll(cq), Ok(Polled::Completion));
            assert_eq!(ibv_wc_read_byte_len(cq), Ok(4096));
            let verb = "ibv_wc_read_completion_ts";
            let missing = VerbError::NotInProvider { verb };
            assert_eq!(ibv_wc_read_completion_ts(cq), Err(missing));
            assert_eq!(ibv_next_poll(cq), Ok(Polled::Empty));
            let verb = "ibv_end_poll";
            assert_eq!(ibv_end_poll(cq), Err(VerbError::NotInProvider { verb }));
        }
    }

    #[test]
    fn an_error_is_not_an_empty_queue() {
        assert_eq!(polled("ibv_next_poll", libc::ENOENT), Ok(Polled::Empty));
        let error = polled("ibv_next_poll", libc::EINVAL).unwrap_err();
        assert_eq!(error.errno(), Errno::EINVAL);
    }

    unsafe extern "C" fn no_cq(_: *mut ibv_context, _: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        // SAFETY: the descriptor is invalid, so the call only sets errno.
        unsafe { libc::close(-1) };
        ptr::null_mut()
    }

    #[test]
    fn a_completion_queue_that_is_not_created_gives_the_errno_of_the_provider() {
        let provider = Provider::new(|context| context.create_cq_ex = Some(no_cq));
        let mut attr = ibv_cq_init_attr_ex::default();
        // SAFETY: the context is valid.
        let cq = unsafe { ibv_create_cq_ex(provider.context(), &mut attr) };
        assert_eq!(cq.map_err(|error| error.errno()), Err(Errno::EBADF));
    }
}
