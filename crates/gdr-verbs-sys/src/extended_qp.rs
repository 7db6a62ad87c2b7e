//! Posting to extended queue pairs: a request is begun, described and ended by calls.
//!
//! [`ibv_wr_start`]; then for each request `wr_id` and `wr_flags` of the queue pair, one function
//! that says what it does, and one that says with what data; then [`ibv_wr_complete`], which posts
//! all of them, or [`ibv_wr_abort`], which posts none.
//!
//! `ibv_wr_flush` and `ibv_wr_atomic_write` are not here: their fields came to `ibv_qp_ex` later
//! than it did, and nothing says whether a provider's object has them.

use std::ffi::{c_int, c_void};

use crate::answer::status;
use crate::bindings::*;
use crate::error::VerbError;

/// Declares functions that a queue pair carries.
macro_rules! request {
    ($($(#[$doc:meta])* $name:ident = $field:ident($($arg:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) -> Result<(), VerbError> {
            let verb = stringify!($name);
            // SAFETY: the queue pair is alive.
            let function = unsafe { (*qp).$field }.ok_or(VerbError::NotInProvider { verb })?;
            // SAFETY: this function's contract.
            unsafe { function(qp $(, $arg)*) };
            Ok(())
        }
    )*};
}

request! {
    /// Begins a batch of requests. The queue may be locked until it ends.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// `qp` is alive and no batch was begun. Each batch is ended.
    ibv_wr_start = wr_start();

    /// Ends the batch and posts nothing of it.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`.
    ibv_wr_abort = wr_abort();

    /// An RDMA write to `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_WRITE`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);

    /// An RDMA write that completes a receive with immediate data (network byte order).
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);

    /// An RDMA read from `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_READ`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);

    /// A compare and swap of the eight bytes at `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(
        rkey: u32, remote_addr: u64, compare: u64, swap: u64
    );

    /// An addition to the eight bytes at `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);

    /// A send.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_send = wr_send();

    /// A send with immediate data (network byte order).
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND_WITH_IMM`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_send_imm = wr_send_imm(imm_data: __be32);

    /// A send that ends the use of the peer's key.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND_WITH_INV`.
    ///
    /// # Safety
    ///
    /// A batch was begun on `qp`, which was made with that flag.
    ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);

    /// The request's data: one range.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A request of the batch begun on `qp` was said and has no data yet. The range is of the
    /// region with this key; the device may read it, and for reads and atomics write it, until the
    /// request completes.
    ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);

    /// The request's data: `count` ranges.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// As [`ibv_wr_set_sge`] for each; there are `count` of them at `list`.
    ibv_wr_set_sge_list = wr_set_sge_list(count: usize, list: *const ibv_sge);

    /// The request's data, which is read now.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A request of the batch begun on `qp` was said and has no data yet; `length` bytes at `data`
    /// are readable, and no more than the queue pair takes inline. Nothing is written there.
    ibv_wr_set_inline_data = wr_set_inline_data(data: *mut c_void, length: usize);

    /// The request's data in `count` pieces, which are read now.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// As [`ibv_wr_set_inline_data`] for all together; there are `count` pieces at `list`.
    ibv_wr_set_inline_data_list = wr_set_inline_data_list(count: usize, list: *const ibv_data_buf);
}

/// Ends the batch and posts all of it, or on an error nothing.
///
/// # Errors
///
/// `ENOMEM` where the queue is full; `EINVAL` for requests that the provider does not take.
///
/// # Safety
///
/// A batch was begun on `qp`, and each request of it has what it needs.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> Result<(), VerbError> {
    let verb = "ibv_wr_complete";
    // SAFETY: the queue pair is alive.
    let complete = unsafe { (*qp).wr_complete }.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: this function's contract.
    let answer: c_int = unsafe { complete(qp) };
    status(verb, answer)
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;
    use crate::errno::Errno;

    unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
        // SAFETY: the caller gives the queue pair.
        unsafe { (*qp).comp_mask = u64::from(rkey) + remote_addr };
    }

    unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
        libc::ENOMEM
    }

    #[test]
    fn a_queue_pair_does_what_it_was_made_for_and_nothing_else() {
        // SAFETY: numbers, pointers and functions that may be null, and a mutex nobody locks.
        let mut qp: ibv_qp_ex = unsafe { mem::zeroed() };
        qp.wr_rdma_write = Some(write);
        qp.wr_complete = Some(complete);
        let qp = &raw mut qp;
        // SAFETY: the queue pair is there, for all of these, and its functions use nothing else.
        unsafe {
            assert_eq!(ibv_wr_rdma_write(qp, 3, 0x1000), Ok(()));
            assert_eq!((*qp).comp_mask, 0x1003);
            let verb = "ibv_wr_rdma_read";
            let refused = VerbError::NotInProvider { verb };
            assert_eq!(ibv_wr_rdma_read(qp, 3, 0x1000), Err(refused));
            let full = ibv_wr_complete(qp).unwrap_err();
            assert_eq!(full.errno(), Errno::ENOMEM);
        }
    }
}
