//! Memory registration, and advice about registered memory.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use crate::bindings::*;
use crate::error::VerbError;
use crate::library::Verbs;
use crate::provider_ops::provider_op;
use crate::ret::status;

/// Access flags that a kernel may ignore (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

impl Verbs {
    /// Registers memory for access at its addresses in this process (`ibv_reg_mr` in C). A kernel
    /// ignores optional access flags that it does not know, such as relaxed ordering.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the memory cannot be pinned (GPU memory: if no peer-memory module supports it);
    /// `ENOMEM` above the limit of locked memory; [`VerbError::NotInLibrary`] for optional flags
    /// before rdma-core 28.
    ///
    /// # Safety
    ///
    /// `pd` is valid. The memory stays mapped until the region is deregistered, and may be written
    /// by any holder of the key if `access` permits it.
    pub unsafe fn reg_mr(
        &self,
        pd: *mut ibv_pd,
        address: *mut c_void,
        length: usize,
        access: ibv_access_flags,
    ) -> Result<NonNull<ibv_mr>, VerbError> {
        if access.0 & OPTIONAL_ACCESS == 0 {
            // SAFETY: the contract of this function.
            return unsafe { self.ibv_reg_mr(pd, address, length, access.0 as c_int) };
        }
        let iova = address.addr() as u64;
        // SAFETY: the contract of this function.
        unsafe { self.ibv_reg_mr_iova2(pd, address, length, iova, access.0) }
    }
}

/// Advises the device which parts of an on-demand region will be used.
///
/// # Errors
///
/// [`VerbError::NotInProvider`] if the provider does not support it; `EFAULT` for ranges that are not
/// mapped; `EINVAL` for ranges outside their region.
///
/// # Safety
///
/// `pd` and the regions in `ranges` are valid.
pub unsafe fn ibv_advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: u32,
    ranges: &mut [ibv_sge],
) -> Result<(), VerbError> {
    let verb = "ibv_advise_mr";
    // SAFETY: the domain is valid, and its context open.
    let advise = unsafe { provider_op!((*pd).context, advise_mr) };
    let advise = advise.ok_or(VerbError::NotInProvider { verb })?;
    let count = u32::try_from(ranges.len()).map_err(|_| VerbError::Failed {
        verb,
        errno: crate::Errno::EINVAL,
    })?;
    // SAFETY: the slice has this many ranges, and their regions are valid.
    status(verb, unsafe {
        advise(pd, advice, flags, ranges.as_mut_ptr(), count)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Provider, library};

    unsafe extern "C" fn plain(_: *mut ibv_pd, _: *mut c_void, _: usize, _: c_int) -> *mut ibv_mr {
        std::ptr::without_provenance_mut(0x1000)
    }

    unsafe extern "C" fn optional(
        _: *mut ibv_pd,
        address: *mut c_void,
        _: usize,
        iova: u64,
        _: u32,
    ) -> *mut ibv_mr {
        assert_eq!(address.addr() as u64, iova);
        std::ptr::without_provenance_mut(0x2000)
    }

    /// Registers memory; the address of the region shows which function was called.
    fn register(access: ibv_access_flags, missing: &[&str]) -> Result<usize, VerbError> {
        let functions = [
            ("ibv_reg_mr", plain as *const ()),
            ("ibv_reg_mr_iova2", optional as *const ()),
        ];
        // SAFETY: each has the type of the function that it replaces.
        let verbs = unsafe { library(&functions, missing) }.unwrap();
        let address = std::ptr::without_provenance_mut(0x7000);
        // SAFETY: the functions above dereference none of the pointers.
        let mr = unsafe { verbs.reg_mr(std::ptr::null_mut(), address, 8, access) };
        mr.map(|mr| mr.addr().get())
    }

    #[test]
    fn optional_access_flags_are_passed_to_the_newer_function() {
        let plain = ibv_access_flags::IBV_ACCESS_REMOTE_READ;
        let relaxed = plain | ibv_access_flags::IBV_ACCESS_RELAXED_ORDERING;
        assert_eq!(register(plain, &["ibv_reg_mr_iova2"]), Ok(0x1000));
        assert_eq!(register(relaxed, &[]), Ok(0x2000));
        let verb = "ibv_reg_mr_iova2";
        assert_eq!(
            register(relaxed, &[verb]),
            Err(VerbError::NotInLibrary { verb })
        );
    }

    #[test]
    fn advice_without_support_of_the_provider_is_an_error() {
        let provider = Provider::new(|_| {});
        let mut pd = ibv_pd {
            context: provider.context(),
            handle: 0,
        };
        let advice = ib_uverbs_advise_mr_advice::IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH;
        // SAFETY: the domain and its context are valid.
        let ret = unsafe { ibv_advise_mr(&mut pd, advice, 0, &mut []) };
        let verb = "ibv_advise_mr";
        assert_eq!(ret, Err(VerbError::NotInProvider { verb }));
    }
}
