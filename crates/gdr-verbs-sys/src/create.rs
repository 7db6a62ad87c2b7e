//! Queues with more than the plain ones have.

use std::ptr::{self, NonNull};

use crate::answer::pointer;
use crate::bindings::*;
use crate::error::VerbError;
use crate::extension::provided;
use crate::library::Verbs;

/// Makes a completion queue that is read with [`ibv_start_poll`](crate::ibv_start_poll) and its
/// kin. `attr.wc_flags` ([`ibv_create_cq_wc_flags`]) names what can be read from a completion.
/// [`Verbs::ibv_destroy_cq`] destroys it.
///
/// # Errors
///
/// [`VerbError::NotInProvider`] where the device has only plain queues; `EOPNOTSUPP` or `EINVAL`
/// for flags that it does not know.
///
/// # Safety
///
/// `context` is open; what `attr` points to is of this context and outlives the queue.
pub unsafe fn ibv_create_cq_ex(
    context: *mut ibv_context,
    attr: &mut ibv_cq_init_attr_ex,
) -> Result<NonNull<ibv_cq_ex>, VerbError> {
    let verb = "ibv_create_cq_ex";
    // SAFETY: the context is open; the field's type is its own.
    let create = unsafe { provided!(context, create_cq_ex) };
    let create = create.ok_or(VerbError::NotInProvider { verb })?;
    // SAFETY: the attributes are as the caller answers for; the provider reads those fields only
    // that their masks name.
    pointer(verb, unsafe { create(context, attr) })
}

/// The queue as a plain one: they begin alike.
pub const fn ibv_cq_ex_to_cq(cq: NonNull<ibv_cq_ex>) -> NonNull<ibv_cq> {
    cq.cast()
}

impl Verbs {
    /// Makes a queue pair; with `IBV_QP_INIT_ATTR_SEND_OPS_FLAGS` in `attr.comp_mask`, one whose
    /// requests are built by [`ibv_wr_start`](crate::ibv_wr_start) and its kin, after
    /// [`Verbs::ibv_qp_to_qp_ex`]. What it can do is written back to `attr.cap`.
    ///
    /// # Errors
    ///
    /// [`VerbError::NotInProvider`] where the device has only plain queue pairs; `EOPNOTSUPP` or
    /// `EINVAL` for flags that it does not know.
    ///
    /// # Safety
    ///
    /// `context` is open, by this library; what `attr` points to is of this context and outlives
    /// the queue pair.
    pub unsafe fn ibv_create_qp_ex(
        &self,
        context: *mut ibv_context,
        attr: &mut ibv_qp_init_attr_ex,
    ) -> Result<NonNull<ibv_qp>, VerbError> {
        let verb = "ibv_create_qp_ex";
        if attr.comp_mask == ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0 {
            let pd = attr.pd;
            // SAFETY: the plain attributes are the beginning of these, and these are as the
            // caller answers for.
            return unsafe { self.ibv_create_qp(pd, ptr::from_mut(attr).cast()) };
        }
        // SAFETY: the context is open; the field's type is its own.
        let create = unsafe { provided!(context, create_qp_ex) };
        let create = create.ok_or(VerbError::NotInProvider { verb })?;
        // SAFETY: the attributes are as the caller answers for; the provider reads those fields
        // only that their mask names.
        pointer(verb, unsafe { create(context, attr) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::fixture::{Provider, library};

    unsafe extern "C" fn plain_qp(pd: *mut ibv_pd, attr: *mut ibv_qp_init_attr) -> *mut ibv_qp {
        assert!(!pd.is_null());
        // SAFETY: the caller gives readable attributes.
        assert_eq!(unsafe { (*attr).qp_type }, ibv_qp_type::IBV_QPT_RC);
        NonNull::<ibv_qp>::dangling().as_ptr()
    }

    unsafe extern "C" fn no_cq(_: *mut ibv_context, _: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex {
        // SAFETY: a descriptor that is none: the call only sets errno.
        unsafe { libc::close(-1) };
        ptr::null_mut()
    }

    fn verbs() -> Verbs {
        let functions = [("ibv_create_qp", plain_qp as *const ())];
        // SAFETY: it has the type of the one that it stands for.
        unsafe { library(&functions, &[]) }.unwrap()
    }

    #[test]
    fn a_queue_pair_with_nothing_extended_is_a_plain_one() {
        let provider = Provider::new(|_| {});
        let mut attr = ibv_qp_init_attr_ex {
            qp_type: ibv_qp_type::IBV_QPT_RC,
            comp_mask: ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0,
            pd: NonNull::dangling().as_ptr(),
            ..Default::default()
        };
        // SAFETY: the context is there; nobody looks behind the domain's pointer.
        let qp = unsafe { verbs().ibv_create_qp_ex(provider.context(), &mut attr) };
        assert!(qp.is_ok());

        attr.comp_mask |= ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        // SAFETY: as above.
        let qp = unsafe { verbs().ibv_create_qp_ex(provider.context(), &mut attr) };
        let verb = "ibv_create_qp_ex";
        assert_eq!(qp, Err(VerbError::NotInProvider { verb }));
    }

    #[test]
    fn a_completion_queue_that_is_refused_gives_the_providers_errno() {
        let provider = Provider::new(|context| context.create_cq_ex = Some(no_cq));
        let mut attr = ibv_cq_init_attr_ex::default();
        // SAFETY: the context is there.
        let cq = unsafe { ibv_create_cq_ex(provider.context(), &mut attr) };
        assert_eq!(cq.map_err(|error| error.errno()), Err(Errno::EBADF));
    }
}
