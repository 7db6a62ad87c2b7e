//! What a function of the installed libibverbs finds in a context of this library: every release has
//! functions that this library does not know yet, and a program may reach them with its objects.

use std::ffi::c_void;
use std::sync::Once;

use gdr_verbs_sys::verbs_ex_private;

use crate::errno::Errno;
use crate::ret::set_errno;

/// More words than libibverbs has in `verbs_ex_private`.
const WORDS: usize = 512;

/// libibverbs calls the driver of a device through a table at `verbs_context.priv`, whose order
/// differs between releases: here every entry refuses.
static REFUSALS: [extern "C" fn() -> *mut c_void; WORDS] = [refuse; WORDS];

pub(crate) fn refusals() -> *mut verbs_ex_private {
    REFUSALS.as_ptr().cast_mut().cast()
}

/// Null for the functions that make objects, without which the others are useless. A function that
/// returns an error number would say with that it has succeeded, so it is announced.
extern "C" fn refuse() -> *mut c_void {
    static ANNOUNCED: Once = Once::new();
    ANNOUNCED.call_once(|| {
        eprintln!(
            "gdr: the program called a function of the installed libibverbs that this gdr does not have, \
             with an object of a device of gdr: nothing was done; take a later gdr, or a libibverbs of \
             rdma-core 65 or earlier"
        );
    });
    set_errno(Errno::OPNOTSUPP);
    std::ptr::null_mut()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_behind_a_context_makes_nothing_and_says_why() {
        for refuse in REFUSALS {
            set_errno(Errno::IO);
            assert!(refuse().is_null());
            let errno = std::io::Error::last_os_error().raw_os_error();
            assert_eq!(errno, Some(libc::EOPNOTSUPP));
        }
    }
}
