//! Extended queue pairs, to which each request is posted by several calls.
//!
//! A batch starts with [`ibv_wr_start`]. For each request the caller sets `wr_id` and `wr_flags` of
//! the queue pair and calls one function for the operation and one for the data. The batch ends with
//! [`ibv_wr_complete`], which posts all requests, or [`ibv_wr_abort`], which posts none.
//!
//! `ibv_wr_flush` and `ibv_wr_atomic_write` are not supported: their fields were added to
//! `ibv_qp_ex` in later releases, and the structure of a provider does not contain its
//! size.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use crate::bindings::*;
use crate::error::VerbError;
use crate::library::Verbs;
use crate::provider_ops::provider_op;
use crate::ret::{pointer, status};

impl Verbs {
    /// Creates a queue pair, and stores its sizes in `attr.cap`. With `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS` in
    /// `attr.comp_mask`, it is an extended one, which [`Verbs::ibv_qp_to_qp_ex`] converts for [`ibv_wr_start`] and
    /// related functions.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the provider has no extended queue pairs; `EOPNOTSUPP` or
    /// `EINVAL` for flags that it does not know.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library; the objects in `attr` belong to this context and outlive the
    /// queue pair.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<NonNull<ibv_qp>, VerbError> {
        let verb = "ibv_create_qp_ex";
        if attr.comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            let pd = attr.pd;
            // SAFETY: the attributes are valid by contract, and begin with the fields of
            // ibv_qp_init_attr.
            return unsafe { self.ibv_create_qp(pd, ptr::from_mut(attr).cast()) };
        }
        // SAFETY: the context is open; the macro takes the type from the field.
        let create = unsafe { provider_op!(context, create_qp_ex) };
        let create = create.ok_or(VerbError::NotInProvider { verb })?;
        // SAFETY: the attributes are valid by contract; the provider reads only the
        // fields that the mask selects.
        pointer(verb, unsafe { create(context, attr) })
    }
}

/// Declares functions for the function pointers of a queue pair.
macro_rules! request {
    ($($(#[$doc:meta])* $name:ident = $field:ident($($arg:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[inline]
        pub unsafe fn $name(qp: *mut ibv_qp_ex $(, $arg: $type)*) -> Result<(), VerbError> {
            let verb = stringify!($name);
            // SAFETY: the queue pair is valid.
            let function = unsafe { (*qp).$field }.ok_or(VerbError::NotInProvider { verb })?;
            // SAFETY: the contract of this function.
            unsafe { function(qp $(, $arg)*) };
            Ok(())
        }
    )*};
}

request! {
    /// Starts a batch of requests. The queue may be locked until the batch ends.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// `qp` is valid and no batch is started. Each batch is ended.
    ibv_wr_start = wr_start();

    /// Ends the batch without posting its requests.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`.
    ibv_wr_abort = wr_abort();

    /// An RDMA write to `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_WRITE`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);

    /// An RDMA write with immediate data in network byte order.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: __be32);

    /// An RDMA read from `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_RDMA_READ`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);

    /// A compare and swap of the eight bytes at `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(
        rkey: u32, remote_addr: u64, compare: u64, swap: u64
    );

    /// A fetch and add on the eight bytes at `remote_addr`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);

    /// A send.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_send = wr_send();

    /// A send with immediate data in network byte order.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND_WITH_IMM`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_send_imm = wr_send_imm(imm_data: __be32);

    /// A send that invalidates a remote key of the peer.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] without `IBV_QP_EX_WITH_SEND_WITH_INV`.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, which was created with that flag.
    ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);

    /// Sets the data of the request to one range.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, and its latest request has no data. The range is in the region
    /// with this key. The device may read it, and write it for READs and atomics, until the request
    /// completes.
    ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);

    /// Sets the data of the request to `count` ranges.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// Like [`ibv_wr_set_sge`] for each range; `list` points to `count` ranges.
    ibv_wr_set_sge_list = wr_set_sge_list(count: usize, list: *const ibv_sge);

    /// Sets the data of the request to inline data, which is copied immediately.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// A batch is started on `qp`, and its latest request has no data. `length` bytes at `data` are
    /// readable, and at most the maximum of inline data. They are not written.
    ibv_wr_set_inline_data = wr_set_inline_data(data: *mut c_void, length: usize);

    /// Sets the data of the request to inline data in `count` pieces, which are copied immediately.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] if the queue pair is not an extended one.
    ///
    /// # Safety
    ///
    /// Like [`ibv_wr_set_inline_data`] for all pieces together; `list` points to `count` pieces.
    ibv_wr_set_inline_data_list = wr_set_inline_data_list(count: usize, list: *const ibv_data_buf);
}

/// Ends the batch and posts all of its requests, or none on an error.
///
/// # Errors
///
/// `ENOMEM` if the queue is full; `EINVAL` for requests that the provider does not accept.
///
/// # Safety
///
/// A batch is started on `qp`, and each of its requests has an operation and data.
#[inline]
pub unsafe fn ibv_wr_complete(qp: *mut ibv_qp_ex) -> Result<(), VerbError> {
    let verb = "ibv_wr_complete";
    // SAFETY: the queue pair is valid.
    let complete = unsafe { (*qp).wr_complete }.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the contract of this function.
    let ret: c_int = unsafe { complete(qp) };
    status(verb, ret)
}

#[cfg(test)]
mod tests {
    use std::mem;

    use super::*;
    use crate::errno::Errno;
    use crate::fixture::{Provider, library};

    unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, remote_addr: u64) {
        // SAFETY: the caller passes a valid queue pair.
        unsafe { (*qp).comp_mask = u64::from(rkey) + remote_addr };
    }

    unsafe extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
        libc::ENOMEM
    }

    #[test]
    fn an_operation_without_a_function_of_the_provider_is_an_error() {
        // SAFETY: numbers, pointers and functions that may be null, and a mutex that is not locked.
        let mut qp: ibv_qp_ex = unsafe { mem::zeroed() };
        qp.wr_rdma_write = Some(write);
        qp.wr_complete = Some(complete);
        let qp = &raw mut qp;
        // SAFETY: the queue pair is valid for all calls, and its functions use nothing else.
        unsafe {
            assert_eq!(ibv_wr_rdma_write(qp, 3, 0x1000), Ok(()));
            assert_eq!((*qp).comp_mask, 0x1003);
            let verb = "ibv_wr_rdma_read";
            let missing = VerbError::NotInProvider { verb };
            assert_eq!(ibv_wr_rdma_read(qp, 3, 0x1000), Err(missing));
            let full = ibv_wr_complete(qp).unwrap_err();
            assert_eq!(full.errno(), Errno::ENOMEM);
        }
    }

    unsafe extern "C" fn plain_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        assert!(!pd.is_null());
        // SAFETY: the caller passes readable attributes.
        assert_eq!(unsafe { (*attr).qp_type }, ibv_qp_type::IBV_QPT_RC);
        NonNull::<ibv_qp>::dangling().as_ptr()
    }

    fn verbs() -> Verbs {
        let functions = [("ibv_create_qp", plain_qp as *const ())];
        // SAFETY: it has the type of the function that it replaces.
        unsafe { library(&functions, &[]) }.unwrap()
    }

    #[test]
    fn a_queue_pair_without_extended_attributes_is_created_by_the_basic_function() {
        let provider = Provider::new(|_| {});
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: ibv_qp_type::IBV_QPT_RC,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: NonNull::dangling().as_ptr(),
            ..Default::default()
        };
        // SAFETY: the context is valid; the pointer to the domain is not dereferenced.
        let qp = unsafe { verbs().ibv_create_qp_ex(provider.context(), &mut attr) };
        assert!(qp.is_ok());

        attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        // SAFETY: as above.
        let qp = unsafe { verbs().ibv_create_qp_ex(provider.context(), &mut attr) };
        let verb = "ibv_create_qp_ex";
        assert_eq!(qp, Err(VerbError::NotInProvider { verb }));
    }
}
